"""Converts Deployments, DaemonSets, StatefulSets and ReplicaSets of extensions/v1beta1, apps/v1beta1 and apps/v1beta2 to apps/v1.

Source: the Kubernetes API reference of these versions, and its guide on deprecated API versions.
"""

from gpuscaler.converting.objects import AddNote, Json, Unconvertible, ensure_mapping, get_mapping, pod_template, text

#: Fields with another default in apps/v1, and the meaning of the old default.
_DEPLOYMENT = {"progressDeadlineSeconds": (600, "waited forever"), "revisionHistoryLimit": (10, "kept all")}

#: Kinds and versions with the update strategy OnDelete as their default.
_BY_HAND = frozenset({("DaemonSet", "extensions/v1beta1"), ("StatefulSet", "apps/v1beta1")})


def convert(manifest: Json, add_note: AddNote) -> None:
    """Convert ``manifest`` to apps/v1. Raises :class:`~.objects.Unconvertible` if it has no labels to select pods by."""
    former = text(manifest.get("apiVersion"))
    manifest["apiVersion"] = "apps/v1"
    spec = ensure_mapping(manifest, "spec")
    for key in ("rollbackTo", "templateGeneration"):
        if spec.pop(key, None) is not None:
            add_note(f"removed spec.{key}, which does not exist any more")
    _selector(manifest, spec, add_note)
    kind = manifest.get("kind")
    if kind == "StatefulSet" and not spec.get("serviceName"):
        spec["serviceName"] = text(get_mapping(manifest, "metadata").get("name"))
        add_note(f"added spec.serviceName: {spec['serviceName']}; a StatefulSet needs a Service")
    if "updateStrategy" not in spec and (kind, former) in _BY_HAND:
        spec["updateStrategy"] = {"type": "OnDelete"}
        add_note("added spec.updateStrategy.type: OnDelete, the default of the old version; RollingUpdate replaces pods automatically")
    if kind == "Deployment" and former == "extensions/v1beta1":
        for key, (value, old_meaning) in _DEPLOYMENT.items():
            if key not in spec:
                add_note(f"spec.{key} is now {value} by default; the old default {old_meaning}")


def _selector(manifest: Json, spec: Json, add_note: AddNote) -> None:
    selector = spec.get("selector")
    if selector:
        return
    labels = get_mapping(get_mapping(pod_template(manifest) or {}, "metadata"), "labels")
    if not labels:
        raise Unconvertible("saw neither spec.selector nor labels of its pods, expected both; add spec.template.metadata.labels")
    spec["selector"] = {"matchLabels": dict(labels)}
    add_note("added spec.selector, from the labels of its pods")
