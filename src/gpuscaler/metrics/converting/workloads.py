"""Deployments, DaemonSets, StatefulSets and ReplicaSets of extensions/v1beta1, apps/v1beta1 and apps/v1beta2 as apps/v1.

Source: the Kubernetes API reference of these versions, and its guide on deprecated API versions.
"""

from gpuscaler.metrics.converting.objects import Json, Say, Unconvertible, mapping, pod_template, seen, text

#: What a version filled in where a file said nothing, and apps/v1 fills in otherwise.
_DEPLOYMENT = {"progressDeadlineSeconds": (600, "waited for ever"), "revisionHistoryLimit": (10, "kept all")}

#: Whose pods were replaced by hand unless a file said otherwise.
_BY_HAND = frozenset({("DaemonSet", "extensions/v1beta1"), ("StatefulSet", "apps/v1beta1")})


def convert(one: Json, say: Say) -> None:
    """Make ``one`` an apps/v1 object. Raises :class:`~.objects.Unconvertible` where it can match no pods."""
    former = text(one.get("apiVersion"))
    one["apiVersion"] = "apps/v1"
    spec = mapping(one, "spec")
    for key in ("rollbackTo", "templateGeneration"):
        if spec.pop(key, None) is not None:
            say(f"left out spec.{key}, which is gone")
    _selector(one, spec, say)
    kind = one.get("kind")
    if kind == "StatefulSet" and not spec.get("serviceName"):
        spec["serviceName"] = text(seen(one, "metadata").get("name"))
        say(f"added spec.serviceName: {spec['serviceName']}; a StatefulSet needs a Service")
    if "updateStrategy" not in spec and (kind, former) in _BY_HAND:
        spec["updateStrategy"] = {"type": "OnDelete"}
        say("added spec.updateStrategy.type: OnDelete, as it was where a file said nothing; RollingUpdate replaces pods by itself")
    if kind == "Deployment" and former == "extensions/v1beta1":
        for key, (value, meant) in _DEPLOYMENT.items():
            if key not in spec:
                say(f"spec.{key} is {value} where a file says nothing, which {meant} before")


def _selector(one: Json, spec: Json, say: Say) -> None:
    selector = spec.get("selector")
    if selector:
        return
    labels = seen(seen(pod_template(one) or {}, "metadata"), "labels")
    if not labels:
        raise Unconvertible("saw neither spec.selector nor labels of its pods, expected both; add spec.template.metadata.labels")
    spec["selector"] = {"matchLabels": dict(labels)}
    say("added spec.selector, from the labels of its pods")
