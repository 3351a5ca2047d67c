"""Machines that their groups no longer list: their state in EC2, so that their Node objects can be deleted.

A group forgets a machine when it ends; EC2 lists it as terminated for about an hour. A machine that is detached from its group keeps
running, and is no longer managed here.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.api.causes import interpret_error
from gpuscaler.clouds.aws.api.groups import Machine, Reply
from gpuscaler.clouds.aws.api.spelling import respelled
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.aws.discovery.regions import MAX_VALUES, chunks
from gpuscaler.clouds.aws.machines.listing import details_of, instance_id, instance_of
from gpuscaler.model.instances import TERMINATED, Instance

#: The tag that Auto Scaling puts on the machines of a group.
GROUP_TAG: Final = "aws:autoscaling:groupName"
#: Prefixes of reasons that mean a user or a program ended the machine.
_ASKED_FOR: Final = ("Client.User", "Client.InstanceInitiated")
#: EC2 states of machines that are ending; machines in other states keep running.
_GONE, _GOING = "terminated", ("shutting-down", "stopping", "stopped")
#: A machine that is older than this and unknown to EC2 has been forgotten, in seconds; EC2 may not know a younger one yet.
YOUNG_SECONDS: Final = 600.0
#: How long ended machines are listed, in seconds.
LISTED_SECONDS: Final = 3600.0


class _EndedMachine(Struct, frozen=True, gc=False):
    since: float
    instance: Instance


class DepartedMachines:
    """Follows machines from the moment their groups no longer list them."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls
        self._listed: dict[str, tuple[str, Instance]] = {}
        #: Machines to ask EC2 about: their region, their last listed state, and since when.
        self._unlisted: dict[str, tuple[str, Instance, float]] = {}
        self._ended: dict[str, _EndedMachine] = {}
        self._swept = False

    async def list_ended(self, listed: Iterable[tuple[str, Instance]], pools: Mapping[tuple[str, str], AwsPool]) -> list[Instance]:
        """Ended machines that are not in ``listed``, the (region, machine) pairs that groups still list. Raises CloudError."""
        if not self._swept:
            # Machines that ended while no process was observing.
            swept = await asyncio.gather(*(self._sweep(region, batch) for region, batch in _batches_by_region(pools)))
            self._ended |= {
                instance.id: _EndedMachine(self._calls.now(), instance)
                for found_there in swept
                for instance in self._instances_of_groups(found_there, pools)
            }
            self._swept = True
        now = {instance.id: (region, instance) for region, instance in listed}
        at = self._calls.now()
        self._unlisted |= {name: (*pair, at) for name, pair in self._listed.items() if name not in now}
        self._listed = now
        for name in self._unlisted.keys() & now.keys():
            del self._unlisted[name]
        await self._ask_about(dict(self._unlisted))
        self._ended = {name: ended for name, ended in self._ended.items() if ended.since > at - LISTED_SECONDS and name not in now}
        return [ended.instance for ended in self._ended.values()]

    async def _ask_about(self, machines: Mapping[str, tuple[str, Instance, float]]) -> None:
        regions = sorted({region for region, _, _ in machines.values()})
        batches = [
            (region, batch)
            for region in regions
            for batch in chunks((name for name, (where, _, _) in machines.items() if where == region), MAX_VALUES)
        ]
        states: dict[str, tuple[str, str]] = {}
        for answer in await asyncio.gather(*(self._states(region, batch) for region, batch in batches)):
            states |= answer
        now = self._calls.now()
        for name, (_, instance, since) in machines.items():
            state, reason = states.get(instance_id(name), ("", ""))
            forgotten = not state and (instance.launched or since) < now - YOUNG_SECONDS
            if state == _GONE or forgotten:
                self._ended[name] = _EndedMachine(now, replace(instance, state=TERMINATED, fault=reason))
            if (state and state not in _GOING) or forgotten:
                del self._unlisted[name]

    async def _states(self, region: str, ids: list[str]) -> dict[str, tuple[str, str]]:
        """The state of each machine by EC2 id, and the reason for it."""
        entries = await self._describe(region, {"instance-id": [instance_id(name) for name in ids]})
        instances = (instance for entry in entries for instance in entry.get("Instances") or ())
        return {
            instance["InstanceId"]: (respelled(instance["State"]["Name"], (_GONE, *_GOING)), ec2_reason(instance)) for instance in instances
        }

    async def _sweep(self, region: str, groups: list[str]) -> tuple[str, list[Any]]:
        return region, await self._describe(region, {f"tag:{GROUP_TAG}": groups, "instance-state-name": [_GONE]})

    async def _describe(self, region: str, wanted: Mapping[str, Collection[str]]) -> list[Any]:
        filters = [{"Name": name, "Values": list(values)} for name, values in wanted.items()]
        return await self._calls.pages("ec2", region, "DescribeInstances", "Reservations", Filters=filters)

    def _instances_of_groups(self, swept: tuple[str, list[Any]], pools: Mapping[tuple[str, str], AwsPool]) -> Iterable[Instance]:
        region, entries = swept
        details = details_of(entries)
        for instance in (instance for entry in entries for instance in entry.get("Instances") or ()):
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags") or ()}
            aws_pool = pools.get((region, tags.get(GROUP_TAG, "")))
            if aws_pool is not None:
                machine = Machine(instance["InstanceId"], instance["InstanceType"], instance["Placement"]["AvailabilityZone"], "Terminated")
                yield instance_of(machine, aws_pool, details.get(machine.id))


def ec2_reason(entry: Reply) -> str:
    """Why EC2 ended a machine, in its words; empty if a user or a program requested it."""
    reason = entry.get("StateReason") or {}
    code, text = str(reason.get("Code") or ""), str(reason.get("Message") or "")
    return "" if not code or code.startswith(_ASKED_FOR) else interpret_error(code, text).detail


def _batches_by_region(pools: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    names: dict[str, list[str]] = {}
    for region, name in pools:
        names.setdefault(region, []).append(name)
    return [(region, batch) for region, group_names in names.items() for batch in chunks(group_names, MAX_VALUES)]
