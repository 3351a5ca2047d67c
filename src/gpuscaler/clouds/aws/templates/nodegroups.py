"""Decodes EKS managed node groups from DescribeNodegroup: their labels and taints, which no tag of the Auto Scaling group repeats."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.clouds.aws.api.spelling import respelled
from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.taints import Taint

_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}
NAME_LABEL = "eks.amazonaws.com/nodegroup"


class Nodegroup(Struct, frozen=True, gc=False):
    """A managed node group. ``own_labels`` identify its nodes, ``labels`` are all labels that they carry."""

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()

    @property
    def own_labels(self) -> Mapping[str, str]:
        return {NAME_LABEL: self.name}


def nodegroup_of(reply: Reply) -> Nodegroup:
    """Decode ``nodegroup``; labels and taints that Kubernetes would reject are left out. Raises KeyError without a name."""
    name = reply["nodegroupName"]
    pairs = (reply.get("labels") or {}).items()
    labels = {key: value for key, value in pairs if is_qualified_name(key) and isinstance(value, str) and is_label_value(value)}
    taints = [
        Taint(taint.get("key", ""), taint.get("value") or "", _EFFECTS[respelled(taint["effect"], _EFFECTS)])
        for taint in reply.get("taints") or ()
        if respelled(taint.get("effect"), _EFFECTS) in _EFFECTS and is_qualified_name(taint.get("key", ""))
    ]
    return Nodegroup(name, {NAME_LABEL: name, **labels}, tuple(taints))


def nodegroup_named(name: str) -> Nodegroup:
    """A node group of which only the name is known, because describing it is denied."""
    return Nodegroup(name, {NAME_LABEL: name})
