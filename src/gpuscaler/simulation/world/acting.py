"""Carries out decisions in the simulated world, as a controller does in a real one."""

from gpuscaler.planning.plans import Placement, PlannedRemoval, fits_no_pool
from gpuscaler.simulation.world.autoscaler import Decisions
from gpuscaler.simulation.world.ledger import Drain
from gpuscaler.simulation.world.world import World


def carry_out(decisions: Decisions, world: World, now: float) -> bool:
    """Carry out the decisions; return whether anything was done."""
    # Removals below may lift a limit; pods that were refused may then ask again.
    _record_unplaced(decisions, world)
    for purchase_id in decisions.withdrawals:
        world.withdraw(purchase_id)
    for purchase in decisions.purchases:
        world.order_machines(purchase, now)
    placed = _carry_out_placements(decisions.placements, world, now)
    removed = [_start_removal(removal, world, now) for removal in decisions.removals]
    for name, unneeded in decisions.marks:
        if name in world.on_node:
            world.scheduler.mark(name, unneeded=unneeded)
    return bool(decisions.purchases) or bool(decisions.withdrawals) or placed or any(removed)


def finish_drains(world: World, now: float) -> None:
    """End the nodes that have open replacements."""
    for drain in list(world.drains.values()):
        if not any(intent in world.ledger for intent in drain.needs):
            _end_drained_node(drain, world, now)


def _carry_out_placements(placements: tuple[Placement, ...], world: World, now: float) -> bool:
    """Bind pods where there is room, or let them wait for an ordered machine."""
    changed = False
    gangs = set()
    for placement in placements:
        task = world.tasks.get(placement.pod)
        if task is None or task.seat is not None or task.promised == placement.node:
            continue
        if task.promised and not task.gang and placement.node not in world.on_node:
            continue
        if placement.node in world.ledger:
            world.promise(task, placement.node)
            world.ledger[placement.node].add_pod(task.key)
            changed = True
        elif world.steers and placement.node in world.on_node and world.place(task, placement.node, now):
            changed = True
            gangs.add(task.gang)
    for gang in sorted(gangs - {""}):
        world.start_gang(gang, now)
    return changed


def _start_removal(removal: PlannedRemoval, world: World, now: float) -> bool:
    node = removal.node
    entry = world.ledger.get(node)
    if entry is not None and entry.machine is not None:
        node = entry.machine.id
    if node in world.entries and node not in world.on_node:
        world.meter.record_decision(now, "remove", f"{node}, never opened", removal.reason)
        world.end_machine(node, now)
        return True
    if node not in world.on_node or node in world.drains:
        return False
    if any(intent not in world.ledger and not _is_open(intent, world) for intent in removal.needs):
        # The replacement was refused: the node keeps its pods.
        return False
    drain = Drain(node, removal.reason, tuple((move.pod, move.to) for move in removal.moves), removal.needs)
    world.close(drain)
    if not any(needed in world.ledger for needed in drain.needs):
        _end_drained_node(drain, world, now)
    return True


def _is_open(intent: str, world: World) -> bool:
    return world.node_of_intent.get(intent, "") in world.on_node


def _end_drained_node(drain: Drain, world: World, now: float) -> None:
    pods = list(world.on_node[drain.node].values())
    offering = world.cloud.machine(drain.node).offering
    world.meter.record_decision(now, "remove", f"{drain.node}, {offering.instance_type} of {offering.pool}", drain.reason)
    world.end_machine(drain.node, now)
    for task in pods:
        target = dict(drain.moves).get(task.key, "")
        target = world.node_of_intent.get(target, target)
        if task.seat is None and target in world.on_node:
            world.place(task, target, now)


def _record_unplaced(decisions: Decisions, world: World) -> None:
    """Separate pods that no pool can ever serve from those that wait for a limit to lift, and remember the reasons."""
    world.refusals = decisions.unplaced
    # Thousands of pods share the reasons of their class: judge each list of reasons once.
    final: dict[int, bool] = {}
    unservable = {ignored.pod for ignored in decisions.ignored}
    world.ignored = decisions.ignored
    for unplaced in decisions.unplaced:
        reasons = unplaced.reasons
        if id(reasons) not in final:
            final[id(reasons)] = fits_no_pool(reasons)
        if final[id(reasons)]:
            unservable.add(unplaced.pod)
    world.waiting.record_unplaced(unservable=unservable, refused={unplaced.pod for unplaced in decisions.unplaced})
