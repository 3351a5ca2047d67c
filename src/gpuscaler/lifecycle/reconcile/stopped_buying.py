"""Pools and types of which nothing is bought any more, since machine after machine came to nothing: what is reported, once."""

from collections.abc import Iterator, Mapping

from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.planning.state import breakers, offering_events
from gpuscaler.planning.state.breaker_messages import told

#: Where people look for what keeps machines from coming up.
LOOK: Mapping[str, str] = {
    offering_events.FRUITLESS: "see why its pods do not come to its nodes: gpuscaler why pod, and the scheduler's Events on them",
    offering_events.ABSENT: "look at how its machines join the cluster: their image, network and permissions",
    offering_events.LACKING: (
        "look at the device plugin and its pods on a node of the pool: whether they run there, and which resources they name"
    ),
}


def stopped_buying(before: breakers.Breakers, now_open: breakers.Breakers, now: float) -> Iterator[Remark]:
    """What nothing is bought of any more since machine after machine never became a node, or never showed what it is sold with."""
    known = {(one.target, one.lacks) for one in before.open if breakers.counts(one)}
    for one in now_open.open:
        if one.cause in LOOK and breakers.counts(one) and (one.target, one.lacks) not in known:
            yield Remark("", "", f"{told(one, now)}; {LOOK[one.cause]}")
