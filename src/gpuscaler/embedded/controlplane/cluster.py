"""A simulated cloud and its nodes on a real control plane: the embedded cluster without its API server and controllers."""

import asyncio
from collections.abc import Callable
from random import Random

from gpuscaler.embedded.controlplane.plane import ControlPlane
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.cluster import UNLIMITED, Conditions
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.machines import CloudEvent
from gpuscaler.simulation.cloud.provider import SimulatedProvider


class RealCluster:
    """A cloud for ``policy`` whose machines become nodes of ``plane``, while :meth:`run` runs. ``now`` is the wall clock."""

    def __init__(self, policy: Policy, plane: ControlPlane, *, now: Callable[[], float], conditions: Conditions) -> None:
        self.core = SimulatedCloud(
            policy.pools, seed=conditions.seed, delays=conditions.delays, faults=conditions.faults, markets=conditions.markets
        )
        self.provider = SimulatedProvider(
            self.core, policy.pools, now=now, listener=self._hear, faults=conditions.calls, seed=conditions.seed
        )
        self.listeners: list[Callable[[CloudEvent], None]] = []
        self.plane = plane
        self._transport = HttpTransport(plane.access())
        client = Client(self._transport, field_manager="kubelet", limit=RateLimit(qps=UNLIMITED, burst=1_000_000))
        self._machines = Machines(client, now=now, steered=conditions.steered, faults=conditions.faults, seed=conditions.seed)
        clock = asyncio.get_running_loop().time
        self._seen = Picture(client, clock=clock, random=Random(conditions.seed), resources=(PODS, NODES))
        self._kubelets = Kubelets(
            client,
            self._seen,
            now=now,
            pull=lambda node: self.core.image_pull(node, now()),
            plugin_pull=self.core.plugin_pull,
            lasts=self.core.kubelet_lifetime,
        )

    def _hear(self, event: CloudEvent) -> None:
        self._machines.hear(event)
        for listener in self.listeners:
            listener(event)

    async def run(self) -> None:
        """Run until cancelled, or until a program ends, which raises :exc:`~gpuscaler.embedded.controlplane.processes.EndedError`."""
        try:
            async with self._transport, asyncio.TaskGroup() as tasks:
                for part in (self.plane, self._machines, self.provider, self._seen, self._kubelets):
                    tasks.create_task(part.run())
        except ExceptionGroup as group:
            # The caller expects the error of the program that ended, not an exception group.
            raise group.exceptions[0] from None
