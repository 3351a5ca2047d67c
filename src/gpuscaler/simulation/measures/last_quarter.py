"""The last quarter of a trace by itself.

Settings that were tuned on a trace do well on that trace. None of our defaults is tuned on the last quarter of any trace, so that every
report also shows how a comparison comes out on unseen data.
"""

from collections.abc import Sequence

from msgspec import Struct

from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.measures.waits import PodWait, Wait, wait_of


class LastQuarter(Struct, frozen=True, gc=False):
    """The part of a run from second ``after`` on, when three quarters of the submission period are over.

    ``cost`` is the cost of all machines from then to the last submission, in dollars: later costs are the tail of long jobs. ``wait`` is
    that of the ``pods`` created since then, of which ``served`` ran.
    """

    after: float
    cost: float
    pods: int
    served: int
    wait: Wait


def last_quarter(
    cloud: SimulatedCloud, waits: Sequence[PodWait], *, began: float, last_submission: float, ended: float
) -> LastQuarter | None:
    """The last quarter of a run; None if all jobs were submitted at once. Times are in seconds since the epoch."""
    if last_submission <= began:
        return None
    after = began + 0.75 * (last_submission - began)
    late_waits = [pod_wait for pod_wait in waits if pod_wait.since >= after]
    cost = _cost(cloud, after, last_submission, ended=ended)
    return LastQuarter(after - began, cost, len(late_waits), sum(pod_wait.ran for pod_wait in late_waits), wait_of(late_waits))


def _cost(cloud: SimulatedCloud, begin: float, end: float, *, ended: float) -> float:
    """Return what machines are billed from ``begin`` to ``end``."""
    cost = 0.0
    for machine in cloud.history():
        since = max(machine.bought_at, begin)
        until = min(machine.bought_at + cloud.billed_seconds(machine, ended), end)
        if until > since:
            cost += cloud.markets.cost(machine.offering, since, until)
    return cost
