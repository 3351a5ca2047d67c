"""An Azure account beside a cluster: its endpoint is served, and its machines become Nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpuscaler.embedded.azure import making
from gpuscaler.embedded.azure.account import Account
from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.hardware.series import series_of
from gpuscaler.embedded.azure.nodes.auto_drain import AutoDrain
from gpuscaler.embedded.azure.nodes.nodes import NodeNames, register_nodes
from gpuscaler.embedded.azure.serving.endpoint import Endpoint
from gpuscaler.embedded.azure.serving.server import serve
from gpuscaler.embedded.azure.state import Cluster
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.nodes.plugins import NAMESPACE, PLUGINS
from gpuscaler.embedded.serving import node_faults
from gpuscaler.embedded.serving.accounts import boot_delays, let_time_pass
from gpuscaler.embedded.serving.conditions import with_changes
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists
from gpuscaler.kube.resources import DAEMON_SETS

#: The contents of the account at the start.
GROUP, CLUSTER = "rg", "aks"
SPOT_POOL, POOL = "gpuspot", "gpu"
GPU_SIZE: Final = "Standard_NC24ads_A100_v4"
GPU_TAINT: Final = "sku=gpu:NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAccountServer:
    """Settings of an account with ``locations``, at ``port`` (0: a free one), whose spot markets follow ``spot``.

    It has an AKS cluster with a system pool of one machine, and a spot and an on-demand pool of GPU machines without any. Machines register
    ``boot`` seconds after they were placed, or after as long as real ones take; their GPUs appear a quarter of that later. ``conditions``
    are further conditions of the account, by name. ``ready`` is called with the URL and the cluster once the endpoint answers.
    """

    locations: tuple[str, ...] = ("eastus",)
    zones: int = 3
    port: int = 0
    spot: Path | None = None
    seed: int = 0
    boot: float | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[str, Cluster], None]

    @asynccontextmanager
    async def run(self, client: Client, *, now: Callable[[], float], kubelets: Kubelets, speed: float = 1.0) -> AsyncIterator[None]:
        """Serve while the context lasts; the machines' kubelets are among ``kubelets``.

        Raises OSError if the port is not available, SpotError if the file cannot be used.
        """
        series = None
        if self.spot is not None:
            series = series_of(self.spot, locations=self.locations, zones=self.zones, seed=self.seed, began=now())
        conditions = with_changes(Conditions(boot=boot_delays(self.boot)), self.conditions)
        account = Account(now=now, locations=self.locations, zones=self.zones, conditions=conditions, series=series, seed=self.seed)
        names = NodeNames()
        machines = Machines(client, now=now, naming=names.naming(), speed=speed)
        register_nodes(account, machines, names)
        nodes = node_faults.Nodes(machines.devices, kubelets)
        account.node_acts.update({name: partial(act, nodes) for name, act in node_faults.ACTS.items()})
        drain = AutoDrain(account, client, now=now, speed=speed)
        serving = await serve(Endpoint(account), port=self.port, speed=speed)
        cluster = fill(account)
        with suppress(AlreadyExists):
            await client.create(DAEMON_SETS, tolerant_plugin(), namespace=NAMESPACE)
        tasks = [asyncio.create_task(part) for part in (machines.run(), drain.run(), let_time_pass(account, speed))]
        try:
            self.ready(serving.url, cluster)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await serving.close()


def fill(account: Account) -> Cluster:
    """The contents of the account at the start."""
    cluster = making.create_cluster(account, CLUSTER, GROUP)
    making.create_pool(account, cluster, SPOT_POOL, GPU_SIZE, spot=True, taints=(GPU_TAINT,))
    making.create_pool(account, cluster, POOL, GPU_SIZE, taints=(GPU_TAINT,))
    return cluster


def tolerant_plugin() -> dict[str, Any]:
    """NVIDIA's plugin with the tolerations that AKS's page on GPU pools adds, and the one that spot pools need."""
    plugin = PLUGINS[0].manifest()
    keys = ("nvidia.com/gpu", "sku", "kubernetes.azure.com/scalesetpriority", "gpuscaler.io/arriving")
    plugin["spec"]["template"]["spec"]["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return plugin
