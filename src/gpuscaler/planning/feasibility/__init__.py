"""kube-scheduler's filters, evaluated over a whole node table at once.

Each module is one plug-in (or the shared part of several) of kube-scheduler 1.35 with its feature gates at their defaults, with the same
names and corner cases. A filter returns a mask of the rows that pass. :mod:`gpuscaler.planning.feasibility.snapshot` combines them.
"""

from gpuscaler.model.table import Mask

#: The filter plug-ins, in the order in which kube-scheduler's default profile runs them. NodeName is missing: planned pods are unbound,
#: and a ``PodSpec`` carries no node name.
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
#: Plug-ins with results that change as other pods are placed.
BETWEEN_PODS = ("PodTopologySpread", "InterPodAffinity")

#: Rows that pass, by the name of the plug-in.
Passes = dict[str, Mask]
