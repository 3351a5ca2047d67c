"""Idle clocks: compares how long a machine has been observed idle with the time that its pool waits."""

from functools import lru_cache

from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.contract import Situation


def clock_blocker(situation: Situation, candidate: Candidate) -> Blocker | None:
    """The blocker of a machine that has not been idle for long enough.

    A clock that exceeds the machine's age belongs to an earlier machine of that name; then the age counts.
    """
    node, wanted = candidate.node, candidate.member.pool.idle_after
    waits = f"pool {candidate.member.pool.name} waits for {format_duration(wanted)}"
    if wanted <= 0:
        return None
    observed = situation.state.idle_seconds.get(node.name)
    if observed is None:
        return Blocker("idle-unknown", f"its idle time is unknown; {waits}")
    age = situation.now - node.created if node.created else observed
    if age < wanted:
        return Blocker("young", f"the machine is {format_duration(age)} old, and {waits} of idleness")
    if observed < wanted:
        return Blocker("idle-clock", f"idle {format_duration(observed)} of {format_duration(wanted)}")
    return None


def idle_reason(situation: Situation, candidate: Candidate) -> str:
    """A sentence for the removal of an idle machine."""
    wanted = candidate.member.pool.idle_after
    if wanted <= 0:
        return f"idle, and pool {candidate.member.pool.name} does not wait"
    idle = format_duration(situation.state.idle_seconds[candidate.name])
    return f"idle for {idle}; pool {candidate.member.pool.name} waits for {format_duration(wanted)}"


def format_duration(seconds: float) -> str:
    """Seconds in Go's duration format, without fractions: ``90s`` is ``1m30s``."""
    return _format_whole(int(max(0.0, seconds)))


@lru_cache(maxsize=1 << 12)
def _format_whole(whole: int) -> str:
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = [f"{value}{unit}" for value, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if value]
    return "".join(parts) or "0s"
