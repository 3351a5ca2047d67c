"""Carrying out a plan in the simulated world, as the controller does in a real one."""

from collections import defaultdict

from gpuscaler.clouds.simulated import CloudMachine
from gpuscaler.planning.plans import Machine, Plan, Removal
from gpuscaler.simulation.ledger import Drain, entry_of
from gpuscaler.simulation.world import World

#: How long an offering is not asked after it refused: what Karpenter caches capacity errors for.
BLOCK_SECONDS = 180.0

#: Exclusions that time can lift. A pod that every pool excludes for another reason is never served.
PASSING = frozenset({"limit", "price", "market", "gang", "topology", "port", "volume"})

#: Names a machine of a plan by the id the cloud gave it.
Names = dict[str, str]


def carry_out(plan: Plan, world: World, now: float, *, number: int) -> bool:
    """Do what the ``number``-th plan of a run says; returns whether anything was done."""
    names = _buy(plan, world, now, number)
    placed = _place(plan, world, now)
    removed = [_remove(removal, world, now, names) for removal in plan.removals]
    _judge(plan, world)
    return bool(names) or placed or any(removed)


def finish_drains(world: World, now: float) -> None:
    """Give back the nodes whose replacements are open."""
    for drain in list(world.drains.values()):
        if not any(machine_id in world.ledger for machine_id in drain.needs):
            _give_back(drain, world, now)


def _buy(plan: Plan, world: World, now: float, number: int) -> Names:
    """Buy machine by offering; what the cloud refuses is not asked again for a while."""
    groups: dict[tuple[str, str, str, str], list[Machine]] = defaultdict(list)
    for machine in plan.machines:
        groups[(machine.pool, machine.market, machine.instance_type, machine.zone)].append(machine)
    bought: list[tuple[Machine, CloudMachine]] = []
    for key, machines in groups.items():
        grant = world.cloud.buy(key, count=len(machines), now=now, token=f"plan-{number}/{'/'.join(key)}")
        bought.extend(zip(machines, grant.machines, strict=False))
        if grant.refusal is not None:
            world.blocked[key] = now + BLOCK_SECONDS
            world.meter.decided(now, "refused", f"{grant.refusal.missing} x {'/'.join(key)}", grant.refusal.detail)
        if grant.machines:
            pods = sum(len(machine.pods) for machine in machines[: len(grant.machines)])
            world.meter.decided(now, "buy", f"{len(grant.machines)} x {'/'.join(key)}", _purpose(machines[0], pods), pods)
    names = {planned.id: granted.id for planned, granted in bought}
    for planned, granted in bought:
        after = tuple(names[one] for one in planned.opens_after if one in names)
        world.bought(entry_of(granted, planned, now=now, opens_after=after), now)
    return names


def _purpose(machine: Machine, pods: int) -> str:
    if machine.purpose == "spare":
        return f"headroom of pool {machine.pool}, at ${machine.price_per_hour:.3f} per hour"
    return f"the cheapest that fits {pods} pending {'pod' if pods == 1 else 'pods'}, at ${machine.price_per_hour:.3f} per hour each"


def _place(plan: Plan, world: World, now: float) -> bool:
    """Bind pods where the plan found room, or let them wait for a machine that is coming."""
    done = False
    gangs = set()
    for placement in plan.placements:
        task = world.tasks.get(placement.pod)
        if task is None or task.seat is not None or task.promised:
            continue
        if placement.node in world.ledger:
            world.promise(task, placement.node)
            world.ledger[placement.node].add_pod(task.key)
            done = True
        elif placement.node in world.on_node and world.place(task, placement.node, now):
            done = True
            gangs.add(task.gang)
    for gang in sorted(gangs - {""}):
        world.start_gang(gang, now)
    return done


def _remove(removal: Removal, world: World, now: float, names: Names) -> bool:
    if removal.node not in world.on_node or removal.node in world.drains:
        return False
    if any(needed not in names for needed in removal.needs):
        # The replacement was refused: the node keeps its pods.
        return False
    moves = tuple((move.pod, names.get(move.to, move.to)) for move in removal.moves)
    drain = Drain(removal.node, removal.reason, moves, tuple(names[needed] for needed in removal.needs))
    world.close(drain)
    if not drain.needs:
        _give_back(drain, world, now)
    return True


def _give_back(drain: Drain, world: World, now: float) -> None:
    pods = list(world.on_node[drain.node].values())
    offering = world.cloud.machine(drain.node).offering
    world.end(drain.node, now)
    for task in pods:
        target = dict(drain.moves).get(task.key)
        if target is not None and target in world.on_node:
            world.place(task, target, now)
    world.meter.decided(now, "remove", f"{drain.node}, {offering.instance_type} of {offering.pool}", drain.reason)


def _judge(plan: Plan, world: World) -> None:
    """Tell pods that no pool can ever serve from those that wait for a limit to lift, and remember why."""
    world.refusals = plan.unplaced
    # Thousands of pods share the reasons of their class: judge each list of reasons once.
    final: dict[int, bool] = {}
    hopeless = {one.pod for one in plan.ignored}
    world.ignored = plan.ignored
    for one in plan.unplaced:
        reasons = one.reasons
        if id(reasons) not in final:
            final[id(reasons)] = bool(reasons) and not any(reason.excluded_by in PASSING for reason in reasons)
        if final[id(reasons)]:
            hopeless.add(one.pod)
    world.waiting.judge(hopeless=hopeless, refused={one.pod for one in plan.unplaced})
