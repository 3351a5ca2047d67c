"""A whole cluster on an emulated AWS account, with the real controller, AwsProvider and boto3 in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from tests.clouds.aws.user_data import encoded, node_config
from tests.control.world import BEGAN, CountingRecorder
from tests.embedded.aws.memory import LoopExecutor, Session
from tests.objects import pod

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.clouds.aws.provider import AwsProvider
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.store import MemoryStore
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.nodes.nodes import NAMING, register_nodes
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.models import Models
from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.embedded.aws.wire.writing import Answer
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.cluster import Conditions as ClusterConditions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Answer as KubeAnswer
from gpuscaler.kube.transport import Request as KubeRequest
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays

CLUSTER, REGION, QUEUE = "bench", "us-east-1", "events"
TAGS = {"k8s.io/cluster-autoscaler/enabled": "true", f"k8s.io/cluster-autoscaler/{CLUSTER}": "owned"}
#: Machines boot in a minute and show their GPUs half a minute later.
BOOT = Delays(boot=Delay(60.0, 60.0, 60.0), device_plugin=Delay(30.0, 30.0, 30.0), image_pull=Delay(0.0, 0.0, 0.0))
#: Interval at which the account's clock advances, in seconds.
ADVANCE_SECONDS = 0.1
MODELS = Models()


class LoggedEndpoint(Endpoint):
    """An endpoint that records each Auto Scaling call that names a group: (moment, operation, group).

    ``received`` are messages of queues, by the time the receiver got them.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account, MODELS)
        self.log: list[tuple[float, str, str]] = []
        self.received: list[tuple[float, str]] = []

    def handle(self, request: Request) -> Answer:
        parameters = dict(parse_qsl(request.body.decode())) if request.body[:1].isalpha() else {}
        if "AutoScalingGroupName" in parameters:
            self.log.append((self.account.now(), parameters["Action"], parameters["AutoScalingGroupName"]))
        answer = super().handle(request)
        if request.headers.get("x-amz-target") == "AmazonSQS.ReceiveMessage":
            at = self.account.now() + answer.after
            self.received += [(at, message["Body"]) for message in json.loads(answer.body).get("Messages", ())]
        return answer


class LoggedTransport(MemoryTransport):
    """A transport that records each write: (moment, method, path, body)."""

    def __init__(self, api: ApiServer, now: Callable[[], float]) -> None:
        super().__init__(api)
        self._now = now
        self.log: list[tuple[float, str, str, bytes]] = []

    @asynccontextmanager
    async def exchange(self, request: KubeRequest) -> AsyncIterator[KubeAnswer]:
        if request.method != "GET":
            self.log.append((self._now(), request.method, request.path, request.body or b""))
        async with super().exchange(request) as answer:
            yield answer


class AwsWorld:
    """A cluster beside an account with ``conditions``; ``now`` is the clock of both. The controller leads from :meth:`start` on."""

    def __init__(self, conditions: Conditions, *, launch: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.now: Callable[[], float] = lambda: BEGAN + loop.time() - began
        self.account = Account(now=self.now, regions=(REGION,), conditions=conditions)
        self.endpoint = LoggedEndpoint(self.account)
        self.cluster = EmbeddedCluster(Policy(pools=()), now=self.now, conditions=ClusterConditions(delays=BOOT))
        self.user = self.cluster.client("user")
        self.network = LoggedTransport(self.cluster.api, self.now)
        self.recorder = CountingRecorder()
        self._launch = launch
        self._executor = LoopExecutor()
        self._session = Session(self.endpoint, self._executor.took)
        self._machines = Machines(self.cluster.client("aws"), now=self.now, naming=NAMING)
        register_nodes(self.account.region(REGION), self._machines)
        self._tasks = [loop.create_task(part) for part in (self.cluster.run(), self._machines.run(), self._advance_account())]
        self._clients = cache(partial(Session(self.endpoint).client, region_name=REGION))
        self.provider: AwsProvider
        self.controller: Controller

    async def _advance_account(self) -> None:
        while True:
            self.account.advance()
            await asyncio.sleep(ADVANCE_SECONDS)

    def client(self, service: str) -> Any:
        """A user's own boto3 client."""
        return self._clients(service)

    def create_queue(self) -> str:
        """The URL of a queue that gets EC2's notices."""
        url = str(self.client("sqs").create_queue(QueueName=QUEUE)["QueueUrl"])
        self.account.region(REGION).queues[QUEUE].receives_notices = True
        return url

    def create_group(self, name: str, instance_type: str, zone: str, market: str, *, max_size: int = 50) -> None:
        data: dict[str, Any] = {"ImageId": "ami-0123", "InstanceType": instance_type, "UserData": encoded(node_config({}))}
        if market == "spot":
            data["InstanceMarketOptions"] = {"MarketType": "spot"}
        self.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        self.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=max_size,
            AvailabilityZones=[zone],
            LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"},
            Tags=[{"Key": key, "Value": value} for key, value in TAGS.items()],
            NewInstancesProtectedFromScaleIn=True,
        )

    def limit_spot(self, machines: int | None = 0) -> None:
        """From now on, limit each spot market to this number of machines."""
        set_capacity(self.account.region(REGION), Limit(machines, market="spot"))

    async def start(self, *, queue_url: str = "") -> None:
        """Read the account, then lead."""
        calls = Calls(sleep=lambda _seconds: None, random=Random(0), session=self._session)
        discovery = Discovery(calls, Scope(CLUSTER), regions=(REGION,), now=self.now, launch=self._launch)
        client = Client(self.network, field_manager="gpuscaler")
        self.provider = AwsProvider(
            calls, discovery, fence=client.fence, now=self.now, executor=self._executor, queue_url=queue_url, queue_region=REGION
        )
        picture, attempts = self.cluster.picture(client), Attempts(client)
        self.controller = Controller(
            picture=picture,
            client=client,
            provider=self.provider,
            store=MemoryStore(client, namespace="kube-system"),
            policy=Policy(pools=tuple(await self.provider.pools()), region=REGION),
            recorder=self.recorder,
            now=self.now,
            attempts=attempts,
        )
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(part.run()) for part in (picture, attempts, self.controller)]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for task in self._tasks:
            if task.done():
                task.result()

    async def submit(self, names: Iterable[str], gpus: int = 1, annotations: Mapping[str, str] | None = None) -> None:
        for name in names:
            await self.user.create(PODS, pod(name, gpus, annotations), namespace="default")

    async def count_bound(self) -> int:
        return sum(bool(msgspec.json.decode(body)["spec"].get("nodeName")) for body in await self.user.list_all(PODS, namespace="default"))

    def launched_by_group(self) -> dict[str, int]:
        """The number of instances ever launched, by group."""
        counts: dict[str, int] = {}
        for instance in self.account.region(REGION).instances.values():
            counts[instance.group] = counts.get(instance.group, 0) + 1
        return counts

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def aws_world(conditions: Conditions, *, launch: str = "auto") -> AsyncIterator[AwsWorld]:
    world = AwsWorld(conditions, launch=launch)
    try:
        yield world
    finally:
        await world.close()
