"""Converts machines of our groups to the controller's instances: states, markets, launch times, provider ids."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import LAUNCHING_STATES, Group, Machine, Reply
from gpuscaler.clouds.aws.api.spelling import is_same_word
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING, TERMINATED, Instance

_ID: Final = re.compile(r"aws:///(?P<zone>[a-z0-9-]*)/(?P<id>i-[0-9a-f]+)")
#: A detached machine has left its group but keeps running, so it is not ``terminated``: the Node of a terminated machine may be deleted.
_ENDING: Final = ("Terminating", "Detaching", "Detached")
_GONE: Final = "Terminated"
_WARM: Final = "Warmed:"


class Detail(Struct, frozen=True, gc=False):
    """What a group does not list about a machine: its market, its launch time in seconds since the epoch, and its reservation."""

    market: str
    launched: float
    reservation: str = ""


def provider_id(zone: str, instance: str) -> str:
    """``spec.providerID`` of a machine's Node."""
    return f"aws:///{zone}/{instance}"


def instance_id(provider: str) -> str:
    """The EC2 id of the machine with the provider id ``provider``; empty if it is not one of AWS."""
    match = _ID.fullmatch(provider)
    return match["id"] if match else ""


def state_of(lifecycle: str) -> str:
    """One of the states of :mod:`gpuscaler.model.instances`. A machine in an unknown state counts as running."""
    if lifecycle in LAUNCHING_STATES:
        return PENDING
    if lifecycle.startswith(_ENDING):
        return STOPPING
    return TERMINATED if lifecycle == _GONE else RUNNING


def instance_of(machine: Machine, aws_pool: AwsPool, detail: Detail | None, *, token: str = "") -> Instance:
    market = market_of(machine, aws_pool, detail)
    return Instance(
        id=provider_id(machine.zone, machine.id),
        pool=aws_pool.pool.name,
        market=market,
        instance_type=machine.instance_type,
        zone=machine.zone,
        state=state_of(machine.state),
        launched=detail.launched if detail is not None else 0.0,
        token=token,
        fault="" if machine.healthy else f"group {aws_pool.group.name} finds the machine unhealthy",
        ends=aws_pool.ends.get(detail.reservation, 0.0) if detail is not None else 0.0,
        protected=machine.protected,
    )


def market_of(machine: Machine, aws_pool: AwsPool, detail: Detail | None) -> str:
    """The market that the machine was bought on: as EC2 reports it, else its group's only one, or the more expensive of two."""
    if detail is not None:
        return detail.market
    offerings = [
        offering for offering in aws_pool.pool.offerings if (offering.instance_type, offering.zone) == (machine.instance_type, machine.zone)
    ]
    dearest = max((offering for offering in offerings if offering.market != "reserved"), key=lambda offering: offering.price, default=None)
    return dearest.market if dearest is not None else "on-demand"


def machines_by_id(groups: Iterable[Group]) -> dict[str, tuple[Group, Machine]]:
    """Machines by EC2 id, without those that wait in a warm pool."""
    return {machine.id: (group, machine) for group in groups for machine in group.machines if not machine.state.startswith(_WARM)}


def details_of(reservations: Iterable[Reply]) -> dict[str, Detail]:
    """Details by EC2 id, from ``Reservations`` of DescribeInstances. Entries that cannot be read are left out."""
    details = {}
    for instance in (instance for reservation in reservations for instance in reservation.get("Instances") or ()):
        launched = instance.get("LaunchTime")
        if isinstance(instance.get("InstanceId"), str) and isinstance(launched, datetime):
            details[instance["InstanceId"]] = Detail(
                _market_of_instance(instance), launched.timestamp(), str(instance.get("CapacityReservationId") or "")
            )
    return details


def _market_of_instance(instance: Mapping[str, object]) -> str:
    lifecycle = instance.get("InstanceLifecycle")
    if is_same_word(lifecycle, "spot"):
        return "spot"
    return "reserved" if instance.get("CapacityReservationId") or is_same_word(lifecycle, "capacity-block") else "on-demand"
