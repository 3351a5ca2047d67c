"""`gpuscaler run` with ``cloud: azure`` in virtual time: an API server, a simulated account, and one process after the other."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from tests.control.account_stage import AccountStage
from tests.control.world import QUICK
from tests.embedded.azure.memory import URL, MemoryHttp

from gpuscaler.control.process.azure import make_azure_provider
from gpuscaler.control.process.running import MakeProvider
from gpuscaler.embedded.azure import SUBSCRIPTION, TENANT, Account, Conditions, Endpoint, Fault, making
from gpuscaler.embedded.azure.nodes.auto_drain import AutoDrain
from gpuscaler.embedded.azure.nodes.nodes import NodeNames, register_nodes
from gpuscaler.embedded.azure.serving.beside import tolerant_plugin
from gpuscaler.embedded.azure.state import AgentPool, Cluster, Machine, ScaleSet
from gpuscaler.embedded.azure.wire.requests import Answer, Request
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.nodes.plugins import NAMESPACE
from gpuscaler.kube.resources import DAEMON_SETS
from gpuscaler.simulation.cloud.machines import CloudEvent

CLUSTER, GROUP, LOCATION = "aks", "rg", "eastus"
#: One GPU.
SIZE: Final = "Standard_NC24ads_A100_v4"
#: What AKS's docs tell users to add to pods that may run on spot.
TOLERATIONS: Final = [{"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"}]
#: Credentials of the process: a client secret, for which the account issues tokens.
ENVIRON: Final = {
    "AZURE_TENANT_ID": TENANT,
    "AZURE_CLIENT_ID": "22222222-2222-4222-8222-222222222222",
    "AZURE_CLIENT_SECRET": "secret",
    "AZURE_AUTHORITY_HOST": URL,
}


class Write(Struct, frozen=True):
    """A call that changed something: at what time, its method, and the last part of its path; ``body`` is decoded."""

    at: float
    method: str
    name: str
    path: str
    body: Any


class LoggedEndpoint(Endpoint):
    """An endpoint that records writes whose answer, lost or not, was no error."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.writes: list[Write] = []
        self.refused: list[Write] = []

    def handle(self, request: Request) -> Answer:
        if request.method == "GET" or "/subscriptions/" not in request.path:
            return super().handle(request)
        body = json.loads(request.body) if request.body else None
        write = Write(self.account.now(), request.method, request.path.rpartition("/")[2], request.path, body)
        self.writes.append(write)
        answer = super().handle(request)
        if answer.status >= 400:
            self.writes.remove(write)
            self.refused.append(write)
        return answer


class Stage(AccountStage):
    """A cluster with the machines of an AKS cluster, its system pool ``nodepool1`` and others from :meth:`pool`.

    Each answer takes 0.1 s. Spot is tolerated by all pods.
    """

    pod_spec: Mapping[str, Any] = {"tolerations": TOLERATIONS}

    def __init__(self, folder: Path, conditions: Conditions, *, cluster: str = CLUSTER, group: str = GROUP, **account: Any) -> None:
        super().__init__(folder)
        self.account = Account(now=self.now, conditions=conditions, **account)
        self.endpoint = LoggedEndpoint(self.account)
        self.aks = self.cluster_in(SUBSCRIPTION, cluster, group=group)
        names = NodeNames()
        machines = Machines(self.cluster.client("azure"), now=self.now, naming=names.naming())
        register_nodes(self.account, machines, names)
        #: The environment of the processes.
        self.environ = dict(ENVIRON)
        #: Machines that ever registered as nodes, and their pools.
        self.registered: dict[str, str] = {}
        self.account.listeners.append(self._hear)
        drain = AutoDrain(self.account, self.cluster.client("aks"), now=self.now)
        self.support(machines.run(), drain.run(), self.pass_time_of(self.account))

    def _hear(self, event: CloudEvent) -> None:
        owner = self.account.owners.get(event.machine.id) if event.machine is not None else None
        if owner is not None:
            scale_set, machine = owner
            self.registered.setdefault(machine.vm_id, scale_set.agent_pool.name if scale_set.agent_pool is not None else scale_set.name)

    # The account

    def cluster_in(self, subscription: str, name: str = CLUSTER, *, group: str = GROUP, location: str = "", **settings: Any) -> Cluster:
        """An AKS cluster without a system pool: what is in one is not looked at here."""
        return making.create_cluster(self.account, name, group, subscription=subscription, location=location, system_size="", **settings)

    def pool(self, name: str, *, aks: Cluster | None = None, size: str | Mapping[str, int] = SIZE, **settings: Any) -> AgentPool:
        """An agent pool."""
        self.touch()
        return making.create_pool(self.account, aks or self.aks, name, size, **settings)

    def scale_set(self, pool: str) -> ScaleSet:
        """The scale set of an agent pool, or the scale set of that name."""
        sets = [scale_set for group in self.account.groups.values() for scale_set in group.scale_sets.values()]
        (found,) = [scale_set for scale_set in sets if pool in (scale_set.name, scale_set.agent_pool.name if scale_set.agent_pool else "")]
        return found

    def capacity(self, pool: str) -> int:
        return self.scale_set(pool).capacity

    def machines(self, pool: str = "") -> list[Machine]:
        """The machines that exist, of one pool or of all."""
        return [
            machine
            for scale_set in self.account.all_scale_sets()
            if pool in ("", scale_set.name, scale_set.agent_pool.name if scale_set.agent_pool else "")
            for machine in scale_set.machines.values()
            if machine.cloud is not None
        ]

    def count_registered(self, pool: str = "") -> int:
        """The number of machines that ever ran."""
        return sum(pool in ("", owner) for owner in self.registered.values())

    def limit(self, machines: int | None, **what: str) -> None:
        self.touch()
        making.set_limit(self.account, machines, **what)

    def fault(self, **what: Any) -> None:
        self.endpoint.faults.all.append(Fault(**what))

    def conditions(self, **changes: Any) -> None:
        self.account.conditions = replace(self.account.conditions, **changes)

    def evict(self, pool: str, machine: Machine, notice: float = 30.0) -> None:
        self.touch()
        making.evict(self.account, self.scale_set(pool), machine.key, notice=notice)

    def capacities(self, pool: str) -> list[int]:
        """The capacities that were written for a pool, in order."""
        name = self.scale_set(pool).name
        return [write.body["sku"]["capacity"] for write in self.endpoint.writes if write.method == "PUT" and write.name == name]

    def deletions(self) -> int:
        """The number of machines in calls that delete machines."""
        keys = ("instanceIds", "machineNames")
        return sum(len(write.body[key]) for write in self.endpoint.writes for key in keys if write.method == "POST" and key in write.body)

    # The controller

    def settings(
        self, *, more: str = "", subscriptions: Sequence[Mapping[str, Any]] = (), pools: Sequence[str] = (), **options: str
    ) -> str:
        """A run file for the AKS cluster, or for ``subscriptions``."""
        places = [dict(place) for place in subscriptions] or [place_of(pools=pools)]
        inner = "".join(f"  {name}: {value}\n" for name, value in {"subscriptions": json.dumps(places), **options}.items())
        return f"cloud: azure\nazure:\n  endpoint_url: {URL}\n{inner}http: {{enabled: false}}\n{more}"

    def provider_maker(self) -> MakeProvider:
        http = MemoryHttp(self.endpoint, delay=0.1)
        self._cuts.append(http.cut)
        return partial(make_azure_provider, environ=self.environ, http=http)


def place_of(subscription: str = SUBSCRIPTION, cluster: str = CLUSTER, group: str = GROUP, **more: Any) -> dict[str, Any]:
    """An entry of ``azure.subscriptions``."""
    return {"id": subscription, "cluster": {"name": cluster, "resource_group": group}, **more}


@asynccontextmanager
async def azure_stage(
    folder: Path,
    *,
    subscriptions: Sequence[str] = (SUBSCRIPTION,),
    locations: Sequence[str] = (LOCATION,),
    cluster: str = CLUSTER,
    group: str = GROUP,
    plugin: bool = True,
    **conditions: Any,
) -> AsyncIterator[Stage]:
    """A stage that is closed at the end; with ``plugin``, the cluster has NVIDIA's device plugin."""
    complete = Conditions(**{"boot": QUICK, "provisioning": 15.0, **conditions})
    made = Stage(folder, complete, cluster=cluster, group=group, subscriptions=subscriptions, locations=locations)
    if plugin:
        await made.user.create(DAEMON_SETS, tolerant_plugin(), namespace=NAMESPACE)
    try:
        yield made
    finally:
        await made.close()
