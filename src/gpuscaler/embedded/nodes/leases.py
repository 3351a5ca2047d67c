"""Leases of nodes, by which a controller manager knows that their kubelets are alive.

Source: ``k8s.io/component-helpers/apimachinery/lease`` and the kubelet's ``nodeLeaseDurationSeconds`` (40); the renewal interval is a
quarter of it. Without one for ``node-monitor-grace-period`` (50 s since Kubernetes 1.32, before 40 s) a node is declared unreachable.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unreachable
from gpuscaler.kube.resources import LEASES

_LOG = structlog.get_logger(__name__)
NAMESPACE: Final = "kube-node-lease"
DURATION: Final = 40
INTERVAL: Final = DURATION / 4


class Leases:
    """Renews the Leases of all nodes, ``abreast`` requests at a time, while :meth:`run` runs.

    ``now`` is the wall clock, of which ``speed`` seconds pass in a second of the event loop. ``again`` is called for a node whose Lease
    had expired, through an earlier process or while the API server was away: the node may have been declared unreachable.
    """

    def __init__(
        self,
        client: Client,
        *,
        now: Callable[[], float],
        again: Callable[[str], Awaitable[None]],
        speed: float = 1.0,
        abreast: int = 32,
    ) -> None:
        self._client, self._now, self._again, self._speed = client, now, again, speed
        self._uids: dict[str, str] = {}
        #: Nodes whose Lease exists, and when we last renewed it.
        self._made: dict[str, float] = {}
        self._slots = asyncio.Semaphore(abreast)
        self._stirred = asyncio.Event()
        #: Refusals that were already logged.
        self._refused: set[str] = set()

    def keep(self, node: str, uid: str) -> None:
        """Renew the Lease of this node from now on."""
        if self._uids.get(node) != uid:
            self._uids[node] = uid
            self._made.pop(node, None)
            self._stirred.set()

    def leave(self, node: str) -> None:
        """Stop renewing it: the node or its kubelet is gone."""
        self._uids.pop(node, None)
        self._made.pop(node, None)

    async def run(self) -> None:
        while True:
            await asyncio.gather(*(self._renew(node) for node in self._uids))
            self._stirred.clear()
            try:
                # Without nodes nothing is due; a new node gets its Lease at once.
                async with asyncio.timeout(INTERVAL / self._speed if self._uids else None):
                    await self._stirred.wait()
            except TimeoutError:
                continue
            await asyncio.gather(*(self._renew(node) for node in self._uids.keys() - self._made.keys()))

    async def _renew(self, node: str) -> None:
        async with self._slots:
            try:
                await self._write(node)
            except (ApiError, Unreachable) as error:
                # It is tried again at the next renewal.
                what = "patch" if node in self._made else "create"
                if isinstance(error, Forbidden) and what not in self._refused:
                    self._refused.add(what)
                    _LOG.warning("the Lease of a simulated node may not be renewed", node=node, problem=str(error))

    async def _write(self, node: str) -> None:
        uid, now = self._uids.get(node), self._now()
        if uid is None:
            return
        moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if node not in self._made:
            try:
                await self._client.create(LEASES, lease_of(node, uid, moment), namespace=NAMESPACE)
            except AlreadyExists:
                # It is unknown whether the renewal took effect.
                self._made[node] = float("-inf")
            else:
                self._made[node] = now
                return
        try:
            await self._client.merge_patch(LEASES, node, {"spec": {"holderIdentity": node, "renewTime": moment}}, namespace=NAMESPACE)
        except NotFound:
            self._made.pop(node, None)
            return
        if now - self._made.get(node, now) > DURATION:
            await self._again(node)
        self._made[node] = now


def lease_of(node: str, uid: str, moment: str) -> dict[str, Any]:
    """The Lease of a node, which is deleted with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": DURATION, "renewTime": moment},
    }
