"""Learned templates: what machines of a kind offer in truth, where it is less than the catalogue says.

A template that promises more than a node has breaks promises for ever: pods are planned where they do not fit, and the same is bought
again. So the newest node of each pool and instance type speaks for the next ones. It corrects downwards only. More than was promised breaks
no promise, and a resource that a node lacks altogether belongs to a device plugin that has not reported yet. How many devices machines of a
kind have is no matter of chance: a node with seven GPUs of eight is broken, and says nothing about the next.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import ACCELERATORS
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.state.events import Key


class Seen(Struct, frozen=True, gc=False):
    """A machine of ``offering`` is a node, ready at ``at``, that offers ``allocatable`` in all, what DaemonSets take included."""

    offering: Key
    at: float
    allocatable: Mapping[str, int]


class Lesson(Struct, frozen=True, gc=False):
    """What the newest node of an instance type in a pool offers."""

    pool: str
    instance_type: str
    at: float
    allocatable: Mapping[str, int]


class Learned(Struct, frozen=True, gc=False):
    """The lesson of every pool and instance type of which a node was seen."""

    lessons: tuple[Lesson, ...] = ()


def step(learned: Learned, event: Seen) -> Learned:
    """What is known after ``event``; a node that was ready before the newest teaches nothing."""
    pool, _, instance_type, _ = event.offering
    known = next((one for one in learned.lessons if (one.pool, one.instance_type) == (pool, instance_type)), None)
    if known is not None and (event.at < known.at or event.allocatable == known.allocatable):
        return learned
    lesson = Lesson(pool, instance_type, event.at, dict(event.allocatable))
    return Learned((*(one for one in learned.lessons if one is not known), lesson))


def corrected(policy: Policy, learned: Learned) -> Policy:
    """``policy`` with offerings that promise what their machines have. A planner keeps to one policy: make a new one when this differs."""
    by_kind = {(one.pool, one.instance_type): one.allocatable for one in learned.lessons}
    pools = tuple(
        replace(pool, offerings=tuple(honest(one, by_kind.get((one.pool, one.instance_type), {})) for one in pool.offerings))
        for pool in policy.pools
    )
    return policy if pools == policy.pools else replace(policy, pools=pools)


def honest(offering: Offering, seen: Mapping[str, int]) -> Offering:
    """``offering`` with no more of any resource than ``seen`` has, where that has any; accelerators are those it was sold with."""
    room = {
        name: amount if name in ACCELERATORS else min(amount, seen.get(name) or amount) for name, amount in offering.allocatable.items()
    }
    return offering if room == offering.allocatable else replace(offering, allocatable=room)
