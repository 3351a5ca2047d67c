"""The embedded cluster put together: API server, scheduler, kubelets, controllers and a simulated cloud, in one process."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from gpuscaler.embedded.apiserver.aggregation.front_proxy import FrontProxy
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.autoscaling.controller import Autoscalers
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.nodes.scheduling import Scheduler
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.embedded.workloads.controllers import Workloads
from gpuscaler.kube.client import Client
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.reflector import IN_PROCESS, Pace
from gpuscaler.kube.resources import WATCHED, Resource
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delays, Faults
from gpuscaler.simulation.cloud.machines import CloudEvent
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.cloud.provider import NO_CALL_FAULTS, CallFaults, SimulatedProvider

#: Rate limit of the cluster's own parts: none.
UNLIMITED = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Settings of the simulated cloud; see :class:`~gpuscaler.simulation.cloud.core.SimulatedCloud`. ``steered`` machines register closed.

    Without ``leases`` kubelets renew none: then no node is declared unreachable, and each node saves one write every ten seconds.
    """

    seed: int = 0
    delays: Delays = field(default_factory=Delays)
    faults: Faults = NO_FAULTS
    calls: CallFaults = NO_CALL_FAULTS
    markets: Markets = field(default_factory=Markets)
    steered: bool = True
    leases: bool = True


class EmbeddedCluster:
    """A cluster for ``policy``. ``now`` is its wall clock, of which ``speed`` seconds pass in a second of the event loop.

    ``api`` answers requests, all of them or those with ``token``; ``provider`` is its cloud. The cluster runs while :meth:`run` runs. With
    ``front_proxy``, programs outside the cluster can serve APIs of their own.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        now: Callable[[], float],
        conditions: Conditions,
        speed: float = 1.0,
        token: str = "",
        front_proxy: FrontProxy | None = None,
    ) -> None:
        self.api = ApiServer(now, seed=conditions.seed, tokens=[token] if token else None, front_proxy=front_proxy)
        if front_proxy is not None:
            self.api.load([front_proxy.config_map()])
        self._token = token
        self._now, self._speed, self._seed = now, speed, conditions.seed
        self.core = SimulatedCloud(
            policy.pools, seed=conditions.seed, delays=conditions.delays, faults=conditions.faults, markets=conditions.markets
        )
        client = self.client("embedded")
        self.machines = Machines(client, now=now, steered=conditions.steered, speed=speed, faults=conditions.faults, seed=conditions.seed)
        self.provider = SimulatedProvider(
            self.core, policy.pools, now=now, listener=self._hear, faults=conditions.calls, seed=conditions.seed, speed=speed
        )
        # One picture for all parts: with one for each part every object would be decoded several times.
        self._seen = self.picture(client, pace=IN_PROCESS)
        self.kubelets = Kubelets(
            client,
            self._seen,
            now=now,
            pull=self._pull,
            plugin_pull=self.core.plugin_pull,
            speed=speed,
            leases=conditions.leases,
            lasts=self.core.kubelet_lifetime,
        )
        self._scheduler = Scheduler(client, self._seen, now=now, speed=speed)
        clock = asyncio.get_running_loop().time
        self._workloads = Workloads(client, now=now, clock=clock, random=Random(conditions.seed), speed=speed)
        self._autoscalers = Autoscalers(client, now=now, clock=clock, random=Random(conditions.seed), speed=speed)
        self.listeners: list[Callable[[CloudEvent], None]] = []

    def client(self, manager: str) -> Client:
        """A client with a direct transport to the API server."""
        transport = MemoryTransport(self.api, token=self._token)
        return Client(transport, field_manager=manager, limit=RateLimit(qps=UNLIMITED, burst=1_000_000))

    def picture(self, client: Client, resources: Sequence[Resource] = WATCHED, *, pace: Pace | None = None) -> Picture:
        """A picture of the cluster, read through ``client``."""
        return Picture(client, clock=asyncio.get_running_loop().time, random=Random(self._seed), resources=resources, pace=pace)

    def _hear(self, event: CloudEvent) -> None:
        self.machines.hear(event)
        for listener in self.listeners:
            listener(event)

    def _pull(self, node: str) -> float:
        try:
            return self.core.image_pull(node, self._now())
        except KeyError:
            return 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.api.disruptions, self._seen, self.machines, self.provider):
                tasks.create_task(part.run())
            for worker in (self.kubelets, self._scheduler, self._workloads, self._autoscalers):
                tasks.create_task(worker.run())
            if self.api.aggregator is not None:
                tasks.create_task(self.api.aggregator.run())
