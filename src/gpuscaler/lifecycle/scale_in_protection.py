"""Pools whose groups balance their zones by ending machines: busy machines are protected, or purchases keep the zones balanced.

An Auto Scaling group with several zones launches machines in its emptiest zone and ends machines in the fullest one, even busy machines
(AZRebalance), unless they are protected from scale-in. Our purchases and removals must not cause this. If a zone has two machines more than
another, its busy machines are protected, and no machine opens in that zone before its protection is confirmed.
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

#: A group balances its zones if one has this many machines more than another.
UNEVEN = 2
#: Seconds after which the cloud is asked again to protect a machine whose protection is not visible yet.
AGAIN_SECONDS = 15.0
#: How long machines of a group wait at most, before they open, for a machine that the group itself is starting, in seconds.
STARTING_SECONDS = 300.0
#: Seconds after which a request that the cloud refused is repeated: a person may have granted the permission.
REFUSED_SECONDS = 3600.0
#: If a group has ended this many machines before they were protected, no machine is bought that would unbalance its zones.
MAX_ENDED_UNPROTECTED = 2
#: AWS' name of the process, and how to make it harmless.
ADVICE = (
    "make one group per zone, have the group protect new instances from scale-in, or suspend AZRebalance unless it is a managed node group"
)


class Guarding(Struct, frozen=True, gc=False, rename={"ended_unprotected": "beaten"}):
    """``machines`` are the machines that gpuscaler has protected: their pools by id. ``asked`` is when the cloud was last asked, by id.

    ``refused`` is why the machines of a pool cannot be protected, by pool, and ``since`` when the cloud answered this. ``crowded`` are, for
    each pool whose group balances its zones, the zones with at least two machines more than another; ``fuller`` the zones with at least
    one more. ``ended_unprotected`` are machines that their group ended in a crowded zone before they were protected: pool and time, by id.
    ``levels`` are the numbers of machines by zone, for each pool whose machines cannot be protected.
    """

    machines: Mapping[str, str] = {}
    asked: Mapping[str, float] = {}
    refused: Mapping[str, str] = {}
    since: Mapping[str, float] = {}
    crowded: Mapping[str, tuple[str, ...]] = {}
    fuller: Mapping[str, tuple[str, ...]] = {}
    ended_unprotected: Mapping[str, tuple[str, float]] = {}
    levels: Mapping[str, Mapping[str, int]] = {}


class ProtectionAnswered(Struct, frozen=True, gc=False):
    """The result of protecting a machine of ``pool``, or of removing its protection; ``problem`` is empty on success."""

    instance: str
    pool: str
    on: bool
    problem: str = ""


class ProtectionFindings(Struct, frozen=True, gc=False):
    """``guarding`` is the new memory, ``exposed`` are machines that must not open before they are protected, by id.

    ``unsafe`` is, by offering, why none of its machines may be ended yet: the group would then end others. ``soon`` means that an exposed
    machine will soon enter service, and can be protected only after that, so that the cloud's list should be read often.
    """

    guarding: Guarding
    acts: tuple[Protect, ...] = ()
    exposed: frozenset[str] = frozenset()
    unsafe: Mapping[OfferingKey, str] = {}
    soon: bool = False


def observe(
    before: Guarding,
    ledger: Ledger,
    cluster: Cluster,
    policy: Policy,
    *,
    index: MachineIndex,
    answers: Iterable[ProtectionAnswered],
    now: float,
    surplus: Set[str] = frozenset(),
) -> ProtectionFindings:
    """Find the machines that need protection from scale-in now, and those that no longer do."""
    balancing = [pool for pool in policy.pools if pool.balances]
    if index.listed.instances is None or not (balancing or before.machines or index.listed.guarded):
        return ProtectionFindings(before)
    since = {name: at for name, at in before.since.items() if now < at + REFUSED_SECONDS and any(pool.name == name for pool in balancing)}
    refused = {name: why for name, why in before.refused.items() if name in since}
    guarded = {instance.id: instance.pool for instance in index.listed.guarded}
    machines = {name: pool for name, pool in {**guarded, **before.machines}.items() if name in index.listed.alive}
    for answer in answers:
        if answer.problem:
            refused[answer.pool], since[answer.pool] = answer.problem, now
        elif answer.on:
            machines[answer.instance] = answer.pool
            refused.pop(answer.pool, None)
            since.pop(answer.pool, None)
        else:
            machines.pop(answer.instance, None)
    levels = {pool.name: count_by_zone(pool, ledger, index) for pool in balancing}
    started = {pool.name: _started_by_group(pool, ledger, index, now=now, surplus=pool.name in surplus) for pool in balancing}
    # The group counts machines that are being removed until they are gone.
    counted = {pool.name: count_by_zone(pool, ledger, index, stays=True) for pool in balancing}
    crowded = {
        name: tuple(sorted(zones))
        for name in levels
        if (zones := {*fullest_zones(levels[name], UNEVEN), *fullest_zones(counted[name], UNEVEN)})
    }
    # When a group has started a machine to balance its zones, it ends an unprotected machine in any zone. All other machines are protected,
    # so that it ends the machine it started, and not an idle one that may get a pod before its end.
    started_ids = {name: {instance.id for instance in instances} for name, instances in started.items() if instances}
    needed: list[Instance] = []
    for pool in balancing:
        full, own = crowded.get(pool.name, ()), started_ids.get(pool.name, set())
        needed += _needed(pool.name, full, own, ledger, cluster, index=index, now=now)
    bare = [instance for instance in needed if not instance.protected]
    fuller = {
        name: tuple(sorted({*fullest_zones(counts, 1), *fullest_zones(counted[name], 1), *crowded.get(name, ())}))
        for name, counts in levels.items()
    }
    fuller = {name: zones for name, zones in fuller.items() if zones}
    lowered = {withdrawal.order.pool for withdrawal in ledger.withdrawals if withdrawal.order is not None}
    releasable = {name: pool for name, pool in machines.items() if pool not in lowered and pool not in started_ids}
    free = [index.listed.alive[name] for name, pool in releasable.items() if index.listed.alive[name].zone not in fuller.get(pool, ())]
    asked = {name: at for name, at in before.asked.items() if now < at + AGAIN_SECONDS}
    able = [instance for instance in bare if instance.state == RUNNING]
    acts = (
        *_protection_acts(able, asked, on=True),
        *_protection_acts((instance for instance in free if instance.protected), asked, on=False),
    )
    asked |= {name: now for act in acts for name in act.instances}
    unsafe = {
        offering.key: f"it waits until machine {instance.id} of its group is protected from scale-in: AZRebalance could end that one"
        for instance in bare
        for pool in balancing
        if pool.name == instance.pool and instance.id not in {entry.instance for entry in ledger.coming}
        for offering in pool.offerings
        if offering.zone not in crowded.get(pool.name, ())
    }
    unlisted = {entry.instance for entry in ledger.coming if entry.instance and entry.instance not in index.listed.by_id}
    unlisted = {
        entry.instance for entry in ledger.coming if entry.instance in unlisted and entry.key.zone in crowded.get(entry.key.pool, ())
    }
    awaiting = {
        entry.instance
        for pool in balancing
        for entry in _beside_rebalance(pool, machines, started[pool.name], ledger, index, now=now, surplus=pool.name in surplus)
    }
    exposed = frozenset(instance.id for instance in bare) | unlisted | awaiting
    # Auto Scaling protects only machines in service; for others it answers "is not in InService or EnteringStandby or Standby".
    soon = any(instance.state == PENDING and now < instance.launched + STARTING_SECONDS for instance in bare) or bool(unlisted)
    ended_unprotected = {
        name: entry for name, entry in before.ended_unprotected.items() if now < entry[1] + REFUSED_SECONDS and entry[0] in levels
    }
    ended_unprotected |= {name: (pool, now) for name, pool in _ended_unprotected(before, ledger, index) if name not in ended_unprotected}
    guarding = Guarding(machines, asked, refused, since, crowded, fuller, ended_unprotected)
    guarding = replace(guarding, levels={name: dict(counts) for name, counts in levels.items() if why_unprotected(guarding, name)})
    return ProtectionFindings(guarding, acts, exposed, unsafe, soon)


def _ended_unprotected(before: Guarding, ledger: Ledger, index: MachineIndex) -> Iterator[tuple[str, str]]:
    """Yield the ordered machines in crowded zones that their group is ending before they were protected, each with its pool."""
    for machine in ledger.coming:
        if machine.order and machine.instance and machine.key.zone in before.crowded.get(machine.key.pool, ()):
            listed = index.listed.by_id.get(machine.instance)
            if listed is not None and listed.state not in ALIVE and not listed.protected and machine.instance not in before.machines:
                yield machine.instance, machine.key.pool


def _started_by_group(pool: Pool, ledger: Ledger, index: MachineIndex, *, now: float, surplus: bool) -> tuple[Instance, ...]:
    """Return the machines that a group starts by itself, and with a ``surplus`` also started ones for which it has not ended others yet.

    Once a machine is open it is unknown whether it was ordered.
    """
    ordered = {machine.instance for machine in ledger.coming if machine.order}
    arriving = {machine.instance for machine in ledger.coming}
    return tuple(
        instance
        for instance in index.listed.by_pool.get(pool.name, ())
        if (instance.state == PENDING or (surplus and (instance.id in arriving or instance.id not in index.by_machine)))
        and instance.id not in ordered
        and not instance.token
        and now < instance.launched + STARTING_SECONDS
    )


def _beside_rebalance(
    pool: Pool, ours: Mapping[str, str], started: Iterable[Instance], ledger: Ledger, index: MachineIndex, *, now: float, surplus: bool
) -> Iterator[OrderedMachine]:
    """Yield the ordered machines of a group that is starting a machine in another zone: it may already have chosen one of them to end.

    Machines among ``ours`` are included, because their protection may have come after that choice, and so too late.
    """
    zones = {instance.zone for instance in started if instance.state == PENDING}
    for machine in ledger.coming if zones or surplus else ():
        beside = bool(zones - {machine.key.zone}) or (surplus and now < machine.granted + STARTING_SECONDS)
        if machine.key.pool == pool.name and machine.instance and beside:
            listed = index.listed.by_id.get(machine.instance)
            if listed is not None and (not listed.protected or machine.instance in ours):
                yield machine


def count_by_zone(pool: Pool, ledger: Ledger, index: MachineIndex, *, stays: bool = False) -> Counter[str]:
    """Count the machines of ``pool`` by zone, including ordered ones. With ``stays`` machines that are being removed count, too."""
    leaving = {removal.instance for removal in ledger.leaving if removal.step != REOPENING and not stays}
    counts = Counter({offering.zone: 0 for offering in pool.offerings})
    counts.update(instance.zone for instance in index.listed.by_pool.get(pool.name, ()) if instance.id not in leaving)
    for machine in ledger.coming:
        zones = {key.zone for key in machine.offerings[: machine.meant]}
        if machine.key.pool == pool.name and not machine.instance and len(zones) == 1:
            counts.update(zones)
        elif machine.key.pool == pool.name and machine.instance and machine.instance not in index.listed.by_id:
            counts[machine.key.zone] += 1
    return counts


def fullest_zones(counts: Mapping[str, int], excess: int) -> tuple[str, ...]:
    """Return the zones that have at least ``excess`` machines more than the emptiest zone."""
    least = min(counts.values(), default=0)
    return tuple(sorted(zone for zone, count in counts.items() if count >= least + excess))


def _needed(
    pool: str, full: Sequence[str], own: Set[str], ledger: Ledger, cluster: Cluster, *, index: MachineIndex, now: float
) -> Iterator[Instance]:
    """Yield the machines of ``pool`` that need protection: in ``full`` zones, those with pods or promises and those not open yet.

    If the group has started machines of its ``own``, all other machines need protection.
    """
    leaving = {removal.instance for removal in ledger.leaving if removal.step != REOPENING}
    promised = {promise.node for promise in ledger.promises}
    for instance in index.listed.by_pool.get(pool, ()) if full or own else ():
        if instance.id in leaving:
            continue
        if own and instance.id not in own:
            yield instance
            continue
        if instance.zone not in full:
            continue
        nodes = index.by_machine.get(instance.id, ())
        pods = [pod for node in nodes for pod in cluster.on_node.get(node.name, {}).values()]
        coming = any(entry.instance == instance.id for entry in ledger.coming)
        if coming or any(node.name in promised for node in nodes) or not is_idle(pods, now):
            yield instance


def _protection_acts(machines: Iterable[Instance], asked: Mapping[str, float], *, on: bool) -> Iterator[Protect]:
    by_pool: dict[str, list[str]] = {}
    for instance in machines:
        if instance.id not in asked:
            by_pool.setdefault(instance.pool, []).append(instance.id)
    yield from (Protect(pool, tuple(sorted(ids)), on) for pool, ids in sorted(by_pool.items()))


def recalled(guarding: Guarding, now: float) -> Guarding:
    """Return ``guarding`` without timestamps after ``now``, which another clock has written."""
    asked, since = ({name: min(at, now) for name, at in times.items()} for times in (guarding.asked, guarding.since))
    ended_unprotected = {name: (pool, min(at, now)) for name, (pool, at) in guarding.ended_unprotected.items()}
    return replace(guarding, asked=asked, since=since, ended_unprotected=ended_unprotected)


# Buying


def unbalancing_offerings(guarding: Guarding, policy: Policy) -> Mapping[OfferingKey, str]:
    """Return the offerings that would unbalance a group whose machines cannot be protected, and why; they are not bought."""
    reasons: dict[OfferingKey, str] = {}
    for pool in policy.pools:
        why, zones = why_unprotected(guarding, pool.name), guarding.fuller.get(pool.name, ())
        if not pool.balances or not why:
            continue
        for offering in pool.offerings:
            if offering.zone in zones:
                reasons[offering.key] = _unbalancing(offering.zone, why)
    return reasons


def _unbalancing(zone: str, why: str) -> str:
    return f"one more machine in {zone} would make AZRebalance end machines there, and they {why}: {ADVICE}"


def unbalancing_machines(plan: Plan, guarding: Guarding, policy: Policy) -> Mapping[str, Cut]:
    """Return the machines of ``plan``, by id, that would further unbalance a group whose machines cannot be protected."""
    cuts: dict[str, Cut] = {}
    counts = {pool.name: dict(guarding.levels[pool.name]) for pool in policy.pools if pool.balances and guarding.levels.get(pool.name)}
    for machine in plan.machines if counts else ():
        zones = counts.get(machine.pool)
        if zones is None or machine.zone not in zones:
            continue
        if zones[machine.zone] > min(zones.values()):
            cuts[machine.id] = Cut(
                machine.pool, 1, f"pool {machine.pool}: {_unbalancing(machine.zone, why_unprotected(guarding, machine.pool))}"
            )
        else:
            zones[machine.zone] += 1
    return cuts


def why_unprotected(guarding: Guarding, pool: str) -> str:
    """Return why the group of ``pool`` may end its machines, as text that starts with "cannot"; empty if they can be protected."""
    if pool in guarding.refused:
        return f"cannot be protected from scale-in ({guarding.refused[pool]})"
    ended = sum(owner == pool for owner, _ in guarding.ended_unprotected.values())
    return f"cannot be protected from scale-in in time ({ended} were ended before that)" if ended >= MAX_ENDED_UNPROTECTED else ""


def describe_groups(guarding: Guarding, policy: Policy) -> Iterator[str]:
    """Describe, in one sentence each, the groups whose zones are unbalanced or whose machines gpuscaler has protected."""
    for pool in policy.pools:
        zones, why = guarding.crowded.get(pool.name, ()), why_unprotected(guarding, pool.name)
        protected = sum(owner == pool.name for owner in guarding.machines.values())
        if not pool.balances or not (zones or protected or why):
            continue
        text = f"pool {pool.name}: its pods need more machines in some zones of its group than in others"
        if zones:
            text = f"pool {pool.name}: its group has more machines in {', '.join(zones)} than in its other zones"
        if why:
            yield f"{text}; AZRebalance may terminate machines there, and those machines {why}: {ADVICE}"
        elif protected:
            yield (
                f"{text}, so AZRebalance would terminate some; gpuscaler has protected {protected} of its machines from scale-in: {ADVICE}"
            )
        else:
            yield (
                f"{text}, so AZRebalance would terminate some; busy machines there are protected from scale-in before they open: {ADVICE}"
            )
