"""Who may decide in a replay, by name. A factory is given the pools and makes an autoscaler for one run."""

from collections.abc import Callable, Mapping

from gpuscaler.model.pools import Policy
from gpuscaler.simulation.autoscaler import Autoscaler
from gpuscaler.simulation.ours import Gpuscaler
from gpuscaler.simulation.peers.cluster_autoscaler import ClusterAutoscaler
from gpuscaler.simulation.peers.karpenter import Karpenter

POLICIES: Mapping[str, Callable[[Policy], Autoscaler]] = {
    "gpuscaler": Gpuscaler,
    "karpenter": Karpenter,
    "cluster-autoscaler": ClusterAutoscaler,
}
