"""Names of resources that no plugin registers: old, misspelt or of another vendor."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.commands import ObjectName, kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix
from gpuscaler.model.accelerators import right_name
from gpuscaler.model.pods import PodSpec

_EFFECT = "no node offers it: the API server refuses the pods, or they stay pending for ever"


def find_wrong_resource_names(evidence: Evidence) -> Iterable[Finding]:
    """D39: containers that request GPUs by a name that no plugin registers."""
    known = _offered(evidence)
    read: set[ObjectName] = set()
    for document in evidence.of(*TEMPLATES):
        owner = next((item for item in document.parts("metadata", "ownerReferences") if item.flag("controller")), None)
        if owner is not None and owner.text("kind") in TEMPLATES:
            # Its owner has the same mistake, and is the one to edit.
            read.add(ObjectName(document.kind, document.namespace or "default", document.name))
            continue
        found = list(_in_document(document, known))
        if found:
            read.add(ObjectName(document.kind, document.namespace or "default", document.name))
        yield from found
    for workload in evidence.cluster.workloads.values():
        target = ObjectName(workload.kind, workload.namespace, workload.name)
        if target not in read and workload.template is not None and not workload.owner.kind:
            yield from _in_spec(target, "spec.template.spec", workload.template, known)
    for pod in evidence.cluster.pods.values():
        target = ObjectName("Pod", pod.namespace, pod.name)
        if not (pod.owner.kind or pod.finished or target in read):
            yield from _in_spec(target, "spec", pod.spec, known)


def _offered(evidence: Evidence) -> frozenset[str]:
    """The resources that some node offers: a name of a cluster's own plugin is not wrong."""
    return frozenset(name for node in evidence.cluster.nodes.values() for name, amount in node.allocatable.items() if amount)


def _in_document(document: Document, known: frozenset[str]) -> Iterator[Finding]:
    template = template_of(document)
    for path, container in containers_of(template) if template is not None else ():
        wrong: dict[str, str] = {}
        for part in ("limits", "requests"):
            wrong |= {
                name: right_name(name) for name in container.part("resources", part).data if right_name(str(name)) and name not in known
            }
        for name, meant in wrong.items():
            yield Finding(
                "D39",
                CRITICAL,
                document.title,
                f"{'.'.join((*TEMPLATES[document.kind], path))}.resources.limits[{name}]",
                name,
                f"{meant} (did you mean that?)",
                _EFFECT,
                _rename(document, path, container, name, meant),
                document.place,
            )


def _rename(document: Document, path: str, container: Document, name: str, meant: str) -> Fix:
    if document.kind not in CHANGEABLE and document.kind != "CronJob":
        return Fix(advice=f"write {meant}, and create it again: its pods cannot be changed")
    base = "/" + "/".join((*TEMPLATES[document.kind], *path.replace("[", ".").replace("]", "").split("."))) + "/resources"
    operations = []
    for part in ("limits", "requests"):
        amounts = container.part("resources", part).data
        if name in amounts:
            operations.append({"op": "remove", "path": f"{base}/{part}/{_escaped(name)}"})
            operations.append({"op": "add", "path": f"{base}/{part}/{_escaped(meant)}", "value": amounts[name]})
    return Fix((kubectl_patch(document, operations, strategy="json"),))


def _escaped(key: str) -> str:
    """``key`` as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _in_spec(target: ObjectName, path: str, spec: PodSpec, known: frozenset[str]) -> Iterator[Finding]:
    """The same where only planning's view of the object is known, without its containers."""
    for name in spec.requests:
        if (meant := right_name(name)) and name not in known:
            yield Finding(
                "D39",
                CRITICAL,
                target.title,
                f"{path}.containers[].resources.limits[{name}]",
                name,
                f"{meant} (did you mean that?)",
                _EFFECT,
                Fix(advice=f"write {meant} in its resources"),
            )


CHECKS = (Check("D39", "names of resources", (CLUSTER,), find_wrong_resource_names, reads=WORKLOADS, continuous=True, on_files=True),)
