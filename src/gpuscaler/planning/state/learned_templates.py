"""Learned templates: the actual resources, labels and taints of machines of a kind, where tags and rules say otherwise.

If a template promises more than its nodes have, pods are planned where they do not fit, and the same machine is bought again and again. If
a template promises less, pods that the next node would take stay unplaced. So the live nodes of a pool and instance type correct the
template of the next ones. The newest machine corrects it as soon as it is ready, but only downwards: a resource that it lacks completely
belongs to a device plugin that has not reported yet. Nodes that have existed for a while correct it both ways, by the lowest of their
amounts. The number of devices of a kind is fixed: a node with seven of eight GPUs is broken, and predicts nothing about the next one. How
devices are divided (MIG slices, the cores of Neuron devices) or shared is a matter of configuration, and is learned where nodes agree on
it.

A lesson holds for one revision of the pool, such as a version of its launch template; a new revision is learned from its own nodes. Labels
and taints that no node has confirmed for a day are forgotten, because they are often fixed outside of the group; the amounts are kept.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import ACCELERATORS
from gpuscaler.model.live_templates import TemplateDifferences, with_devices, with_labels, with_resources
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy

#: Labels and taints that no node has confirmed for the first time are forgotten; confirmations are saved at the second interval. Seconds.
FORGET_SECONDS, CONFIRM_SECONDS = 86_400.0, 3600.0


class ReadyNode(Struct, frozen=True, gc=False):
    """A machine of ``offering`` is a node, ready at ``at``, with ``allocatable`` resources, including those that DaemonSets use."""

    offering: OfferingKey
    at: float
    allocatable: Mapping[str, int]


class NodeObservation(Struct, frozen=True, gc=False):
    """Resources, labels and taints of live nodes of an instance type in a pool at ``at``, of one ``revision``; None without nodes."""

    pool: str
    instance_type: str
    at: float
    revision: str = ""
    shown: TemplateDifferences | None = None


class Lesson(Struct, frozen=True, gc=False):
    """The resources of the newest node of an instance type in a pool; with ``both_ways``, the lowest amounts of its live nodes.

    ``shown`` are the labels and taints in which they differ from the template. The lesson applies to machines of ``revision``, which was
    new at ``revised``; 0 if it is the first one.
    """

    pool: str
    instance_type: str
    at: float
    allocatable: Mapping[str, int]
    both_ways: bool = False
    shown: TemplateDifferences = TemplateDifferences()
    revision: str = ""
    revised: float = 0.0


class Learned(Struct, frozen=True, gc=False):
    """The lessons of every pool and instance type of which a node was observed."""

    lessons: tuple[Lesson, ...] = ()


def step(learned: Learned, event: ReadyNode | NodeObservation) -> Learned:
    """The lessons after ``event``; a node that was ready before the newest one changes nothing."""
    if isinstance(event, NodeObservation):
        return _after_observation(learned, event)
    pool, _, instance_type, _ = event.offering
    previous = lesson_of(learned, pool, instance_type)
    if previous is not None and (event.at < previous.at or event.allocatable == previous.allocatable):
        return learned
    lesson = Lesson(pool, instance_type, event.at, dict(event.allocatable))
    if previous is not None:
        # The newest of several nodes can only lower the amounts that they agree on.
        less = {name: min(amount, event.allocatable.get(name) or amount) for name, amount in previous.allocatable.items()}
        lesson = replace(previous, at=event.at, allocatable=less if previous.both_ways else lesson.allocatable)
    return _with_lesson(learned, previous, lesson)


def _after_observation(learned: Learned, event: NodeObservation) -> Learned:
    previous = lesson_of(learned, event.pool, event.instance_type)
    if previous is not None and previous.revision != event.revision:
        revised = event.at if previous.revision else previous.revised
        fresh = previous if not previous.revision else Lesson(previous.pool, previous.instance_type, event.at, {})
        return _with_lesson(learned, previous, replace(fresh, revision=event.revision, revised=revised))
    if event.shown is None:
        if previous is None or previous.shown == TemplateDifferences() or event.at < previous.at + FORGET_SECONDS:
            return learned
        return _with_lesson(learned, previous, replace(previous, shown=TemplateDifferences()))
    lesson = Lesson(event.pool, event.instance_type, event.at, event.shown.resources, True, event.shown, event.revision)
    if previous is not None:
        lesson = replace(lesson, revised=previous.revised)
        if replace(lesson, at=previous.at) == previous and event.at < previous.at + CONFIRM_SECONDS:
            return learned
    return _with_lesson(learned, previous, lesson)


def lesson_of(learned: Learned, pool: str, instance_type: str) -> Lesson | None:
    return next((lesson for lesson in learned.lessons if (lesson.pool, lesson.instance_type) == (pool, instance_type)), None)


def _with_lesson(learned: Learned, previous: Lesson | None, lesson: Lesson) -> Learned:
    return Learned((*(old for old in learned.lessons if old is not previous), lesson))


def corrected_policy(policy: Policy, learned: Learned) -> Policy:
    """``policy`` with corrected offerings. A planner works for one policy: make a new planner when the result differs."""
    by_kind = {(lesson.pool, lesson.instance_type): lesson for lesson in learned.lessons}
    pools = tuple(
        replace(
            pool,
            offerings=tuple(
                corrected_offering(offering, by_kind.get((offering.pool, offering.instance_type))) for offering in pool.offerings
            ),
        )
        for pool in policy.pools
    )
    return policy if pools == policy.pools else replace(policy, pools=pools)


def corrected_offering(offering: Offering, lesson: Lesson | None) -> Offering:
    """``offering`` corrected by ``lesson``. The accelerators stay those of the instance type, possibly divided or shared."""
    if lesson is None:
        return offering
    offering = with_devices(with_labels(offering, lesson.shown), lesson.shown.devices)
    if lesson.both_ways:
        return with_resources(offering, lesson.allocatable)
    allocatable = lesson.allocatable
    room = {
        name: amount if name in ACCELERATORS else min(amount, allocatable.get(name) or amount)
        for name, amount in offering.allocatable.items()
    }
    return offering if room == offering.allocatable else replace(offering, allocatable=room)
