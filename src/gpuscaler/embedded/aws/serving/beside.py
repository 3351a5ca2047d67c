"""An AWS account beside a cluster: its endpoint is served, and its instances become Nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.eks.managed import NodeGroups
from gpuscaler.embedded.aws.hardware.series import series_of
from gpuscaler.embedded.aws.messages.queues import make_queue
from gpuscaler.embedded.aws.nodes.nodes import NAMING, register_nodes
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.server import serve
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.accounts import boot_delays, let_time_pass
from gpuscaler.embedded.serving.conditions import with_changes
from gpuscaler.embedded.serving.listening import Serving
from gpuscaler.embedded.serving.node_faults import Nodes
from gpuscaler.kube.client import Client
from gpuscaler.simulation.cloud.delays import NO_FAULTS

#: The queue that receives interruption notices from the start.
QUEUE: Final = "gpuscaler"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccountServer:
    """Settings of an account with ``regions``, at ``port`` (0: a free one), whose spot markets follow ``spot``.

    Instances register ``boot`` seconds after their launch, or after as long as real ones take; their GPUs appear a quarter of that later.
    ``conditions`` are further conditions of the account, by name. ``ready`` is called with the URLs once the endpoint answers.
    """

    regions: tuple[str, ...] = ("us-east-1",)
    zones: int = 3
    port: int = 0
    spot: Path | None = None
    seed: int = 0
    boot: float | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[str, Iterable[str]], None]

    @asynccontextmanager
    async def run(self, client: Client, *, now: Callable[[], float], kubelets: Kubelets, speed: float = 1.0) -> AsyncIterator[None]:
        """Serve while the context lasts; the instances' kubelets are among ``kubelets``.

        Raises OSError if the port is not available, SpotError if the file cannot be used.
        """
        series = None
        if self.spot is not None:
            series = series_of(self.spot, regions=self.regions, zones=self.zones, seed=self.seed, began=now())
        conditions = with_changes(Conditions(answer=1.5, activity=5.0, machines=NO_FAULTS, boot=boot_delays(self.boot)), self.conditions)
        account = Account(now=now, regions=self.regions, zones=self.zones, conditions=conditions, series=series, seed=self.seed)
        machines = Machines(client, now=now, naming=NAMING, speed=speed)
        account.nodes = Nodes(machines.devices, kubelets)
        serving = await serve(Endpoint(account), port=self.port, speed=speed)
        urls = _prepare(account, machines, serving)
        eks = [NodeGroups(region, client, now, speed) for region in account.regions.values()]
        parts = [machines.run(), let_time_pass(account, speed), *(node_groups.run() for node_groups in eks)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            self.ready(serving.url, urls)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await serving.close()


def _prepare(account: Account, machines: Machines, serving: Serving) -> list[str]:
    """Connect Nodes to instances, and create a queue for notices in each region; returns the queues' addresses."""
    urls = []
    for region in account.regions.values():
        register_nodes(region, machines)
        queue = make_queue(region, QUEUE, {}, host=serving.url)
        queue.receives_notices = True
        urls.append(queue.url)
    return urls
