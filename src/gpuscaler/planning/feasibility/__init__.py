"""kube-scheduler's filters over a whole node table at once.

Each module is one plug-in (or the shared part of several) of kube-scheduler 1.35 with its feature gates at their defaults: same
names, same corners. A filter returns a mask of the rows that pass. :mod:`gpuscaler.planning.feasibility.snapshot` puts them together.
"""

from gpuscaler.model.table import Mask

#: The plug-ins that filter, in the order in which kube-scheduler's default profile runs them. NodeName is missing: what is planned
#: is unbound, and a specification carries no node name.
ORDER = (
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
)
#: Those of which the result changes as other pods get their places.
BETWEEN_PODS = ("PodTopologySpread", "InterPodAffinity")

#: Rows that pass, by the name of the plug-in that was asked.
Passes = dict[str, Mask]
