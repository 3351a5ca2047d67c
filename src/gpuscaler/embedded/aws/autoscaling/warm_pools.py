"""Warm pools: machines that a group prepares in advance, and that are in service soon after they are requested.

A prepared machine has booted once, with its user data, and is then stopped unless the pool says otherwise. That first boot does not
register a node here: the node registers only when the machine is started for the group. Source: EC2 Auto Scaling's user guide, "Decrease
latency for applications with long boot times using warm pools" (November 2026). The time from its start to its node is an assumption.
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
    """Fill the pool up to the group's maximum (or its maximum prepared capacity) less the desired capacity, but at least to its minimum."""
    configuration = group.settings.get("WarmPoolConfiguration")
    if configuration is None or "Launch" in group.suspended:
        return
    most = configuration.get("MaxGroupPreparedCapacity", -1)
    wanted = max(configuration["MinSize"], (group.max if most < 0 else most) - group.desired)
    for instance in list(group.warm.values())[wanted:]:
        lifecycle.terminate(region, instance)
    for _ in range(wanted - len(group.warm)):
        if not _launch(region, group):
            break
    group.settings["WarmPoolSize"] = len(group.warm)


def _launch(region: Region, group: Group) -> bool:
    """Prepare one more machine, in the zone with the fewest; returns whether there was one."""
    instances = [*group.members.values(), *group.warm.values()]
    zones = sorted(group.zones, key=lambda zone: sum(instance.machine.offering.zone == zone for instance in instances))
    for zone in zones:
        for market, _ in choosing.split_by_market(region, group, 1):
            for choice in choosing.ordered_choices(region, group, market, zone):
                result = region.hardware.launch(
                    market, [choice.instance_type], zone, count=1, now=region.now, bid=choosing.maximum_price(group)
                )
                for machine in result.machines:
                    instance = lifecycle.register(region, machine, choice, group=group.name)
                    instance.lifecycle, instance.weight = "Warmed:Pending", choice.weight
                    group.warm[instance.id] = instance
                    region.put(machine.registered_at, partial(_mark_prepared, region, group, instance))
                    return True
    return False


def _mark_prepared(region: Region, group: Group, instance: Instance, _now: float) -> None:
    """Mark a machine as prepared after its boot."""
    if instance.lifecycle == "Warmed:Pending" and instance.id in group.warm:
        state = group.settings.get("WarmPoolConfiguration", {}).get("PoolState", "Stopped")
        instance.lifecycle, instance.state = f"Warmed:{state}", _STATES[state]
        region.wake(group)


def take_prepared(region: Region, group: Group, market: str, zone: str) -> Instance | None:
    """Start a prepared machine of a market and zone for the group; None if none is ready."""
    for instance in group.warm.values():
        offering = instance.machine.offering
        if instance.state in {"stopped", "running"} and not instance.lifecycle.endswith("Pending") and offering.zone == zone:
            if offering.market != market:
                continue
            del group.warm[instance.id]
            group.settings["WarmPoolSize"] = len(group.warm)
            instance.lifecycle, instance.state = "Pending", "pending"
            region.put(region.now + START, partial(_deliver_held_events, region, instance))
            lifecycle.add_member(region, group, instance)
            lifecycle.start(region, instance)
            return instance
    return None


def _deliver_held_events(region: Region, instance: Instance, _now: float) -> None:
    """Deliver the kubelet's events that were held back while the machine was in the pool."""
    held, instance.held = instance.held, []
    for event in held:
        region.deliver(event)
