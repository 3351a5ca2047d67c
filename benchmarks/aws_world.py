"""A whole cluster on an emulated AWS account, with the real controller, AwsProvider and boto3 in virtual time."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from random import Random
from typing import Any
from urllib.parse import parse_qsl

from tests.clouds.aws.user_data import encoded, node_config
from tests.embedded.aws.memory import LoopExecutor, Session

from benchmarks.cloud_world import CloudWorld
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.clouds.aws.provider import AwsProvider
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.nodes.nodes import NAMING, register_nodes
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.models import Models
from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.embedded.aws.wire.writing import Answer
from gpuscaler.embedded.nodes.machines import Machines

CLUSTER, REGION, QUEUE = "bench", "us-east-1", "events"
TAGS = {"k8s.io/cluster-autoscaler/enabled": "true", f"k8s.io/cluster-autoscaler/{CLUSTER}": "owned"}
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


class AwsWorld(CloudWorld):
    """A cluster beside an account with ``conditions``. The controller leads from :meth:`start` on."""

    def __init__(self, conditions: Conditions, *, launch: str) -> None:
        super().__init__()
        self.account = Account(now=self.now, regions=(REGION,), conditions=conditions)
        self.endpoint = LoggedEndpoint(self.account)
        self._launch = launch
        self._executor = LoopExecutor()
        self._session = Session(self.endpoint, self._executor.took)
        machines = Machines(self.cluster.client("aws"), now=self.now, naming=NAMING)
        register_nodes(self.account.region(REGION), machines)
        self.run_beside(machines.run(), self.advance(self.account.advance))
        self._clients = cache(partial(Session(self.endpoint).client, region_name=REGION))
        self.provider: AwsProvider

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
        self.provider = AwsProvider(
            calls,
            discovery,
            fence=self.network_client.fence,
            now=self.now,
            executor=self._executor,
            queue_url=queue_url,
            queue_region=REGION,
        )
        await self.lead(self.provider, REGION)

    def launched_by_group(self) -> dict[str, int]:
        """The number of instances ever launched, by group."""
        counts: dict[str, int] = {}
        for instance in self.account.region(REGION).instances.values():
            counts[instance.group] = counts.get(instance.group, 0) + 1
        return counts


@asynccontextmanager
async def aws_world(conditions: Conditions, *, launch: str = "auto") -> AsyncIterator[AwsWorld]:
    world = AwsWorld(conditions, launch=launch)
    try:
        yield world
    finally:
        await world.close()
