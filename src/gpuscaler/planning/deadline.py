"""Jobs that must be done by a moment: on spot as long as that stays safe, else on-demand."""

from msgspec import Struct

WAIT, SPOT, ON_DEMAND = "", "spot", "on-demand"


class Job(Struct, frozen=True, gc=False):
    """A job with a deadline, as it stands. Everything is in seconds.

    ``total`` work was to be done in ``allowed`` time; ``work`` and ``left`` are what remains of them. A change of machine takes
    ``changeover``, and the next decision comes after ``step``. ``on`` is the market it runs on now, "" for none; ``warming`` is what is
    left of the changeover there. ``spot`` says whether a spot machine can be had.
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


def safe(job: Job, choice: str) -> bool:
    """Whether on-demand can still be done in time when ``choice`` holds until the next decision and spot then goes away."""
    work, left = job.work, job.left - job.step
    if choice == WAIT:
        return left >= work + job.changeover
    warming = job.warming if choice == job.on else job.changeover
    work = max(0.0, work - max(0.0, job.step - warming))
    if work <= 0:
        return True
    ahead = max(0.0, warming - job.step) if choice == ON_DEMAND else job.changeover
    return left >= work + ahead
