"""The last quarter of a trace by itself.

Settings that were chosen by looking at a trace do well on that trace. No default of ours is to be tuned on the last quarter of any, so that
whoever doubts a comparison finds in each report how it comes out there.
"""

from collections.abc import Sequence

from msgspec import Struct

from gpuscaler.clouds.simulated import SimulatedCloud
from gpuscaler.simulation.waits import PodWait, Wait, wait_of


class LastQuarter(Struct, frozen=True, gc=False):
    """From ``after`` seconds into a run on, when three quarters of the time are over in which jobs are submitted.

    ``cost`` is of all machines from then on, in dollars; ``wait`` is of the ``pods`` that were created since, of which ``served`` ran.
    """

    after: float
    cost: float
    pods: int
    served: int
    wait: Wait


def last_quarter(
    cloud: SimulatedCloud, waits: Sequence[PodWait], *, began: float, last_submission: float, ended: float
) -> LastQuarter | None:
    """The last quarter of a run; None where all jobs were submitted at once. Times are in seconds since the epoch."""
    if last_submission <= began:
        return None
    after = began + 0.75 * (last_submission - began)
    late = [one for one in waits if one.since >= after]
    return LastQuarter(after - began, _cost(cloud, after, ended), len(late), sum(one.ran for one in late), wait_of(late))


def _cost(cloud: SimulatedCloud, after: float, ended: float) -> float:
    """What machines are billed from ``after`` on."""
    spans = [(machine, machine.bought_at + cloud.billed_seconds(machine, ended)) for machine in cloud.history()]
    return sum(cloud.markets.cost(machine.offering, max(machine.bought_at, after), end) for machine, end in spans if end > after)
