"""`gpuscaler run` with ``cloud: aws`` in virtual time: an API server, an emulated account, and one process after the other."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.clouds.aws.accounts import CLUSTER, DISCOVERED, MODELS, Session
from tests.clouds.aws.user_data import encoded, node_config
from tests.control.world import BEGAN, QUICK
from tests.embedded.aws.memory import LoopExecutor
from tests.objects import pod, workload
from tests.running_cluster import RunningCluster

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.control.process import aws
from gpuscaler.control.process.running import ControllerProcess, ProcessContext, ProviderSetup
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.control.records.status.reporting import NAME, parse_status
from gpuscaler.control.records.status.status import Status
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.autoscaling.scaling import reclaim
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.eks.managed import NodeGroups
from gpuscaler.embedded.aws.nodes.nodes import NAMING, register_nodes
from gpuscaler.embedded.aws.serving.control import Interruption, Limit, set_capacity
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.faults import Fault
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.cluster import Conditions as ClusterConditions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.embedded.serving.node_faults import Nodes
from gpuscaler.kube.resources import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS
from gpuscaler.model.pools import Policy
from gpuscaler.settings.run_settings import RunSettings

REGION = "us-east-1"
WRITES = ("LaunchInstances", "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup", "SetInstanceProtection", "DeleteMessageBatch")


class Clocks:
    """Both clocks, on the time of the event loop that creates this; threads read them too."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def wall(self) -> float:
        return BEGAN + self.monotonic()


class Stage(RunningCluster):
    """A cluster with an account's instances as machines. A process of the controller lives from :meth:`start` to :meth:`stop`."""

    pause = 1.0

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        self.now = Clocks().wall
        self.account = Account(now=self.now, conditions=conditions)
        self.region = self.account.region(REGION)
        self.endpoint = Endpoint(self.account, MODELS)
        self.session = Session(self.endpoint)
        super().__init__(EmbeddedCluster(Policy(pools=()), now=self.now, conditions=ClusterConditions(delays=QUICK)))
        self.path = folder / "run.yaml"
        machines = Machines(self.cluster.client("aws"), now=self.now, naming=NAMING)
        register_nodes(self.region, machines)
        #: Faults of nodes.
        self.faulty = self.account.nodes = Nodes(machines.devices, self.cluster.kubelets)
        eks = NodeGroups(self.region, self.cluster.client("eks"), self.now)
        #: Set when a test does something, after which the account may have events sooner than known: while no controller lives, hours may
        #: pass without a call to it.
        self._touched = asyncio.Event()
        self.support(machines.run(), eks.run(), self._pass())

    async def _pass(self) -> None:
        while True:
            self.account.advance()
            self._touched.clear()
            following = self.account.next_event()
            pause = math.inf if following is None else max(0.001, following - self.now())
            if self._lives:
                # Delayed effects of a call show within half a second.
                await asyncio.sleep(min(0.5, pause))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(60.0, pause)):
                        await self._touched.wait()

    # The account

    def client(self, name: str) -> Any:
        self._touched.set()
        return self.session.client(name, region_name=REGION)

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
        self._touched.set()
        set_capacity(self.region, Limit(machines, **what))

    def fault(self, **what: Any) -> None:
        self.endpoint.faults.all.append(Fault(**what))

    def interrupt(self, instance: str) -> None:
        self._touched.set()
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

    def start(self, text: str = "", *, identity: str = "one", dry_run: bool = False) -> None:
        self.path.write_text(text or self.settings())
        executor = LoopExecutor()
        waited: list[float] = []
        calls = Calls(sleep=waited.append, random=Random(0), session=self.session)

        async def made(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
            return await aws.make_aws_provider(settings, place, calls=calls, executor=executor)

        running = ControllerProcess(
            file=SettingsFile(self.path),
            transport=MemoryTransport(self.cluster.api),
            namespace="kube-system",
            identity=identity,
            clocks=Clocks(),
            make_provider=made,
            make_records=partial(service.make_service, pod="", host="here", set_level=lambda _level: None),
            dry_run=dry_run,
        )
        self._lives.append(asyncio.get_running_loop().create_task(running.run()))
        self._touched.set()

    async def stop(self) -> None:
        life = self._lives.pop(0)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    async def status(self) -> Status:
        return parse_status(await self.user.get(CONFIG_MAPS, NAME, namespace="kube-system"))

    # The cluster

    async def submit(self, *names: str, gpus: int = 1, **annotations: str) -> None:
        for name in names:
            pod_annotations = {f"gpuscaler.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
            await self.user.create(PODS, pod(name, gpus, pod_annotations), namespace="default")

    async def deploy(self, name: str, replicas: int = 1, **annotations: str) -> None:
        """A Deployment of pods with a GPU each."""
        made = pod(name, 1, {f"gpuscaler.io/{key.replace('_', '-')}": value for key, value in annotations.items()})
        await self.user.create(DEPLOYMENTS, workload("Deployment", name, made, replicas=replicas), namespace="default")

    async def relabel(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Change labels of a node; None removes one."""
        await self.user.merge_patch(NODES, node, {"metadata": {"labels": dict(labels)}})

    async def no_nodes(self) -> bool:
        return not await self.nodes()

    async def leave_behind(self, node: Mapping[str, Any]) -> None:
        """Add a Node without a machine, which no cloud controller has deleted."""
        metadata = {"name": node["metadata"]["name"], "labels": node["metadata"]["labels"]}
        unknown_status = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        status = {**node["status"], "conditions": [unknown_status]}
        await self.user.create(NODES, {"metadata": metadata, "spec": {"providerID": node["spec"]["providerID"]}, "status": status})


@asynccontextmanager
async def aws_stage(folder: Path, conditions: Conditions | None = None) -> AsyncIterator[Stage]:
    """A stage that is closed at the end."""
    made = Stage(folder, conditions or Conditions(boot=QUICK))
    try:
        yield made
    finally:
        await made.close()
