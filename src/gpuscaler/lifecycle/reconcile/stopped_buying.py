"""Why nothing is bought: pools and instance types whose machines kept failing, reported once for each, and machines that may count."""

from collections.abc import Iterator, Mapping, Set

from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.state import breakers, offering_events
from gpuscaler.planning.state.breaker_messages import describe_breaker

#: What people should check, by the cause of the breaker.
CHECKS: Mapping[str, str] = {
    offering_events.FRUITLESS: "find out why its pods do not get onto its nodes: gpuscaler why pod, and kube-scheduler's Events on them",
    offering_events.ABSENT: "check how its machines join the cluster: their image, network and permissions",
    offering_events.LACKING: (
        "check the device plugin and its pods on a node of the pool: whether they run there, and which resources they register"
    ),
}


def stopped_buying(before: breakers.Breakers, now_open: breakers.Breakers, now: float) -> Iterator[Remark]:
    """Report what is no longer bought because its machines never became nodes, or never showed their promised resources."""
    counted = {(breaker.target, breaker.lacks) for breaker in before.open if breakers.has_enough_strikes(breaker)}
    for breaker in now_open.open:
        if breaker.cause in CHECKS and breakers.has_enough_strikes(breaker) and (breaker.target, breaker.lacks) not in counted:
            yield Remark("", "", f"{describe_breaker(breaker, now)}; {CHECKS[breaker.cause]}")


def describe_uncounted(cluster: Cluster, policy: Policy, unlisted: Set[str]) -> str:
    """Return why nothing is bought before the cloud has listed its machines: ``unlisted`` nodes may be of a pool. Empty if none may be.

    They are neither counted, since they may be machines of others, nor may more be bought than the limits allow if they are ours.
    """
    possible = members({name: cluster.nodes[name] for name in unlisted}, policy, frozenset())
    if not possible:
        return ""
    first, more = min(possible), len(possible) - 1
    others = f" and {more} more" if more else ""
    return (
        f"nothing is bought before the cloud has listed its machines: by its instance type, node {first}{others} may be of pool "
        f"{possible[first].pool.name} and count for its limits"
    )
