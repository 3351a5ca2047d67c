"""`gpuscaler run` with ``cloud: aws`` in virtual time: an API server, an emulated account, and one process after the other."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.clouds.aws.accounts import CLUSTER, DISCOVERED, MODELS, Session
from tests.clouds.aws.user_data import encoded, node_config
from tests.control.account_stage import AccountStage
from tests.control.world import QUICK
from tests.embedded.aws.memory import LoopExecutor

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.control.process import aws
from gpuscaler.control.process.running import MakeProvider, ProcessContext, ProviderSetup
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.autoscaling.scaling import reclaim
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.eks.managed import NodeGroups
from gpuscaler.embedded.aws.nodes.nodes import NAMING, register_nodes
from gpuscaler.embedded.aws.serving.control import Interruption, Limit, set_capacity
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.faults import Fault
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.node_faults import Nodes
from gpuscaler.settings.run_settings import RunSettings

REGION = "us-east-1"
WRITES = ("LaunchInstances", "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup", "SetInstanceProtection", "DeleteMessageBatch")


class Stage(AccountStage):
    """A cluster with an account's instances as machines."""

    def __init__(self, folder: Path, conditions: Conditions, *, region: str = REGION) -> None:
        super().__init__(folder)
        self.account = Account(now=self.now, regions=(region,), conditions=conditions)
        self.region = self.account.region(region)
        self.endpoint = Endpoint(self.account, MODELS)
        self.session = Session(self.endpoint)
        machines = Machines(self.cluster.client("aws"), now=self.now, naming=NAMING)
        register_nodes(self.region, machines)
        #: Faults of nodes.
        self.faulty = self.account.nodes = Nodes(machines.devices, self.cluster.kubelets)
        eks = NodeGroups(self.region, self.cluster.client("eks"), self.now)
        self.support(machines.run(), eks.run(), self.pass_time_of(self.account))

    # The account

    def client(self, name: str) -> Any:
        self.touch()
        return self.session.client(name, region_name=self.region.name)

    def group(
        self,
        name: str,
        *,
        market: str = "on-demand",
        tags: Mapping[str, str] = DISCOVERED,
        user_data: str | None = None,
        arriving: bool = True,
        **template_fields: Any,
    ) -> None:
        """A group of one type and zone. Its nodes register with what its tags promise and, if ``arriving``, with gpuscaler's taint.

        ``user_data`` replaces the user data that registers them so.
        """
        data: dict[str, Any] = {"ImageId": "ami-0123", "InstanceType": template_fields.pop("instance_type", "g5.xlarge")}
        data["UserData"] = encoded(node_config(tags, arriving=arriving) if user_data is None else user_data)
        if market == "spot":
            data["InstanceMarketOptions"] = {"MarketType": "spot"}
        self.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        asked = {
            "MinSize": 0,
            "MaxSize": 10,
            "AvailabilityZones": ["us-east-1a"],
            "NewInstancesProtectedFromScaleIn": True,
            **template_fields,
        }
        self.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"},
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            **asked,
        )

    def queue(self) -> str:
        """The URL of a queue that receives EC2's announcements."""
        url = str(self.client("sqs").create_queue(QueueName="events")["QueueUrl"])
        self.region.queues["events"].receives_notices = True
        return url

    def limit(self, machines: int | None, **what: str) -> None:
        self.touch()
        set_capacity(self.region, Limit(machines, **what))

    def fault(self, **what: Any) -> None:
        self.endpoint.faults.all.append(Fault(**what))

    def interrupt(self, instance: str) -> None:
        self.touch()
        reclaim(self.region, self.region.instances[instance], notice=Interruption(instance).notice or 0.0)

    def desired(self, name: str) -> int:
        (description,) = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return int(description["DesiredCapacity"])

    def machines(self, name: str = "") -> list[str]:
        """Ids of all instances that ever existed, of one group or of all."""
        return [instance.id for instance in self.region.instances.values() if name in ("", instance.group)]

    def wrote(self) -> dict[str, int]:
        return {name: self.session.call_counts[name] for name in WRITES if name in self.session.call_counts}

    # The controller

    def settings(self, *, more: str = "", **options: str) -> str:
        inner = "".join(f"  {name}: {value}\n" for name, value in {"cluster": CLUSTER, "regions": f"[{REGION}]", **options}.items())
        return f"cloud: aws\naws:\n{inner}http: {{enabled: false}}\n{more}"

    def provider_maker(self) -> MakeProvider:
        executor = LoopExecutor()
        waited: list[float] = []
        calls = Calls(sleep=waited.append, random=Random(0), session=self.session)

        async def made(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
            return await aws.make_aws_provider(settings, place, calls=calls, executor=executor)

        return made


@asynccontextmanager
async def aws_stage(folder: Path, conditions: Conditions | None = None, *, region: str = REGION) -> AsyncIterator[Stage]:
    """A stage that is closed at the end."""
    made = Stage(folder, conditions or Conditions(boot=QUICK), region=region)
    try:
        yield made
    finally:
        await made.close()
