"""Commands that let pods tolerate taints."""

from collections.abc import Iterable

from gpuscaler.doctor.commands import Target, kubectl_patch
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.taints import Taint

#: Tolerations that the DaemonSet controller adds itself, and the template need not have.
_ADDED = "node.kubernetes.io/"


def toleration_of(taint: Taint) -> dict[str, str]:
    """The toleration of exactly ``taint``, as the API has it."""
    value = {"operator": "Equal", "value": taint.value} if taint.value else {"operator": "Exists"}
    return {"key": taint.key, **value, "effect": taint.effect}


def tolerations_with(template: PodSpec, taints: Iterable[Taint]) -> list[dict[str, str]]:
    """The tolerations of ``template``, without those that the DaemonSet controller adds, and those of ``taints``."""
    own = [toleration for toleration in template.tolerations if not toleration.key.startswith(_ADDED)]
    fields = (
        {"key": toleration.key, "operator": toleration.operator, "value": toleration.value, "effect": toleration.effect}
        for toleration in own
    )
    return [{name: value for name, value in item.items() if value} for item in fields] + [toleration_of(taint) for taint in taints]


def add_tolerations(target: Target, template: PodSpec, taints: Iterable[Taint]) -> str:
    """The command that adds tolerations of ``taints`` to the pod template of ``target``, whose specification is ``template``."""
    path = "/spec/tolerations" if target.kind == "Pod" else "/spec/template/spec/tolerations"
    tolerations = [toleration_of(taint) for taint in taints]
    if any(not toleration.key.startswith(_ADDED) for toleration in template.tolerations):
        return kubectl_patch(target, [{"op": "add", "path": f"{path}/-", "value": item} for item in tolerations], strategy="json")
    return kubectl_patch(target, [{"op": "add", "path": path, "value": tolerations}], strategy="json")
