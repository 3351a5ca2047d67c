"""How containers get at the driver: RuntimeClasses that do not exist, and files of the host that are mounted instead."""

from collections.abc import Iterable

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.commands import kubectl_apply, kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix
from gpuscaler.model.accelerators import is_device

#: Parts of the paths of NVIDIA's driver on a host.
_DRIVER_PATHS = ("nvidia", "libcuda", "/cuda")
#: Folders of a host that hold the driver among other things: a pod with GPUs that mounts them wants the driver.
_SYSTEM_PATHS = ("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/lib", "/lib64", "/opt", "/dev")


def find_missing_runtime_classes(evidence: Evidence) -> Iterable[Finding]:
    """D41: pods of a RuntimeClass that does not exist."""
    existing = {item.name for item in evidence.of("RuntimeClass")}
    for document in _templates(evidence):
        template = template_of(document)
        name = template.text("spec", "runtimeClassName") if template is not None else ""
        if name and name not in existing:
            nvidia = "nvidia" in name
            created = f"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: {name}"
            yield Finding(
                "D41",
                CRITICAL,
                document.title,
                ".".join((*TEMPLATES[document.kind], "spec", "runtimeClassName")),
                f"{name}, which does not exist",
                f"an existing RuntimeClass{_listed(existing)}",
                "the API server refuses to create the pods",
                Fix(
                    (kubectl_apply(created),) if nvidia else (),
                    "the container runtime of the nodes needs the handler: NVIDIA's container toolkit installs it, or GPU operator"
                    if nvidia
                    else "correct the name, or create the RuntimeClass",
                ),
                document.place,
            )


def _listed(names: set[str]) -> str:
    return f": {', '.join(sorted(names)[:3])}" if names else ""


def _templates(evidence: Evidence) -> Iterable[Document]:
    """The objects with pods that a person edits: pods and ReplicaSets of others are left out."""
    for document in evidence.of(*TEMPLATES):
        if not any(owner.flag("controller") for owner in document.parts("metadata", "ownerReferences")):
            yield document


def find_host_drivers(evidence: Evidence) -> Iterable[Finding]:
    """D41: pods that mount the driver of their node, except for DaemonSets, which install and watch it."""
    for document in _templates(evidence):
        template = template_of(document)
        if document.kind == "DaemonSet" or template is None:
            continue
        wants_gpus = any(
            is_device(str(name)) or "gpu" in str(name)
            for _, container in containers_of(template)
            for part in ("limits", "requests")
            for name in container.part("resources", part).data
        )
        paths = {volume.text("name"): volume.text("hostPath", "path").rstrip("/") for volume in template.parts("spec", "volumes")}
        mounted = {name: path for name, path in paths.items() if path and _is_driver(path, wants_gpus=wants_gpus)}
        if mounted:
            yield Finding(
                "D41",
                WARNING,
                document.title,
                ".".join((*TEMPLATES[document.kind], "spec", "volumes")),
                f"hostPath {', '.join(sorted(set(mounted.values())))}",
                "no such volumes: the container runtime adds the driver to containers with GPUs",
                "the pod runs only on nodes with exactly this driver, sees files of the host, and may keep its node from being removed",
                _without(document, template, mounted),
                document.place,
            )


def _is_driver(path: str, *, wants_gpus: bool) -> bool:
    return any(part in path for part in _DRIVER_PATHS) or (wants_gpus and (path in _SYSTEM_PATHS or path.startswith("/usr/lib/")))


def _without(document: Document, template: Document, mounted: dict[str, str]) -> Fix:
    if document.kind not in CHANGEABLE and document.kind != "CronJob":
        return Fix(advice="remove these volumes and their mounts, and create it again: its pods cannot be changed")
    spec: dict[str, object] = {"volumes": [{"name": name, "$patch": "delete"} for name in mounted]}
    for kind in ("containers", "initContainers"):
        changed = [
            {"name": container.text("name"), "volumeMounts": [{"mountPath": path, "$patch": "delete"} for path in paths]}
            for container in template.parts("spec", kind)
            if (paths := [mount.text("mountPath") for mount in container.parts("volumeMounts") if mount.text("name") in mounted])
        ]
        if changed:
            spec[kind] = changed
    patch: dict[str, object] = {"spec": spec}
    for name in reversed(TEMPLATES[document.kind]):
        patch = {name: patch}
    return Fix((kubectl_patch(document, patch, strategy="strategic"),), "remove its paths from PATH and LD_LIBRARY_PATH, too")


CHECKS = (
    Check("D41", "RuntimeClasses of pods", ("RuntimeClass",), find_missing_runtime_classes, reads=WORKLOADS),
    Check("D41", "drivers of the host in pods", (), find_host_drivers, reads=WORKLOADS, on_files=True),
)
