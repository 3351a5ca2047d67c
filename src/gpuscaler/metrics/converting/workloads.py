"""Converts Deployments, DaemonSets, StatefulSets and ReplicaSets of extensions/v1beta1, apps/v1beta1 and apps/v1beta2 to apps/v1.

Source: the Kubernetes API reference of these versions, and its guide on deprecated API versions.
"""

from gpuscaler.metrics.converting.objects import Json, Say, Unconvertible, mapping, pod_template, seen, text

#: Fields with another default in apps/v1, and the meaning of the old default.
_DEPLOYMENT = {"progressDeadlineSeconds": (600, "waited forever"), "revisionHistoryLimit": (10, "kept all")}

#: Kinds and versions with the update strategy OnDelete as their default.
_BY_HAND = frozenset({("DaemonSet", "extensions/v1beta1"), ("StatefulSet", "apps/v1beta1")})


def convert(one: Json, say: Say) -> None:
    """Convert ``one`` to apps/v1. Raises :class:`~.objects.Unconvertible` if it has no labels to select pods by."""
    former = text(one.get("apiVersion"))
    one["apiVersion"] = "apps/v1"
    spec = mapping(one, "spec")
    for key in ("rollbackTo", "templateGeneration"):
        if spec.pop(key, None) is not None:
            say(f"removed spec.{key}, which does not exist any more")
    _selector(one, spec, say)
    kind = one.get("kind")
    if kind == "StatefulSet" and not spec.get("serviceName"):
        spec["serviceName"] = text(seen(one, "metadata").get("name"))
        say(f"added spec.serviceName: {spec['serviceName']}; a StatefulSet needs a Service")
    if "updateStrategy" not in spec and (kind, former) in _BY_HAND:
        spec["updateStrategy"] = {"type": "OnDelete"}
        say("added spec.updateStrategy.type: OnDelete, the default of the old version; RollingUpdate replaces pods automatically")
    if kind == "Deployment" and former == "extensions/v1beta1":
        for key, (value, meant) in _DEPLOYMENT.items():
            if key not in spec:
                say(f"spec.{key} is now {value} by default; the old default {meant}")


def _selector(one: Json, spec: Json, say: Say) -> None:
    selector = spec.get("selector")
    if selector:
        return
    labels = seen(seen(pod_template(one) or {}, "metadata"), "labels")
    if not labels:
        raise Unconvertible("saw neither spec.selector nor labels of its pods, expected both; add spec.template.metadata.labels")
    spec["selector"] = {"matchLabels": dict(labels)}
    say("added spec.selector, from the labels of its pods")
