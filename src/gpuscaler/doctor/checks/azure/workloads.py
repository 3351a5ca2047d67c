"""Pods with GPUs that no spot node takes, where all pools with GPUs are of spot machines."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuscaler.doctor.checks.azure.account import SPOT, adopted, azure_check
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix

_KEY, _VALUE, _EFFECT = "kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


def find_missing_tolerations(evidence: Evidence) -> Iterator[Finding]:
    """D47: AKS taints spot nodes; without the toleration a pod gets a machine only of another pool, and there is none."""
    pools = [group for group in adopted(evidence) if group.has_gpus]
    if not pools or any(group.markets != (SPOT,) or not group.cluster for group in pools):
        return
    for document in evidence.of(*TEMPLATES):
        template = template_of(document)
        owned = any(owner.flag("controller") for owner in document.parts("metadata", "ownerReferences"))
        if template is None or owned or document.kind == "DaemonSet" or not _wants_gpus(template) or _tolerates(template):
            continue
        if document.text("status", "phase") in ("Succeeded", "Failed", "Running"):
            continue
        yield Finding(
            "D47",
            CRITICAL,
            document.title,
            "spec.tolerations" if document.kind == "Pod" else "spec.template.spec.tolerations",
            "no toleration of the taint of spot nodes",
            f"a toleration of {_KEY}={_VALUE}:{_EFFECT}, since all pools with GPUs are of spot machines",
            "its pods fit no node, so no machine is bought for them",
            _fix(document, template),
        )


def _wants_gpus(template: Document) -> bool:
    """Whether a container asks for GPUs."""
    for _, container in containers_of(template):
        for kind in ("limits", "requests"):
            amounts: Mapping[str, Any] = container.part("resources", kind).data
            if any(str(amounts[name]).strip() not in ("0", "") for name in _GPUS if name in amounts):
                return True
    return False


def _tolerates(template: Document) -> bool:
    for toleration in template.parts("spec", "tolerations"):
        every = toleration.text("operator") == "Exists"
        key, effect = toleration.text("key"), toleration.text("effect")
        if effect in ("", _EFFECT) and ((every and key in ("", _KEY)) or (key == _KEY and toleration.text("value") == _VALUE)):
            return True
    return False


def _fix(document: Document, template: Document) -> Fix:
    if document.kind == "Job":
        return Fix(advice="add the toleration to the template of the Job, and create it again: a template cannot be changed")
    toleration = {"key": _KEY, "operator": "Equal", "value": _VALUE, "effect": _EFFECT}
    path = "/".join(("", *TEMPLATES[document.kind], "spec", "tolerations"))
    there = isinstance(template.value("spec", "tolerations"), list)
    change = {"op": "add", "path": f"{path}/-", "value": toleration} if there else {"op": "add", "path": path, "value": [toleration]}
    return Fix((kubectl_patch(document, [change], strategy="json"),))


CHECKS = (azure_check("D47", "tolerations of spot nodes", ("Deployment", "Pod"), find_missing_tolerations),)
