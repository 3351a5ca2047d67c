"""What AKS does on nodes whose machine has a scheduled event: its node problem detector sets a condition, its auto-drain evicts pods.

Auto-drain acts on Preempt, Redeploy and Reboot, at best effort: it cordons the node and evicts its pods once ("Node auto-repair and
auto-drain in AKS").
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

import msgspec

from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import ScheduledEvent
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import NODES, PODS

CONDITION: Final = "VMEventScheduled"
_DRAINED: Final = frozenset({"Preempt", "Redeploy", "Reboot"})
#: Seconds between two looks at the metadata service.
_PAUSE: Final = 5.0


class AutoDrain:
    """Watches the scheduled events of ``account`` while :meth:`run` runs. ``speed`` seconds of ``now`` pass in a second."""

    def __init__(self, account: Contents, client: Client, *, now: Callable[[], float], speed: float = 1.0) -> None:
        self._account, self._client, self._now, self._speed = account, client, now, speed
        self._handled: set[str] = set()

    async def run(self) -> None:
        """Handle events until cancelled."""
        while True:
            for node, event in list(self._new_events()):
                self._handled.add(event.id)
                # Best effort: what cannot be written is not tried again.
                with suppress(ApiError, Unreachable):
                    await self._set_condition(node, event)
                    if event.kind in _DRAINED and self._account.conditions.auto_drain:
                        await self._drain(node)
            await asyncio.sleep(_PAUSE / self._speed)

    def _new_events(self) -> Iterator[tuple[str, ScheduledEvent]]:
        """The nodes of AKS with events that were not handled yet."""
        new = [event for event in self._account.events.values() if event.id not in self._handled]
        if not new:
            return
        for scale_set in self._account.all_scale_sets():
            for machine in scale_set.machines.values() if scale_set.agent_pool is not None else ():
                for event in new:
                    if machine.name in event.resources:
                        yield machine.computer.lower(), event

    async def _set_condition(self, node: str, event: ScheduledEvent) -> None:
        shown: dict[str, Any] = msgspec.json.decode(await self._client.get(NODES, node))
        at = format_datetime(datetime.fromtimestamp(event.at, UTC), usegmt=True)
        moment = timestamp(self._now())
        condition = {
            "type": CONDITION,
            "status": "True",
            "reason": CONDITION,
            "message": f"{event.kind} Scheduled: {at}",
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        others = [other for other in shown["status"].get("conditions") or () if other["type"] != CONDITION]
        await self._client.merge_patch(NODES, node, {"status": {"conditions": [*others, condition]}}, subresource="status")

    async def _drain(self, node: str) -> None:
        await self._client.merge_patch(NODES, node, {"spec": {"unschedulable": True}})
        for raw in await self._client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={node}"}):
            pod = msgspec.json.decode(raw)
            owners = pod["metadata"].get("ownerReferences") or ()
            if not any(owner["kind"] == "DaemonSet" for owner in owners):
                with suppress(ApiError):
                    await self._client.evict(pod["metadata"]["namespace"], pod["metadata"]["name"])
