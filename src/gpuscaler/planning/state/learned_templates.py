"""Learned templates: what machines of a kind offer in truth, less or more than tags and rules say, and which labels and taints they have.

A template that promises more than a node has breaks promises for ever: pods are planned where they do not fit, and the same is bought
again. One that promises less leaves pods unplaced that the next node would take. So live nodes of a pool and instance type speak for the
next ones. The newest machine speaks as soon as it is ready, downwards only: a resource that it lacks altogether belongs to a device plugin
that has not reported yet. Nodes that have been there for a while speak both ways, the lowest of them. How many devices machines of a kind
have is no matter of chance: a node with seven GPUs of eight is broken, and says nothing about the next. How these are divided (MIG's
slices, the cores of Neuron devices) or shared is a matter of configuration, which nodes tell where they agree.

A lesson holds for what machines were made from: a new revision of the pool, such as a version of its launch template, is taught by its own
nodes. What no node has confirmed for a day is forgotten but for the amounts, since the mend is often outside of the group.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import ACCELERATORS
from gpuscaler.model.live_templates import Shown, with_devices, with_labels, with_resources
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy

#: Labels and taints that no node has confirmed for so long are forgotten; that nodes do is written down so often, in seconds.
FORGET_SECONDS, CONFIRM_SECONDS = 86_400.0, 3600.0


class Seen(Struct, frozen=True, gc=False):
    """A machine of ``offering`` is a node, ready at ``at``, that offers ``allocatable`` in all, what DaemonSets take included."""

    offering: OfferingKey
    at: float
    allocatable: Mapping[str, int]


class Observed(Struct, frozen=True, gc=False):
    """What live nodes of an instance type in a pool show at ``at``, made from what ``revision`` names; None where there are none."""

    pool: str
    instance_type: str
    at: float
    revision: str = ""
    shown: Shown | None = None


class Lesson(Struct, frozen=True, gc=False):
    """What the newest node of an instance type in a pool offers; with ``both_ways``, what the lowest of its live nodes do.

    ``shown`` are labels and taints that they have otherwise than the template says. The lesson is about machines that were made from
    ``revision``, which was new at ``revised``, 0 where it was there from the beginning.
    """

    pool: str
    instance_type: str
    at: float
    allocatable: Mapping[str, int]
    both_ways: bool = False
    shown: Shown = Shown()
    revision: str = ""
    revised: float = 0.0


class Learned(Struct, frozen=True, gc=False):
    """The lesson of every pool and instance type of which a node was seen."""

    lessons: tuple[Lesson, ...] = ()


def step(learned: Learned, event: Seen | Observed) -> Learned:
    """What is known after ``event``; a node that was ready before the newest teaches nothing."""
    if isinstance(event, Observed):
        return _observed(learned, event)
    pool, _, instance_type, _ = event.offering
    known = lesson_of(learned, pool, instance_type)
    if known is not None and (event.at < known.at or event.allocatable == known.allocatable):
        return learned
    lesson = Lesson(pool, instance_type, event.at, dict(event.allocatable))
    if known is not None:
        # The newest of several nodes can only lower what they agree on.
        less = {name: min(amount, event.allocatable.get(name) or amount) for name, amount in known.allocatable.items()}
        lesson = replace(known, at=event.at, allocatable=less if known.both_ways else lesson.allocatable)
    return _with(learned, known, lesson)


def _observed(learned: Learned, event: Observed) -> Learned:
    known = lesson_of(learned, event.pool, event.instance_type)
    if known is not None and known.revision != event.revision:
        revised = event.at if known.revision else known.revised
        fresh = known if not known.revision else Lesson(known.pool, known.instance_type, event.at, {})
        return _with(learned, known, replace(fresh, revision=event.revision, revised=revised))
    if event.shown is None:
        if known is None or known.shown == Shown() or event.at < known.at + FORGET_SECONDS:
            return learned
        return _with(learned, known, replace(known, shown=Shown()))
    lesson = Lesson(event.pool, event.instance_type, event.at, event.shown.resources, True, event.shown, event.revision)
    if known is not None:
        lesson = replace(lesson, revised=known.revised)
        if replace(lesson, at=known.at) == known and event.at < known.at + CONFIRM_SECONDS:
            return learned
    return _with(learned, known, lesson)


def lesson_of(learned: Learned, pool: str, instance_type: str) -> Lesson | None:
    return next((one for one in learned.lessons if (one.pool, one.instance_type) == (pool, instance_type)), None)


def _with(learned: Learned, known: Lesson | None, lesson: Lesson) -> Learned:
    return Learned((*(one for one in learned.lessons if one is not known), lesson))


def corrected(policy: Policy, learned: Learned) -> Policy:
    """``policy`` with offerings that promise what their machines have. A planner keeps to one policy: make a new one when this differs."""
    by_kind = {(one.pool, one.instance_type): one for one in learned.lessons}
    pools = tuple(
        replace(pool, offerings=tuple(honest(one, by_kind.get((one.pool, one.instance_type))) for one in pool.offerings))
        for pool in policy.pools
    )
    return policy if pools == policy.pools else replace(policy, pools=pools)


def honest(offering: Offering, lesson: Lesson | None) -> Offering:
    """``offering`` as ``lesson`` has its machines; they have the accelerators that they were sold with, perhaps divided or shared."""
    if lesson is None:
        return offering
    offering = with_devices(with_labels(offering, lesson.shown), lesson.shown.devices)
    if lesson.both_ways:
        return with_resources(offering, lesson.allocatable)
    seen = lesson.allocatable
    room = {
        name: amount if name in ACCELERATORS else min(amount, seen.get(name) or amount) for name, amount in offering.allocatable.items()
    }
    return offering if room == offering.allocatable else replace(offering, allocatable=room)
