"""``gpuscaler pools`` on a simulated endpoint, over HTTP, with the real boto3."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests import objects
from tests.cli.serving import served as a_cluster
from tests.cli.test_plan import node, pod

from gpuscaler.cli import main
from gpuscaler.cli.pools import pools
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.faults import denied
from gpuscaler.embedded.aws.serving.server import serve

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
READ_ONCE = cache(import_module("botocore.loaders").create_loader)
TAGS = ("k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/prod")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Endpoint]]:
    """An endpoint and its URL: two groups of the cluster and one of another cluster, in one of its two regions."""
    endpoint = Endpoint(Account(now=time.time, regions=("us-east-1", "eu-west-1"), conditions=Conditions(reaction=0.0, pending=0.0)))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = asyncio.run_coroutine_threadsafe(serve(endpoint), loop).result(30)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    ec2, scaling = (boto3.client(name, region_name="us-east-1", endpoint_url=serving.url, **keys) for name in ("ec2", "autoscaling"))
    ec2.create_launch_template(LaunchTemplateName="gpus", LaunchTemplateData={"InstanceType": "g5.xlarge", "ImageId": "ami-0123"})
    for name, cluster in (("gpus", "prod"), ("more", "prod"), ("theirs", "other")):
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=4,
            AvailabilityZones=["us-east-1a"],
            LaunchTemplate={"LaunchTemplateName": "gpus"},
            Tags=[{"Key": key.replace("prod", cluster), "Value": "true"} for key in TAGS],
        )
    yield serving.url, endpoint
    asyncio.run_coroutine_threadsafe(serving.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load botocore's service models once: each command would read EC2's for a quarter of a second."""
    monkeypatch.setattr("botocore.session.create_loader", READ_ONCE)


@pytest.fixture
def run_pools(served: tuple[str, Endpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command on a file for the endpoint, with ``more`` in it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def ask(*options: str, more: str = "", aws: str = "cluster: prod") -> Result:
        file = tmp_path / "run.yaml"
        file.write_text(f"cloud: aws\nregion: us-east-1\naws: {{{aws}, endpoint_url: '{served[0]}'}}\n{more}")
        return CliRunner().invoke(pools, ["--config", str(file), "--cache", str(tmp_path / "cache"), *options])

    return ask


def test_the_json_has_the_keys_that_the_reference_names(run_pools: Any) -> None:
    done = run_pools("--json", more="pools: [{name: gpus, max: 2, priority: 7}]")

    assert done.exit_code == 0
    document = json.loads(done.stdout)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "aws.md").read_text().split("## As JSON")[1].split("\n## ")[0]
    first, second = document["pools"]
    assert [key for key in first if f"`{key}`" not in page] == []
    assert (first["name"], first["max"], first["priority"], second["max"]) == ("gpus", 2, 7, 4)
    assert first["offerings"] == [{"type": "g5.xlarge", "market": "on-demand", "zone": "us-east-1a", "price": 1.006}]
    assert first["resources"]["nvidia.com/gpu"] == "1"
    assert first["resources"]["cpu"] == "3920m"
    assert [skipped["object"] for skipped in document["set_aside"]] == ["AutoScalingGroup us-east-1/theirs"]


def test_the_table_shows_pools_warnings_and_skipped_groups(run_pools: Any) -> None:
    done = run_pools()

    assert done.exit_code == 0
    assert "2 pools, 1 skipped." in done.stdout
    assert "gpus, more: new machines are not protected from scale-in" in done.stdout
    assert "AutoScalingGroup us-east-1/theirs: the tag k8s.io/cluster-autoscaler/other says cluster 'other', expected prod" in done.stdout


def test_pools_reports_a_group_whose_terminated_machines_leave_disks_with_template_and_device(
    run_pools: Any, served: tuple[str, Endpoint]
) -> None:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=served[0], **keys)
    disk = {"DeviceName": "/dev/xvdf", "Ebs": {"VolumeSize": 100, "DeleteOnTermination": False}}
    data = {"InstanceType": "g5.xlarge", "ImageId": "ami-0123", "BlockDeviceMappings": [disk]}
    ec2.create_launch_template_version(LaunchTemplateName="gpus", LaunchTemplateData=data)
    ec2.modify_launch_template(LaunchTemplateName="gpus", DefaultVersion="2")
    try:
        done = run_pools()
    finally:
        ec2.modify_launch_template(LaunchTemplateName="gpus", DefaultVersion="1")

    assert "gpus, more: its launch template gpus (version 2) has DeleteOnTermination false for /dev/xvdf: " in done.stdout


def test_nodes_of_the_cluster_are_compared_with_the_promises_of_tags(run_pools: Any, served: tuple[str, Endpoint], tmp_path: Path) -> None:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    scaling = boto3.client("autoscaling", region_name="us-east-1", endpoint_url=served[0], **keys)
    label = {"Key": "k8s.io/cluster-autoscaler/node-template/label/team", "Value": "ml"}
    scaling.create_or_update_tags(Tags=[{**label, "ResourceId": "gpus", "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpus"])["AutoScalingGroups"]
    (machine,) = group["Instances"]
    amounts = {"cpu": "3920m", "memory": "14Gi", "pods": "52", "ephemeral-storage": "17Gi", "nvidia.com/gpu": "1"}
    node = objects.node(
        "ip-1",
        labels={"kubernetes.io/arch": "amd64"},
        status={"allocatable": amounts, "capacity": amounts},
        providerID=f"aws:///us-east-1a/{machine['InstanceId']}",
    )
    with a_cluster(tmp_path) as cluster:
        cluster.load(node)
        done = run_pools("--compare", "--kubeconfig", str(cluster.kubeconfig), "--json")

    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)["pools"][0]
    assert "team" not in first["labels"]
    assert any(text.startswith("the label team=ml is on none of its 1 node, and nodes take precedence: ") for text in first["warnings"])


def test_pools_lists_no_group_if_no_cluster_name_is_known(run_pools: Any) -> None:
    done = run_pools("--json", aws="groups: [gpus]")

    document = json.loads(done.stdout)
    assert document["pools"] == []
    assert all("no cluster name" in skipped["reason"] for skipped in document["set_aside"])


def test_a_forbidden_region_is_named_and_exits_5(run_pools: Any, served: tuple[str, Endpoint]) -> None:
    served[1].faults.all.append(denied("DescribeAutoScalingGroups"))
    try:
        done = run_pools()
    finally:
        served[1].faults.all.clear()

    assert done.exit_code == 5
    assert "Region us-east-1: IAM does not allow autoscaling:DescribeAutoScalingGroups in us-east-1; add it to the policy" in done.stdout


def test_missing_credentials_exit_5_with_a_message(run_pools: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    done = run_pools()

    assert done.exit_code == 5
    assert "Unable to locate credentials; expected those of AWS's own chain: AWS_PROFILE, " in done.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_account_without_a_pool_exits_1(run_pools: Any, options: tuple[str, ...]) -> None:
    assert run_pools(*options, aws="cluster: nobodys").exit_code == 1


def test_if_no_group_belongs_to_the_cluster_pools_names_the_expected_tags(run_pools: Any) -> None:
    done = run_pools(aws="cluster: nobodys, regions: [eu-west-1]")

    assert done.exit_code == 1
    assert done.stderr == (
        "eu-west-1: saw no Auto Scaling group of cluster nobodys, expected one for each pool; tag them "
        "k8s.io/cluster-autoscaler/enabled and k8s.io/cluster-autoscaler/nobodys, or name them in aws.groups\n"
    )


def test_an_endpoint_that_does_not_answer_exits_3(run_pools: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpuscaler.clouds.aws.api.calls.FIRST_WAIT", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    file = tmp_path / "elsewhere.yaml"
    file.write_text(f"cloud: aws\nregion: us-east-1\naws: {{cluster: prod, endpoint_url: 'http://127.0.0.1:{port}'}}\n")

    done = run_pools("--config", str(file))

    assert done.exit_code == 3
    assert "Could not connect to the endpoint URL" in done.stdout


def test_a_file_for_another_cloud_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("cloud: simulated\nregion: us-east-1\npools: [{name: a, types: [g5.xlarge]}]")

    done = CliRunner().invoke(pools, ["--config", str(file)])

    assert done.exit_code == 2
    assert done.stderr == (
        f"{file}: saw cloud simulated, expected cloud: aws or cloud: azure, because this command reads an account; "
        "use validate to check a file with pools\n"
    )


def test_without_boto3_pools_names_the_package_extra_to_install(run_pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    done = run_pools()

    assert done.exit_code == 2
    assert (
        done.stderr
        == "saw no package boto3, expected it for cloud: aws; pip install '.[aws]' in a clone of gpuscaler, or an image with EXTRAS=aws\n"
    )


def test_a_pools_file_without_pools_is_valid_on_aws(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("cloud: aws\nregion: us-east-1\n")

    done = CliRunner().invoke(main, ["validate", str(file)])

    assert (done.exit_code, done.stdout) == (
        0,
        f"{file}: valid; pools come from the account (gpuscaler pools prints them), pools with overrides: 0\n",
    )


@pytest.fixture
def planned(run_pools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``gpuscaler plan`` on a cluster of the given objects, with the file that ``run_pools`` writes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def plan(*objects: dict[str, Any], more: str = "", aws: str = "cluster: prod") -> Result:
        run_pools(more=more, aws=aws)
        with a_cluster(tmp_path) as cluster:
            cluster.load(*objects)
            options = ["--config", str(tmp_path / "run.yaml"), "--kubeconfig", str(cluster.kubeconfig), "--json"]
            return CliRunner().invoke(main, ["plan", *options])

    return plan


def test_plan_buys_in_the_groups_of_the_account_with_the_overrides_of_the_file(planned: Any) -> None:
    first = planned(pod("a"), more="pools: [{name: gpus, priority: 7}]")
    capped = planned(pod("a"), more="pools: [{name: gpus, max: 0}]")

    assert first.exit_code == 0, first.output
    assert [[load["pool"] for load in json.loads(done.stdout)["machines"]] for done in (first, capped)] == [["gpus"], ["more"]]
    assert "note: 1 skipped in the account (gpuscaler pools lists them with reasons)" in first.stderr


def test_plan_for_an_account_without_pools_buys_nothing_and_says_so(planned: Any) -> None:
    done = planned(pod("a"), aws="cluster: nobodys")

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["machines"], len(document["unplaced"])) == ([], 1)
    assert "note: saw no pool of the cluster in the account, expected one" in done.stderr


def test_plan_ignores_nodes_with_machines_that_the_account_does_not_list(planned: Any) -> None:
    stranger = node("n1", 1, **{"gpuscaler.io/pool": "gpus", "node.kubernetes.io/instance-type": "g5.xlarge"})
    stranger["spec"] = {"providerID": "aws:///us-east-1a/i-0000000000000dead"}

    done = planned(stranger)

    (kept,) = json.loads(done.stdout)["blocked_nodes"]
    assert (kept["node"], kept["blocker"]) == ("n1", "not-listed")


def test_plan_names_a_missing_permission_and_exits_5(planned: Any, served: tuple[str, Endpoint]) -> None:
    served[1].faults.all.append(denied("DescribeAutoScalingGroups"))
    try:
        done = planned()
    finally:
        served[1].faults.all.clear()

    assert done.exit_code == 5
    assert "IAM does not allow autoscaling:DescribeAutoScalingGroups in us-east-1" in done.stderr
