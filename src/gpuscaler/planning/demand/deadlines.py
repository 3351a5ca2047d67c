"""Jobs with a deadline: they run on spot as long as that is safe, otherwise on-demand.

The setting is that of "Can't Be Late" (Wu et al., NSDI 2024). Three rules decide:

1. Never make a choice after which on-demand would no longer finish in time (:func:`finishes_in_time`).
2. Use spot whenever it is available. Leave on-demand only for spot that was also available at the previous decision: more than a quarter
   of the periods with spot capacity in AWS's data of 2023 end within ten minutes, and a change of machine takes longer.
3. Without spot, wait while the spare time, minus the work that a reclaim undoes, is more than ``PATIENCE`` of the remaining work.
   Otherwise run on-demand until spot is back. Waiting longer would use up spare time that spot needs later, because every reclaim
   costs some of it.

``PATIENCE`` comes from a model, not from these data. In the Markov decision process in which spot alternates between two hours available
and two hours unavailable, on-demand costs three times as much and a change takes twelve minutes, the optimal policy has the shape of these
rules, with thresholds between a fifth and a quarter of the remaining work, for 4 to 48 hours of work.
"""

from msgspec import Struct

WAIT, SPOT, ON_DEMAND = "", "spot", "on-demand"

#: The spare time that is worth keeping, as a fraction of the remaining work.
PATIENCE = 0.2


class Job(Struct, frozen=True, gc=False):
    """The current state of a job with a deadline. Everything except the markets is in seconds.

    ``total`` is the work at the start, ``allowed`` the time for it; ``work`` and ``left`` are what remains of these two. A change of
    machine takes ``changeover`` and undoes up to ``loss`` of the work; the next decision comes after ``step``. ``on`` is the market it runs
    on now, "" for none; ``warming`` is the rest of the changeover there. ``spot`` says whether spot is available, and ``spot_for`` how long
    it has been available.
    """

    total: float
    allowed: float
    work: float
    left: float
    changeover: float
    step: float
    on: str = WAIT
    warming: float = 0.0
    spot: bool = False
    spot_for: float = 0.0
    loss: float = 0.0

    @property
    def spare(self) -> float:
        """The remaining time minus the remaining work."""
        return self.left - self.work


def finishes_in_time(job: Job, choice: str) -> bool:
    """Whether on-demand can still finish in time if ``choice`` holds until the next decision and spot is gone then."""
    left = job.left - job.step
    if choice == WAIT:
        return left >= job.work + job.changeover
    warming = job.warming if choice == job.on else job.changeover
    work = max(0.0, job.work - max(0.0, job.step - warming))
    if work <= 0:
        return True
    ahead = max(0.0, warming - job.step) if choice == ON_DEMAND else job.changeover + job.loss
    return left >= work + ahead


def choose_market(job: Job) -> str:
    """The market for ``job`` until the next decision, or ``WAIT``."""
    if job.spot and (job.on != ON_DEMAND or job.spot_for >= job.step):
        market = SPOT
    elif job.on == ON_DEMAND or job.spare - job.loss <= PATIENCE * job.work:
        market = ON_DEMAND
    else:
        market = WAIT
    return market if finishes_in_time(job, market) else ON_DEMAND
