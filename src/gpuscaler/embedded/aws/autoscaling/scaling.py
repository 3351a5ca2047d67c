"""Actions of Auto Scaling groups by themselves: launching, ending and replacing instances, balancing zones."""

from collections.abc import Iterable
from functools import partial
from math import ceil
from typing import Final

from gpuscaler.embedded.aws.autoscaling import activities, lifecycle, warm_pools
from gpuscaler.embedded.aws.hardware.refusals import Failure, activity_text
from gpuscaler.embedded.aws.launch import choosing
from gpuscaler.embedded.aws.messages import notices
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group, Instance
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime
from gpuscaler.simulation.cloud.machines import LOST, NOTICE, RECLAIMED, CloudEvent, CloudMachine

_ALL_PROTECTED: Final = "Could not scale to desired capacity because all remaining instances are protected from scale-in."


def set_desired(region: Region, group: Group, desired: int, why: str) -> None:
    """Set the desired capacity of a group; it reacts a moment later, even after earlier failures."""
    if desired != group.desired:
        group.cause = f"At {iso(to_datetime(region.now))} {why} changing the desired capacity from {group.desired} to {desired}."
    group.desired = desired
    group.retry_at = 0.0
    lifecycle.record_history(region, group)
    region.wake(group)


def reconcile_group(region: Region, group: Group) -> None:
    """Compare the actual with the desired capacity of a group, and act."""
    risky = sum(instance.weight for instance in group.members.values() if instance.counted and instance.risky)
    evening = sum(instance.weight for instance in group.members.values() if instance.counted and instance.evens)
    lacks = group.desired - (group.has - risky - evening)
    if lacks > 0 and "Launch" not in group.suspended:
        if region.now >= group.retry_at:
            launch_missing(region, group, lacks)
        else:
            region.wake(group, group.retry_at)
    elif lacks < 0 and "Terminate" not in group.suspended:
        _shrink(region, group, -lacks)
    elif lacks == 0 and evening:
        _end_surplus(region, group)
    elif lacks == 0 and not risky:
        _balance(region, group)
    _end_replaced(region, group)
    warm_pools.prepare(region, group)


def launch_missing(region: Region, group: Group, units: int) -> None:
    """Try to launch ``units`` over all zones; failures appear in activities, and are tried again later."""
    before = group.has
    missing = 0
    for market, share in choosing.split_by_market(region, group, units):
        left = share
        zones = list(group.zones)
        while left > 0 and zones:
            shares = choosing.balance_over_zones(group, left, zones)
            for zone, count in shares.items():
                granted, failures = launch(region, group, market, zone, count)
                left -= granted
                if granted < count:
                    zones.remove(zone)
                    _record_failures(region, group, failures[-1:], before)
        missing += max(0, left)
    if missing:
        group.retry_at = region.now + region.conditions.retry
        region.wake(group, group.retry_at)


def launch(region: Region, group: Group, market: str, zone: str, units: int) -> tuple[int, list[Failure]]:
    """Launch ``units`` in one zone at once; returns the launched units, and the refusals on the way."""
    granted, failures = 0, list[Failure]()
    try:
        choices = choosing.ordered_choices(region, group, market, zone)
    except AwsError as error:
        return 0, [Failure(error.code, error.message, market, "", zone, units)]
    while granted < units and (prepared := warm_pools.take_prepared(region, group, market, zone)) is not None:
        granted += prepared.weight
    for choice in choices:
        if granted >= units:
            break
        count = ceil((units - granted) / choice.weight)
        name = choice.instance_type
        result = region.hardware.launch(market, [name], zone, count=count, now=region.now, bid=choosing.maximum_price(group))
        failures += result.failures
        for machine in result.machines:
            granted += choice.weight
            lifecycle.add_machine(region, group, machine, choice)
    return granted, failures


def _record_failures(region: Region, group: Group, failures: Iterable[Failure], before: int) -> None:
    mixed = "MixedInstancesPolicy" in group.settings
    for failure in failures:
        text = activity_text(failure, mixed=mixed)
        cause = activities.launch_cause(region, group, before)
        description = f"Launching a new EC2 instance.  Status Reason: {text}"
        activities.add(region, group, description, cause, status="Failed", message=text, ended=True, zone=failure.zone)


def _shrink(region: Region, group: Group, units: int) -> None:
    """End unprotected instances: those of the fullest zone first, of these the oldest."""
    while units > 0:
        victim = _select_victim(group, units)
        if victim is None:
            if any(instance.counted and instance.protected for instance in group.members.values()):
                activities.add_failure_once(region, group, _ALL_PROTECTED)
            return
        units -= victim.weight
        what = (
            "an instance was taken out of service in response to a difference between desired and actual capacity, shrinking the capacity"
        )
        cause = f"{group.cause}  At {iso(to_datetime(region.now))} {what} from {group.has} to {group.has - victim.weight}."
        lifecycle.end(region, group, victim, cause.strip())


def _select_victim(group: Group, units: int) -> Instance | None:
    """The choice of the default termination policy: the oldest in the fullest zone that has an unprotected instance."""
    load: dict[str, int] = {}
    for instance in group.members.values():
        if instance.counted:
            load[instance.machine.offering.zone] = load.get(instance.machine.offering.zone, 0) + instance.weight
    free = [instance for instance in group.members.values() if instance.counted and not instance.protected and instance.weight <= units]
    return min(free, key=lambda instance: (-load[instance.machine.offering.zone], instance.launched_at, instance.id), default=None)


def _balance(region: Region, group: Group) -> None:
    """Launch in the emptiest zone before ending in the fullest: AZRebalance, which is on by default in every group.

    A group whose fullest zone has only instances that are protected from scale-in launches none. It waits until all of its instances
    are in service. Both are assumptions.
    """
    zones = dict.fromkeys(group.zones, 0)
    for instance in group.members.values():
        if instance.counted and instance.machine.offering.zone in zones:
            zones[instance.machine.offering.zone] += 1
    if "AZRebalance" in group.suspended or "Launch" in group.suspended or max(zones.values()) - min(zones.values()) < 2:
        return
    fullest, emptiest = max(zones, key=lambda zone: zones[zone]), min(zones, key=lambda zone: zones[zone])
    in_fullest = [instance for instance in group.members.values() if instance.counted and instance.machine.offering.zone == fullest]
    victim = next((instance for instance in in_fullest if not instance.protected), None)
    if victim is None or any(instance.lifecycle != "InService" for instance in group.members.values() if instance.counted):
        return
    if region.now < group.retry_at or group.has >= group.max + max(1, group.max // 10):
        return
    what = f"instances were launched to balance instances in zones {emptiest} with other zones"
    group.cause = f"At {iso(to_datetime(region.now))} {what} resulting in more than desired number of instances in the group."
    before = group.members.keys() | set()
    launch(region, group, victim.machine.offering.market, emptiest, victim.weight)
    launched = [instance for name, instance in group.members.items() if name not in before]
    for instance in launched:
        instance.evens = True
    if not launched:
        group.retry_at = region.now + region.conditions.retry
        region.wake(group, group.retry_at)


def _end_surplus(region: Region, group: Group) -> None:
    """End surplus instances, once those that were launched to balance zones are in service.

    The termination policy chooses the instance at that time, as always (user guide, "Control which Auto Scaling instances terminate
    during scale in"), so protection that was set in between counts. If all others are protected, the launched instance is ended.
    """
    launched = [instance for instance in group.members.values() if instance.evens and instance.counted]
    if "Terminate" in group.suspended or any(instance.lifecycle != "InService" for instance in group.members.values() if instance.counted):
        return
    for instance in launched:
        instance.evens = False
        if (victim := _select_victim(group, instance.weight)) is None:
            continue
        now = f"At {iso(to_datetime(region.now))}"
        # The wording was seen in real groups: aws/containers-roadmap#1453.
        less = f"shrinking the capacity from {group.has} to {group.has - victim.weight}"
        what = f"{now} an instance was taken out of service in response to a difference between desired and actual capacity, {less}."
        what += f"  {now} instance {victim.id} was selected for termination."
        lifecycle.end(region, group, victim, f"{group.cause}  {what}")


def _end_replaced(region: Region, group: Group) -> None:
    """End instances to be replaced, once enough others are in service."""
    safe = sum(instance.weight for instance in group.members.values() if instance.lifecycle == "InService" and not instance.risky)
    for instance in [instance for instance in group.members.values() if instance.risky and instance.counted]:
        if safe >= group.desired and "Terminate" not in group.suspended:
            text = f"At {iso(to_datetime(region.now))} an instance was taken out of service in response to {instance.why}."
            lifecycle.end(region, group, instance, text)


# Events of machines


def handle_event(region: Region, event: CloudEvent) -> None:
    """Handle an event of a machine of the region's hardware."""
    machine = event.machine
    instance = region.instances.get(machine.id) if machine is not None else None
    if machine is None or instance is None:
        return
    if event.kind == NOTICE:
        announce_reclaim(region, instance)
    elif event.kind == LOST:
        _handle_loss(region, instance, event.why)


def announce_reclaim(region: Region, instance: Instance) -> None:
    """Announce that EC2 reclaims a spot instance: the rebalance recommendation and the two-minute warning, at once."""
    notices.rebalance(region, instance)
    notices.interruption(region, instance)
    recommend_rebalance(region, instance)


def recommend_rebalance(region: Region, instance: Instance) -> None:
    """Recommend rebalancing for an instance; a group with capacity rebalancing replaces it."""
    group = region.groups.get(instance.group)
    if group is not None and group.settings.get("CapacityRebalance"):
        instance.risky, instance.why = True, "an EC2 instance rebalance recommendation"
        region.wake(group)


def _handle_loss(region: Region, instance: Instance, why: str) -> None:
    instance.reason = "Server.SpotInstanceTermination" if why == RECLAIMED else "Server.InternalError"
    lifecycle.handle_loss(region, instance)


def reclaim(region: Region, instance: Instance, *, notice: float) -> None:
    """Reclaim a spot instance ``notice`` seconds from now, with a warning if that is above 0."""
    if notice > 0:
        announce_reclaim(region, instance)
    region.put(region.now + notice, partial(_reclaim_now, region, instance.machine))


def _reclaim_now(region: Region, machine: CloudMachine, now: float) -> None:
    instance = region.instances[machine.id]
    if machine.ended_at is None and instance.ended_at is None:
        region.hardware.end(machine, now)
        _handle_loss(region, instance, RECLAIMED)
