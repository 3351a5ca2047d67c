"""The policies of a replay, by name."""

from collections.abc import Callable, Mapping, Sequence

from gpuscaler.model.pools import Policy
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.policies.peers.cluster_autoscaler import ClusterAutoscaler
from gpuscaler.simulation.policies.peers.karpenter import Karpenter
from gpuscaler.simulation.policies.peers.variants import peer_by_name
from gpuscaler.simulation.policies.static import Static
from gpuscaler.simulation.traces.workload import Member
from gpuscaler.simulation.world.autoscaler import Autoscaler

#: Factories that take the pools and make an autoscaler for one run.
POLICIES: Mapping[str, Callable[[Policy], Autoscaler]] = {
    "gpuscaler": Gpuscaler,
    "karpenter": Karpenter,
    "cluster-autoscaler": ClusterAutoscaler,
}

#: A bound and no autoscaler: there is no replay for it.
HINDSIGHT = "optimal-hindsight"

#: Every name that may be compared.
NAMES = (*POLICIES, Static.name, HINDSIGHT)


def autoscaler_of(name: str, policy: Policy, pods: Sequence[Member], *, steering: bool = True) -> Autoscaler:
    """An autoscaler for one run of ``pods``; a peer may be named with its settings.

    Without ``steering`` gpuscaler's machines open to all pods at once, as its peers' do.
    """
    if name == Static.name:
        return Static(policy, pods)
    if name == "gpuscaler":
        return Gpuscaler(policy, steers=steering)
    return peer_by_name(name, policy) or POLICIES[name](policy)
