"""Carries autoscalers of nodes over: the run file that does the same, and what is left out of the output for it."""

from dataclasses import dataclass
from typing import Any

from gpuscaler.converting.adapters.references import key_of, namespace_of
from gpuscaler.converting.autoscalers import ancestors, cluster_autoscaler
from gpuscaler.converting.autoscalers.chart_values import CHART, PRIORITIES, PRIORITIES_NAMESPACE
from gpuscaler.converting.autoscalers.clouds import VARIABLES, Places
from gpuscaler.converting.autoscalers.draft import Draft
from gpuscaler.converting.autoscalers.flags import mentioned
from gpuscaler.converting.autoscalers.leftovers import Needs
from gpuscaler.converting.autoscalers.recognising import ACS, CLUSTER_AUTOSCALER, Autoscaler, autoscalers, installed_by
from gpuscaler.converting.objects import Json, Note, containers, get_items, get_mapping, name_of, pod_template, text

_DRIVEN = "aws and azure"


@dataclass(frozen=True, slots=True)
class Carried:
    """An autoscaler that became ``text``, the content of a run file in values of the chart.

    ``index`` is the place of its workload among all objects. ``left_out`` are the places of all objects that go with it.
    """

    index: int
    program: str
    title: str
    text: str
    left_out: frozenset[int]
    notes: tuple[Note, ...]


def carry_over(objects: list[Json], *, image: str = "") -> tuple[list[Carried], list[Note]]:
    """(the autoscalers among ``objects`` that can be carried over; notes about the others). ``image`` is that of gpuscaler, if stated."""
    places = {id(manifest): index for index, manifest in enumerate(objects)}
    carried, notes = [], []
    found = list(autoscalers(objects))
    needs = Needs(objects if found else [])
    elsewhere = [item for item in objects if key_of(item) == PRIORITIES and namespace_of(item) not in ("", PRIORITIES_NAMESPACE)]
    if found:
        notes += [Note(name_of(item), "gpuscaler reads it in kube-system only: move it there", places[id(item)]) for item in elsewhere]
    for place, item in enumerate(objects):
        if program := installed_by(item):
            message = (
                f"it installs {program}, and passes through: {program} goes on running, and must not run beside gpuscaler. Take it out of "
                "there before you install gpuscaler; its values can be converted, as helm get values RELEASE --output yaml prints them"
            )
            notes.append(Note(name_of(item), message, place))
    for autoscaler in found:
        index, title = places[id(autoscaler.workload)], name_of(autoscaler.workload)
        cloud, called = _cloud(autoscaler)
        if not cloud:
            message = f"it runs {autoscaler.program} for {called}, and gpuscaler drives {_DRIVEN}: passed through, no run file is written"
            notes.append(Note(title, message, index))
            continue
        draft = Draft(f"{autoscaler.program}, {title},", cloud=cloud, image=image)
        _carry(autoscaler, draft)
        _carry_pods(autoscaler, draft)
        gone = list(needs.leftovers(autoscaler))
        notes_of = [Note(title, _left_out(autoscaler), index), *(Note(title, message, index) for message in draft.notes)]
        notes_of += [Note(name_of(item), f"left out: {reason}", places[id(item)]) for item, reason in gone]
        left_out = frozenset({index, *(places[id(item)] for item, _ in gone)})
        carried.append(Carried(index, autoscaler.program, title, draft.text, left_out, tuple(notes_of)))
    return carried, notes


def _cloud(autoscaler: Autoscaler) -> tuple[str, str]:
    if autoscaler.program == CLUSTER_AUTOSCALER:
        return cluster_autoscaler.cloud_of(list(autoscaler.flags))
    return ("azure", "azure") if autoscaler.program == ACS else ("aws", "aws")


def _carry(autoscaler: Autoscaler, draft: Draft) -> None:
    places = Places(autoscaler.variables, text(autoscaler.container.get("image")))
    if autoscaler.program == CLUSTER_AUTOSCALER:
        cluster_autoscaler.carry(list(autoscaler.flags), draft, places)
    elif autoscaler.program == ACS:
        ancestors.carry_acs(list(autoscaler.flags), draft, places)
    else:
        ancestors.carry_openai(list(autoscaler.flags), draft, places)


def _carry_pods(autoscaler: Autoscaler, draft: Draft) -> None:
    """Carry where the pods run; what the chart decides well by itself is only noted."""
    template = pod_template(autoscaler.workload) or {}
    spec = get_mapping(template, "spec")
    selector = {str(key): text(value) for key, value in get_mapping(spec, "nodeSelector").items() if not isinstance(value, dict | list)}
    if selector:
        draft.controller["nodeSelector"] = selector
        draft.check("nodeSelector became controller.nodeSelector of the chart: see that some node has all of these labels today")
    tolerations: Any = spec.get("tolerations")
    if isinstance(tolerations, list) and tolerations:
        draft.controller["tolerations"] = tolerations
        draft.notes.append("tolerations became controller.tolerations of the chart")
    annotations = get_mapping(get_mapping(template, "metadata"), "annotations")
    if spec.get("affinity") or any(str(key).startswith("scheduler.alpha.kubernetes.io/") for key in annotations):
        draft.notes.append("affinity is left out: the chart keeps gpuscaler off the machines of its own pools and off nodes with GPUs")
    if lost := _unread_variables(autoscaler):
        draft.notes.append(f"the environment variables {', '.join(lost)} are left out: the chart does not set them for gpuscaler")
    beside = [text(item.get("name")) for item in containers(autoscaler.workload) if item is not autoscaler.container]
    if beside:
        draft.notes.append(f"the containers {', '.join(beside)} beside it are left out, too")


def _unread_variables(autoscaler: Autoscaler) -> list[str]:
    """The variables of the container, by name, that were read for no flag and no account."""
    words = [
        text(word) for key in ("command", "args") if isinstance(autoscaler.container.get(key), list) for word in autoscaler.container[key]
    ]
    read = mentioned(words)
    names = dict.fromkeys(text(variable.get("name")) for variable in get_items(autoscaler.container, "env"))
    return [name for name in names if name and name not in VARIABLES and name not in read]


def _left_out(autoscaler: Autoscaler) -> str:
    namespace = namespace_of(autoscaler.workload)
    kind, name = text(autoscaler.workload.get("kind")).lower(), text(get_mapping(autoscaler.workload, "metadata").get("name"))
    where = f" --namespace {namespace}" if namespace else ""
    if autoscaler.workload.get("kind") == CHART:
        return f"left out: {autoscaler.program} must not run beside gpuscaler. Run helm uninstall for its release before you install it"
    return (
        f"left out: {autoscaler.program} must not run beside gpuscaler. Run kubectl delete {kind} {name}{where} before you install it; "
        "docs/how-to/move-from-cluster-autoscaler.md hands over group by group"
    )
