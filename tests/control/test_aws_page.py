"""The instructions of `docs/how-to/aws.md`, followed word by word on the simulated account."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.aws.accounts import CA, Aws, pool
from tests.clouds.aws.command_line import run_command_line
from tests.clouds.aws.user_data import encoded, node_config
from tests.control.aws_stage import Stage, aws_stage
from tests.docs.test_examples import blocks

from gpuscaler.clouds.aws.templates.user_data import kubelet_of
from gpuscaler.embedded.aws.serving.faults import Fault
from gpuscaler.model.taints import Taint

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "aws.md"
TEXT = PAGE.read_text(encoding="utf-8")
CLUSTER = "prod"
TAGS = {f"{CA}/enabled": "true", f"{CA}/{CLUSTER}": "owned"}
EKS = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpus"}
DISK = {"DeviceName": "/dev/xvdf", "Ebs": {"VolumeSize": 100}}
#: A group without any warnings.
GOOD: dict[str, Any] = {"InstanceType": "g5.xlarge", "UserData": encoded(node_config({}))}
ROLE = "arn:aws:iam::123456789012:role/nodes"
ARRIVING, LEAVING = "gpuscaler.io/arriving", "gpuscaler.io/leaving"

Row = tuple[str, str]


def rows(title: str) -> list[Row]:
    """The two columns of each row of the first table below a heading."""
    _, _, below = TEXT.partition(f"\n{title}\n")
    lines = [line for line in below.partition("\n#")[0].splitlines() if line.startswith("| ")]
    return [(first.strip(), second.strip()) for first, second in (line.strip("| ").split(" | ", 1) for line in lines[1:])]


def command(text: str) -> str:
    """The command of the AWS CLI in backquotes."""
    (match,) = re.findall(r"`(aws [^`]+)`", text)
    return str(match)


def shown(beginning: str) -> str:
    """The command of the page with this beginning, including its input through a pipe."""
    (match,) = [text for text in COMMANDS if text.startswith(beginning)]
    return match


def commands() -> list[str]:
    """All commands of the AWS CLI that the page shows in blocks."""
    shell = [block.text for block in blocks(PAGE) if block.kind == "sh"]
    return [text.strip() for block in shell for text in re.split(r"^(?=aws )", block, flags=re.MULTILINE) if text.startswith("aws ")]


class Account(Aws):
    """An account of the page's cluster with one group, which is in order except for ``told``."""

    launch = "auto"

    def with_group(self, tags: Mapping[str, str] = TAGS, *, data: Mapping[str, Any] = GOOD, **template_fields: Any) -> "Account":
        self.template("gpus", **data)
        if "MixedInstancesPolicy" not in template_fields:
            template_fields["LaunchTemplate"] = {"LaunchTemplateName": "gpus", "Version": "$Latest"}
        self.group("gpus", tags, **template_fields)
        return self

    def messages(self) -> str:
        """All messages of a discovery: warnings of pools, and reasons for skipped objects."""
        discovered = self.discover(CLUSTER, launch=self.launch)
        return "\n".join(
            (*(text for aws_pool in discovered.pools for text in aws_pool.warnings), *(skipped.reason for skipped in discovered.set_aside))
        )

    def tag(self, **tags: str) -> None:
        tags_of_group = [
            {"ResourceId": "gpus", "ResourceType": "auto-scaling-group", "Key": key, "Value": value} for key, value in tags.items()
        ]
        self.client("autoscaling").create_or_update_tags(Tags=[{**tag, "PropagateAtLaunch": True} for tag in tags_of_group])

    def untag(self, *keys: str) -> None:
        tags_of_group = [{"ResourceId": "gpus", "ResourceType": "auto-scaling-group", "Key": key} for key in keys]
        self.client("autoscaling").delete_tags(Tags=tags_of_group)

    def version(self, **data: Any) -> None:
        self.client("ec2").create_launch_template_version(LaunchTemplateName="gpus", SourceVersion="1", LaunchTemplateData=data)

    def run(self, text: str) -> None:
        run_command_line(command(text), self.client)

    def nodegroup(self, **node_group_fields: Any) -> None:
        names = {"clusterName": CLUSTER, "nodegroupName": "gpus"}
        self.client("eks").create_nodegroup(**names, subnets=["subnet-useast1a"], nodeRole=ROLE, **node_group_fields)

    def one_zone(self) -> None:
        self.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", AvailabilityZones=["us-east-1a"])

    def priced(self) -> None:
        """Allow calls of the Pricing API."""
        self.endpoint.faults.all.clear()


FLAG = "kubelet --register-with-taints=gpuscaler.io/arriving=:NoSchedule"


def zonal() -> Account:
    """A group in which the cloud chooses between two zones, since it only gets a number: LaunchInstances allows no mixed markets."""
    shares = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 100}
    policy = {**MIXED, "InstancesDistribution": shares}
    overrides = {"LaunchTemplate": {**MIXED["LaunchTemplate"], "Overrides": [{"InstanceType": "g5.xlarge"}]}}  # type: ignore[dict-item]
    account = Account().with_group(MixedInstancesPolicy={**policy, **overrides}, AvailabilityZones=["us-east-1a", "us-east-1b"])
    account.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])
    account.launch = "desired-capacity"
    return account


def unpriced() -> Account:
    """A type without a price for its region in the catalogue and the Pricing API."""
    account = Account(regions=("us-east-1", "ap-south-2"))
    account.endpoint.faults.all.append(Fault(service="pricing", code="AccessDenied", status=403))
    account.template("gpus", region="ap-south-2", **GOOD)
    account.group("gpus", TAGS, region="ap-south-2", LaunchTemplate={"LaunchTemplateName": "gpus", "Version": "$Latest"})
    return account


def replaced() -> Account:
    account = Account()
    account.nodegroup(taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}])
    return account.with_group(
        {**TAGS, **EKS}, data={**GOOD, "UserData": encoded("kubelet --register-with-taints=gpuscaler.io/arriving=:NoSchedule")}
    )


def managed() -> Account:
    """A node group of two zones that EKS manages, with gpuscaler's taint."""
    account = Account()
    account.nodegroup(taints=[{"key": "gpuscaler.io/arriving", "effect": "NO_SCHEDULE"}])
    zones = ["us-east-1a", "us-east-1b"]
    return account.with_group({**TAGS, **EKS}, data={"InstanceType": "g5.xlarge"}, AvailabilityZones=zones)


def mend_nodegroup(account: Account, _do: str) -> None:
    account.version(UserData="")
    run_command_line(shown("aws eks update-nodegroup-config"), account.client)


def write_taint(account: Account, _do: str) -> None:
    account.untag(f"{TAINT}/dedicated")
    account.tag(**{f"{TAINT}/nvidia.com/gpu": "true:NoSchedule"})


def recipe(account: Account, _do: str) -> None:
    account.version(UserData=encoded(user_data()[0]))


TAINT = f"{CA}/node-template/taint"
MIXED = {
    "LaunchTemplate": {
        "LaunchTemplateSpecification": {"LaunchTemplateName": "gpus", "Version": "$Latest"},
        "Overrides": [{"InstanceType": name} for name in ("g5.xlarge", "g5.12xlarge", "g5.48xlarge")],
    },
    "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 100},
}
COMMANDS = commands()
#: By the beginning of a row: an account to which it applies, and the action that the page states for it.
CASES: dict[str, tuple[Callable[[], Account], Callable[[Account, str], None]]] = {
    "saw the tag": (lambda: Account().with_group({f"{CA}/enabled": "true"}), lambda account, _: account.tag(**{f"{CA}/prod": "owned"})),
    "the tag … says cluster": (
        lambda: Account().with_group({"KubernetesCluster": "prod.example.com", "k8s.io/role/node": "1"}),
        lambda account, _: account.tag(KubernetesCluster="prod"),
    ),
    "the tag … is": (
        lambda: Account().with_group({**TAGS, f"{TAINT}/dedicated": "nvidia.com/gpu=true"}),
        write_taint,
    ),
    "its types have": (
        lambda: Account().with_group(MixedInstancesPolicy=MIXED),
        lambda account, _: account.client("autoscaling").update_auto_scaling_group(
            AutoScalingGroupName="gpus", LaunchTemplate={"LaunchTemplateName": "gpus", "Version": "$Latest"}
        ),
    ),
    "AZRebalance ends": (lambda: Account().with_group(AvailabilityZones=["us-east-1a", "us-east-1b"]), lambda account, do: account.run(do)),
    "EKS balances its zones": (managed, lambda account, _: account.one_zone()),
    "new machines are not protected": (
        lambda: Account().with_group(NewInstancesProtectedFromScaleIn=False),
        lambda account, do: account.run(do),
    ),
    "its launch template": (
        lambda: Account().with_group(data={**GOOD, "BlockDeviceMappings": [DISK]}),
        lambda account, _: account.version(BlockDeviceMappings=[{**DISK, "Ebs": {**DISK["Ebs"], "DeleteOnTermination": True}}]),  # type: ignore[dict-item]
    ),
    "its user data does not register": (lambda: Account().with_group(data={"InstanceType": "g5.xlarge"}), recipe),
    "the user data … replace": (replaced, mend_nodegroup),
    "its tags promise the taint": (
        lambda: Account().with_group({**TAGS, f"{TAINT}/nvidia.com/gpu": "true:NoSchedule"}, data={**GOOD, "UserData": encoded(FLAG)}),
        lambda account, _: account.version(UserData=encoded(f"{FLAG},nvidia.com/gpu=true:NoSchedule")),
    ),
    "AWS chooses the zone of each machine": (zonal, lambda account, _: account.one_zone()),
    "no price of": (unpriced, lambda account, _: account.priced()),
    "no kubelet starts": (
        lambda: Account().with_group(data={**GOOD, "UserData": encoded("kubelet --register-with-taints=dedicated=nvidia.com/gpu=true")}),
        recipe,
    ),
}
#: Rows that a command prints and not the discovery, or that are fixed outside the account: tested beside the message.
ELSEWHERE = ("saw no Auto Scaling group of cluster", "IAM does not allow")


def user_data() -> list[str]:
    """The user data on the page."""
    return [block.text for block in blocks(PAGE) if block.kind == "text" and "user-data" in block.options]


LOOKED = [row for row in rows("## 3. See what is found") if not row[0].startswith(ELSEWHERE)]


@pytest.mark.parametrize("row", LOOKED, ids=[row[0][:40] for row in LOOKED])
def test_following_the_instructions_of_the_page_for_a_warning_resolves_it(row: Row) -> None:
    says, do = row
    matching = [key for key in CASES if says.replace("`", "").startswith(key)]
    assert matching, f"the page says {says!r}, which no test covers"
    key = max(matching, key=len)
    make, mend = CASES[key]
    account = make()
    before = account.messages()
    assert all(part.strip() in before for part in key.split("…")), before

    mend(account, do)
    account.time += 3600.0

    assert account.messages() == ""


def test_a_group_without_a_cluster_tag_is_discovered_after_following_the_first_row_of_the_page() -> None:
    account = Account().with_group({"team": "red"})
    assert account.messages() == ""
    assert account.discover(CLUSTER).pools == ()

    account.tag(**TAGS)
    account.time += 3600.0

    assert pool(account.discover(CLUSTER), "gpus").pool.name == "gpus"


@pytest.mark.parametrize("text", user_data())
def test_nodes_with_the_user_data_of_the_page_register_with_the_taint(text: str) -> None:
    assert kubelet_of(encoded(text)).taints == (Taint("gpuscaler.io/arriving"),)


def test_every_way_on_the_page_to_set_the_taint_works() -> None:
    ways = dict(rows("### The taint of new nodes"))
    assert list(ways) == [
        "EKS managed node group",
        "Amazon Linux 2023 by nodeadm",
        "Bottlerocket",
        "`bootstrap.sh`, or a kubelet of your own",
        "kOps",
    ]
    managed = Account()
    managed.nodegroup(taints=[{"key": "gpuscaler.io/arriving", "effect": "NO_SCHEDULE"}])
    assert managed.with_group({**TAGS, **EKS}, data={"InstanceType": "g5.xlarge"}).messages() == ""
    (flag,) = re.findall(r"`(--register-with-taints=[^`]+)`", ways["`bootstrap.sh`, or a kubelet of your own"])
    script = f"#!/bin/bash\n/etc/eks/bootstrap.sh prod --kubelet-extra-args {flag}\n"
    assert kubelet_of(encoded(script)).taints == (Taint("gpuscaler.io/arriving"), Taint("nvidia.com/gpu", "true"))
    tags = {
        "KubernetesCluster": CLUSTER,
        "k8s.io/role/node": "1",
        "kops.k8s.io/instancegroup": "gpus",
        f"{TAINT}/gpuscaler.io/arriving": ":NoSchedule",
    }
    assert Account().with_group(tags, data={"InstanceType": "g5.xlarge"}).messages() == ""


def test_every_aws_cli_command_on_the_page_is_run_by_a_test() -> None:
    """Commands in tables are run with their row."""
    assert [text.partition(" --")[0] for text in COMMANDS] == [
        "aws eks update-nodegroup-config",
        "aws autoscaling put-lifecycle-hook",
        "aws autoscaling describe-auto-scaling-groups",
    ]
    in_rows = [text for _, do in (*LOOKED, *rows("### The taint of new nodes")) for text in re.findall(r"`(aws [^`]+)`", do)]
    assert TEXT.count("aws autoscaling ") + TEXT.count("aws eks ") == len(in_rows) + sum(text.count("aws ") for text in COMMANDS)


async def all_bound(here: Stage) -> bool:
    bound_pods = await here.bound()
    return bool(bound_pods) and all(bound_pods.values())


async def test_with_the_files_of_the_page_machines_are_bought_removed_and_drained_on_notice(tmp_path: Path) -> None:
    """Steps 2, 4 and 6 one after the other: the last file of the page, with the groups that it names."""
    async with aws_stage(tmp_path) as here:
        for name, market in (("gpu-on-demand", "on-demand"), ("gpu-spot", "spot")):
            here.group(name, market=market, tags=TAGS, user_data=user_data()[0])
        url = here.queue()
        last = re.sub(r"https://sqs\S+", url, files()[-1])
        here.start(f"{last}http: {{enabled: false}}\n")
        await here.deploy("serve")
        await here.until(lambda: all_bound(here), 180)
        (machine,) = here.machines("gpu-spot")

        here.interrupt(machine)
        await here.sleep(300)

        assert await all_bound(here)
        assert machine not in [node["spec"]["providerID"].rpartition("/")[2] for node in await here.nodes()]
        status = await here.status()
        assert (status.troubles, {pool.name for pool in status.pools}) == ((), {"gpu-on-demand", "gpu-spot"})

        changed = next(text for text in files() if "gpu-on-demand" in text)
        here.path.write_text(f"{changed}http: {{enabled: false}}\n")
        await here.sleep(60)
        assert (await here.status()).troubles == ()


async def with_a_machine(here: Stage, file: str, url: str) -> tuple[str, str]:
    """The last file of the page, a Deployment, and the machine of group ``gpus`` with its node."""
    here.start(re.sub(r"https://sqs\S+", url, file) + "http: {enabled: false}\n")
    await here.deploy("serve")
    await here.until(lambda: all_bound(here), 180)
    (machine,) = here.machines("gpus")
    (node,) = [node for node in await here.nodes() if node["spec"]["providerID"].endswith(machine)]
    return machine, node["metadata"]["name"]


def files() -> list[str]:
    return [block.text for block in blocks(PAGE) if block.kind == "yaml" and "pools-file" in block.options]


async def test_the_lifecycle_hook_of_the_page_gives_pods_time_to_move_before_the_machine_ends(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=TAGS, user_data=user_data()[0])
        run_command_line(shown("aws autoscaling put-lifecycle-hook"), here.client)
        machine, node = await with_a_machine(here, files()[-1], here.queue())
        here.client("autoscaling").terminate_instance_in_auto_scaling_group(InstanceId=machine, ShouldDecrementDesiredCapacity=False)
        await here.sleep(5.0)
        (marked,) = [wire_node for wire_node in await here.nodes() if wire_node["metadata"]["name"] == node]
        assert (here.region.instances[machine].lifecycle, here.region.instances[machine].state) == ("Terminating:Wait", "running")
        assert LEAVING in {taint["key"] for taint in marked["spec"].get("taints") or ()}
        await here.sleep(115.0)

        assert await all_bound(here)
        assert node not in set((await here.bound()).values())
        assert here.session.call_counts["CompleteLifecycleAction"] == 1
        assert here.region.instances[machine].ended_at is not None


async def test_the_command_of_the_page_removes_leftover_scale_in_protection(tmp_path: Path) -> None:
    """More machines than one call may name, none protected by gpuscaler: the page's command handles all protected machines."""
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=TAGS, MinSize=51, MaxSize=60)
        await here.sleep(60.0)
        assert sum(instance.protected for instance in here.region.instances.values()) == 51

        run_command_line(shown("aws autoscaling describe-auto-scaling-groups"), here.client)
        assert not any(instance.protected for instance in here.region.instances.values())
        assert here.session.call_counts["SetInstanceProtection"] == 2

        run_command_line(shown("aws autoscaling describe-auto-scaling-groups"), here.client)
        assert here.session.call_counts["SetInstanceProtection"] == 2


async def test_pods_of_a_managed_node_group_keep_running_while_it_gets_the_taint(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        names = {"clusterName": CLUSTER, "nodegroupName": "gpus"}
        here.client("eks").create_nodegroup(**names, subnets=["subnet-useast1a"], nodeRole=ROLE)
        here.group("gpus", tags={**TAGS, **EKS}, user_data="#!/bin/bash\n")
        machine, node = await with_a_machine(here, files()[-1], here.queue())
        before = await here.bound()

        run_command_line(shown("aws eks update-nodegroup-config"), here.client)
        await here.sleep(4.0)
        (closed,) = await here.nodes()
        assert ARRIVING in {taint["key"] for taint in closed["spec"].get("taints") or ()}
        await here.sleep(30.0)

        (opened,) = await here.nodes()
        assert ARRIVING not in {taint["key"] for taint in opened["spec"].get("taints") or ()}
        assert (await here.bound(), here.machines()) == (before, [machine])
        assert opened["metadata"]["name"] == node
        assert (await here.status()).troubles == ()
