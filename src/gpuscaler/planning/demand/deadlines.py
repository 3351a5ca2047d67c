"""Jobs that must be done by a moment: on spot as long as that stays safe, else on-demand.

The setting is that of "Can't Be Late" (Wu et al., NSDI 2024). Three rules decide:

1. Never a choice after which on-demand could no longer be done in time (:func:`safe`).
2. Spot whenever it is there. On-demand is left only for spot that was there at the decision before too: of the spells in AWS's series of
   2023 more than a quarter end within ten minutes, less than a change of machine takes.
3. Where spot is not there, wait while the time to spare, less what a reclaim undoes, is more than ``PATIENCE`` of the work that is left,
   else run on-demand, and go on until spot is back. Waiting longer would spend the time to spare that spot itself needs later on, since
   every reclaim costs some of it.

``PATIENCE`` follows from a model and not from the series: of the Markov decision process in which spot comes and goes for two hours each,
on-demand costs three times as much and a change takes twelve minutes, the best policy has the shape of these rules, with thresholds
between a fifth and a quarter of the work left, for 4 to 48 hours of it.
"""

from msgspec import Struct

WAIT, SPOT, ON_DEMAND = "", "spot", "on-demand"

#: How much time to spare is worth keeping, as a part of the work that is left.
PATIENCE = 0.2


class Job(Struct, frozen=True, gc=False):
    """A job with a deadline, as it stands. Everything but the markets is in seconds.

    ``total`` work was to be done in ``allowed`` time; ``work`` and ``left`` are what remains of them. A change of machine takes
    ``changeover`` and undoes up to ``loss`` of the work; the next decision comes after ``step``. ``on`` is the market it runs on now, ""
    for none; ``warming`` is what is left of the changeover there. ``spot`` says whether a spot machine can be had, ``spot_for`` for how
    long it could.
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
        """Time that is left beyond the work that is left."""
        return self.left - self.work


def safe(job: Job, choice: str) -> bool:
    """Whether on-demand can still be done in time when ``choice`` holds until the next decision and spot is gone then."""
    left = job.left - job.step
    if choice == WAIT:
        return left >= job.work + job.changeover
    warming = job.warming if choice == job.on else job.changeover
    work = max(0.0, job.work - max(0.0, job.step - warming))
    if work <= 0:
        return True
    ahead = max(0.0, warming - job.step) if choice == ON_DEMAND else job.changeover + job.loss
    return left >= work + ahead


def choose(job: Job) -> str:
    """The market for ``job`` until the next decision, or ``WAIT``."""
    if job.spot and (job.on != ON_DEMAND or job.spot_for >= job.step):
        wish = SPOT
    elif job.on == ON_DEMAND or job.spare - job.loss <= PATIENCE * job.work:
        wish = ON_DEMAND
    else:
        wish = WAIT
    return wish if safe(job, wish) else ON_DEMAND
