"""Reports, once for each, on pools and instance types that are no longer bought because their machines kept failing."""

from collections.abc import Iterator, Mapping

from gpuscaler.lifecycle.interruptions import Remark
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
