"""The namespaces, and the least standard that pods in them must meet."""

from collections.abc import Iterable, Iterator

from gpuscaler.generating.description.resolved import EXAMPLES_NAMESPACE, EXPORTER_NAMESPACE, Description
from gpuscaler.generating.kubernetes.existing import exists
from gpuscaler.generating.kubernetes.workloads.placing import places
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, Step, objects_file


def namespace_files(description: Description) -> Iterable[GeneratedFile]:
    yield objects_file(
        "kubernetes/namespaces.yaml",
        "the namespaces of gpuscaler, of its exporter, of the teams and of the examples",
        _namespaces(description),
        edit="once no pod of the teams' namespaces breaks the standard baseline, write `enforce` in place of `warn` and `audit`; until "
        "then, the API server only warns"
        if _reused(description)
        else "",
        checks=_checks(description),
    )


def _reused(description: Description) -> bool:
    """Whether namespaces of teams may have pods already."""
    return exists(description) and bool(description.teams)


def _checks(description: Description) -> tuple[Step, ...]:
    if not _reused(description):
        return ()
    names = " ".join(description.team_namespaces.values())
    return (
        Step(
            say="This prints a warning for each pod that breaks it, in the namespaces that exist, and changes nothing:",
            commands=f"kubectl label --dry-run=server --overwrite namespace {names} pod-security.kubernetes.io/enforce=baseline",
        ),
    )


def _namespaces(description: Description) -> Iterator[Tree]:
    yield _namespace(
        description.controller.namespace,
        "The namespace of gpuscaler itself, which the trust of its cloud identity names, too: in another namespace it gets no credentials.",
        {"enforce": "restricted"},
        "gpuscaler needs nothing of its node, so the strictest Pod Security Standard admits it. A pod that asks for more is refused here.",
    )
    yield _namespace(
        EXPORTER_NAMESPACE,
        "The exporter of GPU metrics has a namespace of its own, because it needs what the namespace of the controller forbids.",
        {"enforce": "privileged"},
        "The exporter reads the kubelet's socket through a folder of the node. Only the standard privileged admits that.",
    )
    for team, namespace in description.team_namespaces.items():
        yield _namespace(
            namespace,
            f"The namespace of the team {team}. Its quota, its rights and its network policy apply to it as a whole.",
            *_standard_of_teams(description),
        )
    if any(place.namespace == EXAMPLES_NAMESPACE for place in places(description).values()):
        yield _namespace(
            EXAMPLES_NAMESPACE,
            "The example workloads have a namespace of their own, so that you can delete them all by deleting it.",
            {"enforce": "restricted"},
            "The examples run as an ordinary user without privileges, and the API server refuses changes that would give them some.",
        )


def _standard_of_teams(description: Description) -> tuple[dict[str, str], str]:
    """Return the levels by mode, and why."""
    if exists(description):
        return {"warn": "baseline", "audit": "baseline"}, (
            "Pods that could take over their node get a warning and an entry in the audit log. They are not refused: the namespace may "
            "exist, and its pods, which were never checked, would not come back after their next restart."
        )
    return {"enforce": "baseline", "warn": "restricted"}, (
        "Pods that could take over their node are refused; pods that merely lack settings of the stricter standard get a warning."
    )


def _namespace(name: str, why: str, levels: dict[str, str], why_levels: str) -> Tree:
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    return because(why, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": because(why_levels, labels)}})
