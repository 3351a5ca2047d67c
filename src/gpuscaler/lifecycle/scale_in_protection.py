"""Pools whose groups balance zones by ending machines: purchases keep them balanced, or the machines are protected first.

An Auto Scaling group over several zones launches machines in its emptiest zone and ends machines in the fullest, even busy ones
(AZRebalance), unless they are protected from scale-in. Our purchases and removals must not trigger that. If one leaves a zone with two
machines more than another, the busy machines of that zone are protected, and none opens there before the protection is confirmed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Protect
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import ALIVE, PENDING, RUNNING, Instance
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.capacity.idle import is_idle
from gpuscaler.planning.plans import Cut, Plan
from gpuscaler.planning.state.ledger.entries import REOPENING, OrderedMachine
from gpuscaler.planning.state.ledger.ledger import Ledger

#: A zone with this many machines more than another has too many: then the group balances.
UNEVEN = 2
#: The cloud is asked again to protect a machine whose protection has not shown after this many seconds.
AGAIN_SECONDS = 15.0
#: Other machines of a group wait at most this long, in seconds, for one that the group is starting, before they open.
STARTING_SECONDS = 300.0
#: A request that a cloud has refused is repeated after this many seconds: a person may have granted the permission meanwhile.
REFUSED_SECONDS = 3600.0
#: After a group has ended this many machines before they were protected, nothing more is bought that unbalances it.
BEATEN = 2
#: AWS' name of the process, and how to make it harmless.
ADVICE = (
    "make one group per zone, have the group protect new instances from scale-in, or suspend AZRebalance unless it is a managed node group"
)


class Guarding(Struct, frozen=True, gc=False):
    """``machines`` are those that gpuscaler has protected, by id, with their pools; ``asked`` is when the cloud was last asked, by id.

    ``refused`` is, by pool, why its machines cannot be protected, and ``since`` when that was answered. ``crowded`` are, for each pool
    that balances its zones, the zones that have at least two machines more than another, ``fuller`` those that have at least one more.
    ``beaten`` are machines that their group ended in a crowded zone before they were protected, by id: their pools, and when that was.
    ``levels`` are, for each pool whose machines cannot be protected, the numbers of machines in its zones.
    """

    machines: Mapping[str, str] = {}
    asked: Mapping[str, float] = {}
    refused: Mapping[str, str] = {}
    since: Mapping[str, float] = {}
    crowded: Mapping[str, tuple[str, ...]] = {}
    fuller: Mapping[str, tuple[str, ...]] = {}
    beaten: Mapping[str, tuple[str, float]] = {}
    levels: Mapping[str, Mapping[str, int]] = {}


class ProtectionAnswered(Struct, frozen=True, gc=False):
    """The result of protecting a machine of ``pool``, or of removing its protection; ``problem`` is empty on success."""

    instance: str
    pool: str
    on: bool
    problem: str = ""


class ProtectionFindings(Struct, frozen=True, gc=False):
    """``guarding`` is the new memory, ``exposed`` are machines that must not open before they are protected, by id.

    ``unsafe`` is, by offering, why no machine of it may be ended yet: the group would end others then. With ``soon`` one of the exposed
    machines is about to enter service and can be protected from then on: the cloud's list should be read often.
    """

    guarding: Guarding
    acts: tuple[Protect, ...] = ()
    exposed: frozenset[str] = frozenset()
    unsafe: Mapping[OfferingKey, str] = {}
    soon: bool = False


def observe(
    before: Guarding,
    book: Ledger,
    cluster: Cluster,
    policy: Policy,
    *,
    roll: MachineIndex,
    answers: Iterable[ProtectionAnswered],
    now: float,
    surplus: Set[str] = frozenset(),
) -> ProtectionFindings:
    """Find the machines that need protection from scale-in now, and those that no longer do."""
    balancing = [pool for pool in policy.pools if pool.balances]
    if roll.listed.instances is None or not (balancing or before.machines or roll.listed.guarded):
        return ProtectionFindings(before)
    since = {name: at for name, at in before.since.items() if now < at + REFUSED_SECONDS and any(pool.name == name for pool in balancing)}
    refused = {name: why for name, why in before.refused.items() if name in since}
    guarded = {one.id: one.pool for one in roll.listed.guarded}
    machines = {name: pool for name, pool in {**guarded, **before.machines}.items() if name in roll.listed.alive}
    for answer in answers:
        if answer.problem:
            refused[answer.pool], since[answer.pool] = answer.problem, now
        elif answer.on:
            machines[answer.instance] = answer.pool
            refused.pop(answer.pool, None)
            since.pop(answer.pool, None)
        else:
            machines.pop(answer.instance, None)
    levels = {pool.name: level(pool, book, roll) for pool in balancing}
    started = {pool.name: _started(pool, book, roll, now=now, surplus=pool.name in surplus) for pool in balancing}
    # Machines that are being removed count for the group until they are gone.
    counted = {pool.name: level(pool, book, roll, stays=True) for pool in balancing}
    crowded = {name: tuple(sorted(zones)) for name in levels if (zones := {*over(levels[name], UNEVEN), *over(counted[name], UNEVEN)})}
    # Once a group has started a machine to even out its zones, it ends an unprotected one, in any zone. That has to be the machine it
    # started, and not one that is idle now and may get a pod before it is ended.
    evening = {name: {one.id for one in those} for name, those in started.items() if those}
    needed: list[Instance] = []
    for pool in balancing:
        full, own = crowded.get(pool.name, ()), evening.get(pool.name, set())
        needed += _needed(pool.name, full, own, book, cluster, roll=roll, now=now)
    bare = [one for one in needed if not one.protected]
    fuller = {name: tuple(sorted({*over(counts, 1), *over(counted[name], 1), *crowded.get(name, ())})) for name, counts in levels.items()}
    fuller = {name: zones for name, zones in fuller.items() if zones}
    lowered = {one.order.pool for one in book.withdrawals if one.order is not None}
    calm = {name: pool for name, pool in machines.items() if pool not in lowered and pool not in evening}
    free = [roll.listed.alive[name] for name, pool in calm.items() if roll.listed.alive[name].zone not in fuller.get(pool, ())]
    asked = {name: at for name, at in before.asked.items() if now < at + AGAIN_SECONDS}
    able = [one for one in bare if one.state == RUNNING]
    acts = (*_protects(able, asked, on=True), *_protects((one for one in free if one.protected), asked, on=False))
    asked |= {name: now for act in acts for name in act.instances}
    unsafe = {
        offering.key: f"it waits until machine {one.id} of its group is protected from scale-in: AZRebalance could end that one"
        for one in bare
        for pool in balancing
        if pool.name == one.pool and one.id not in {entry.instance for entry in book.coming}
        for offering in pool.offerings
        if offering.zone not in crowded.get(pool.name, ())
    }
    unlisted = {entry.instance for entry in book.coming if entry.instance and entry.instance not in roll.listed.by_id}
    unlisted = {entry.instance for entry in book.coming if entry.instance in unlisted and entry.key.zone in crowded.get(entry.key.pool, ())}
    awaiting = {
        entry.instance
        for pool in balancing
        for entry in _beside_rebalance(pool, machines, started[pool.name], book, roll, now=now, surplus=pool.name in surplus)
    }
    exposed = frozenset(one.id for one in bare) | unlisted | awaiting
    # Auto Scaling protects only machines in service; for others it answers "is not in InService or EnteringStandby or Standby".
    soon = any(one.state == PENDING and now < one.launched + STARTING_SECONDS for one in bare) or bool(unlisted)
    beaten = {name: entry for name, entry in before.beaten.items() if now < entry[1] + REFUSED_SECONDS and entry[0] in levels}
    beaten |= {name: (pool, now) for name, pool in _beaten(before, book, roll) if name not in beaten}
    guarding = Guarding(machines, asked, refused, since, crowded, fuller, beaten)
    guarding = replace(guarding, levels={name: dict(counts) for name, counts in levels.items() if unprotected(guarding, name)})
    return ProtectionFindings(guarding, acts, exposed, unsafe, soon)


def _beaten(before: Guarding, book: Ledger, roll: MachineIndex) -> Iterator[tuple[str, str]]:
    """Yield machines on their way to a crowded zone that their group ends before they were protected, by id, with their pools."""
    for one in book.coming:
        if one.order and one.instance and one.key.zone in before.crowded.get(one.key.pool, ()):
            listed = roll.listed.by_id.get(one.instance)
            if listed is not None and listed.state not in ALIVE and not listed.protected and one.instance not in before.machines:
                yield one.instance, one.key.pool


def _started(pool: Pool, book: Ledger, roll: MachineIndex, *, now: float, surplus: bool) -> tuple[Instance, ...]:
    """Return the machines that a group starts by itself, and with a ``surplus`` those for which it has not ended others yet.

    Once they are open they cannot be distinguished from ordered machines.
    """
    ordered = {one.instance for one in book.coming if one.order}
    arriving = {one.instance for one in book.coming}
    return tuple(
        one
        for one in roll.listed.by_pool.get(pool.name, ())
        if (one.state == PENDING or (surplus and (one.id in arriving or one.id not in roll.by_machine)))
        and one.id not in ordered
        and not one.token
        and now < one.launched + STARTING_SECONDS
    )


def _beside_rebalance(
    pool: Pool, ours: Mapping[str, str], started: Iterable[Instance], book: Ledger, roll: MachineIndex, *, now: float, surplus: bool
) -> Iterator[OrderedMachine]:
    """Yield machines on their way while their group starts one in another zone: it may already have chosen one of them to end.

    If one of them, now among ``ours``, was protected after that, the protection came too late.
    """
    zones = {one.zone for one in started if one.state == PENDING}
    for one in book.coming if zones or surplus else ():
        beside = bool(zones - {one.key.zone}) or (surplus and now < one.granted + STARTING_SECONDS)
        if one.key.pool == pool.name and one.instance and beside:
            listed = roll.listed.by_id.get(one.instance)
            if listed is not None and (not listed.protected or one.instance in ours):
                yield one


def level(pool: Pool, book: Ledger, roll: MachineIndex, *, stays: bool = False) -> Counter[str]:
    """Count the machines of ``pool`` by zone, including those on their way, and with ``stays`` those that are being removed."""
    leaving = {one.instance for one in book.leaving if one.step != REOPENING and not stays}
    counts = Counter({offering.zone: 0 for offering in pool.offerings})
    counts.update(one.zone for one in roll.listed.by_pool.get(pool.name, ()) if one.id not in leaving)
    for one in book.coming:
        zones = {key.zone for key in one.offerings[: one.meant]}
        if one.key.pool == pool.name and not one.instance and len(zones) == 1:
            counts.update(zones)
        elif one.key.pool == pool.name and one.instance and one.instance not in roll.listed.by_id:
            counts[one.key.zone] += 1
    return counts


def over(counts: Mapping[str, int], many: int) -> tuple[str, ...]:
    """Return the zones that have at least ``many`` machines more than the emptiest."""
    least = min(counts.values(), default=0)
    return tuple(sorted(zone for zone, count in counts.items() if count >= least + many))


def _needed(
    pool: str, full: Sequence[str], own: Set[str], book: Ledger, cluster: Cluster, *, roll: MachineIndex, now: float
) -> Iterator[Instance]:
    """Yield the machines of ``pool`` in ``full`` zones whose end would lose something, or that are about to open.

    If the group has started machines of its ``own``, yield all others.
    """
    leaving = {one.instance for one in book.leaving if one.step != REOPENING}
    promised = {one.node for one in book.promises}
    for one in roll.listed.by_pool.get(pool, ()) if full or own else ():
        if one.id in leaving:
            continue
        if own and one.id not in own:
            yield one
            continue
        if one.zone not in full:
            continue
        nodes = roll.by_machine.get(one.id, ())
        pods = [pod for node in nodes for pod in cluster.on_node.get(node.name, {}).values()]
        coming = any(entry.instance == one.id for entry in book.coming)
        if coming or any(node.name in promised for node in nodes) or not is_idle(pods, now):
            yield one


def _protects(machines: Iterable[Instance], asked: Mapping[str, float], *, on: bool) -> Iterator[Protect]:
    by_pool: dict[str, list[str]] = {}
    for one in machines:
        if one.id not in asked:
            by_pool.setdefault(one.pool, []).append(one.id)
    yield from (Protect(pool, tuple(sorted(ids)), on) for pool, ids in sorted(by_pool.items()))


def recalled(guarding: Guarding, now: float) -> Guarding:
    """Return ``guarding`` without timestamps after ``now``, which another clock has written."""
    asked, since = ({name: min(at, now) for name, at in known.items()} for known in (guarding.asked, guarding.since))
    beaten = {name: (pool, min(at, now)) for name, (pool, at) in guarding.beaten.items()}
    return replace(guarding, asked=asked, since=since, beaten=beaten)


# Buying


def closed(guarding: Guarding, policy: Policy) -> Mapping[OfferingKey, str]:
    """Return, with the reason, the offerings not bought because they would unbalance a group whose machines cannot be protected."""
    found: dict[OfferingKey, str] = {}
    for pool in policy.pools:
        why, zones = unprotected(guarding, pool.name), guarding.fuller.get(pool.name, ())
        if not pool.balances or not why:
            continue
        for one in pool.offerings:
            if one.zone in zones:
                found[one.key] = _unbalancing(one.zone, why)
    return found


def _unbalancing(zone: str, why: str) -> str:
    return f"one more machine in {zone} would make AZRebalance end machines there, and they {why}: {ADVICE}"


def beyond(plan: Plan, guarding: Guarding, policy: Policy) -> Mapping[str, Cut]:
    """Return the machines of ``plan``, by id, that would further unbalance a group whose machines cannot be protected."""
    found: dict[str, Cut] = {}
    counts = {pool.name: dict(guarding.levels[pool.name]) for pool in policy.pools if pool.balances and guarding.levels.get(pool.name)}
    for one in plan.machines if counts else ():
        zones = counts.get(one.pool)
        if zones is None or one.zone not in zones:
            continue
        if zones[one.zone] > min(zones.values()):
            found[one.id] = Cut(one.pool, 1, f"pool {one.pool}: {_unbalancing(one.zone, unprotected(guarding, one.pool))}")
        else:
            zones[one.zone] += 1
    return found


def unprotected(guarding: Guarding, pool: str) -> str:
    """Return why machines of ``pool`` are not safe from their group, as what they "cannot"; empty if they are safe."""
    if pool in guarding.refused:
        return f"cannot be protected from scale-in ({guarding.refused[pool]})"
    many = sum(owner == pool for owner, _ in guarding.beaten.values())
    return f"cannot be protected from scale-in in time ({many} were ended before that)" if many >= BEATEN else ""


def described(guarding: Guarding, policy: Policy) -> Iterator[str]:
    """Describe, in one sentence each, the groups whose zones are uneven or whose machines gpuscaler has protected for that."""
    for pool in policy.pools:
        zones, why = guarding.crowded.get(pool.name, ()), unprotected(guarding, pool.name)
        many = sum(owner == pool.name for owner in guarding.machines.values())
        if not pool.balances or not (zones or many or why):
            continue
        text = f"pool {pool.name}: its pods need more machines in some zones of its group than in others, which AZRebalance would even out"
        if zones:
            text = f"pool {pool.name}: {', '.join(zones)} has more machines than other zones of its group, which AZRebalance would even out"
        if why:
            yield f"{text} by ending some; they {why}: {ADVICE}"
        elif many:
            yield f"{text}; gpuscaler has protected {many} of its machines from scale-in until then: {ADVICE}"
        else:
            yield f"{text}; busy machines there are protected from scale-in before they open: {ADVICE}"
