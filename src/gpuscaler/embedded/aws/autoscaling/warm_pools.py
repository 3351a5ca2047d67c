"""Warm pools: machines that a group prepares beforehand, and that are in service soon after they are wanted.

A prepared machine has booted once, with its user data, and is then stopped unless the pool says otherwise. What it did meanwhile is left
out here: its node registers only when it is started for the group. Source: EC2 Auto Scaling's user guide, "Decrease latency for
applications with long boot times using warm pools" (November 2026). That it is a node so many seconds after its start is an assumption.
"""

from functools import partial
from typing import Final

from gpuscaler.embedded.aws.autoscaling import lifecycle
from gpuscaler.embedded.aws.launch import choosing
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group, Instance

#: Seconds from the start of a stopped machine to its node.
START: Final = 20.0
_STATES: Final = {"Stopped": "stopped", "Running": "running", "Hibernated": "stopped"}


def prepare(region: Region, group: Group) -> None:
    """Have as many machines ready as the pool says: up to the group's maximum, or what is prepared at most, less those that it wants."""
    told = group.settings.get("WarmPoolConfiguration")
    if told is None or "Launch" in group.suspended:
        return
    most = told.get("MaxGroupPreparedCapacity", -1)
    wanted = max(told["MinSize"], (group.max if most < 0 else most) - group.desired)
    for instance in list(group.warm.values())[wanted:]:
        lifecycle.terminate(region, instance)
    for _ in range(wanted - len(group.warm)):
        if not _launch(region, group):
            break
    group.settings["WarmPoolSize"] = len(group.warm)


def _launch(region: Region, group: Group) -> bool:
    """One more machine for the pool, in the zone that has fewest; whether there was one."""
    found = [*group.members.values(), *group.warm.values()]
    zones = sorted(group.zones, key=lambda zone: sum(one.machine.offering.zone == zone for one in found))
    for zone in zones:
        for market, _ in choosing.markets(region, group, 1):
            for choice in choosing.ordered(region, group, market, zone):
                result = region.hardware.launch(market, [choice.instance_type], zone, count=1, now=region.now, bid=choosing.bid(group))
                for machine in result.machines:
                    instance = lifecycle.register(region, machine, choice, group=group.name)
                    instance.lifecycle, instance.weight = "Warmed:Pending", choice.weight
                    group.warm[instance.id] = instance
                    region.put(machine.registered_at, partial(_prepared, region, group, instance))
                    return True
    return False


def _prepared(region: Region, group: Group, instance: Instance, _now: float) -> None:
    """It has booted, and waits."""
    if instance.lifecycle == "Warmed:Pending" and instance.id in group.warm:
        state = group.settings.get("WarmPoolConfiguration", {}).get("PoolState", "Stopped")
        instance.lifecycle, instance.state = f"Warmed:{state}", _STATES[state]
        region.wake(group)


def take(region: Region, group: Group, market: str, zone: str) -> Instance | None:
    """Start a prepared machine of a market and zone for the group; None where none is ready."""
    for instance in group.warm.values():
        offering = instance.machine.offering
        if instance.state in {"stopped", "running"} and not instance.lifecycle.endswith("Pending") and offering.zone == zone:
            if offering.market != market:
                continue
            del group.warm[instance.id]
            group.settings["WarmPoolSize"] = len(group.warm)
            instance.lifecycle, instance.state = "Pending", "pending"
            region.put(region.now + START, partial(_started, region, instance))
            lifecycle.admit(region, group, instance)
            lifecycle.start(region, instance)
            return instance
    return None


def _started(region: Region, instance: Instance, _now: float) -> None:
    """What its kubelet had said while nobody was to hear it is said now."""
    held, instance.held = instance.held, []
    for event in held:
        region.tell(event)
