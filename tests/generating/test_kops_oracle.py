"""kOps' own code accepts the files, and makes groups of them that gpuscaler finds and knows."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.clouds.aws.accounts import Aws
from tests.conformance.asking import Oracle
from tests.generating.building import kops

from gpuscaler import catalogue
from gpuscaler.generating.aws.names import controller_role_arn, kops_role_name
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT

pytestmark = pytest.mark.kops

NAME = "train.example.com"
START = f"cloud: aws\ntool: kops\ncluster: {{name: {NAME}, region: us-east-1, zones: [us-east-1a, us-east-1c]}}\ngpu_pools:\n"
POOLS = {
    "defaults": "- {name: gpu, types: [g5.xlarge]}\n",
    "cheapest types": "- {name: gpu, gpus: 8, gpu_memory: 80G, labels: {team: vision}}\n",
    "no taint": "- {name: gpu, types: [g5.xlarge], taints: []}\n",
    "other taints": '- {name: gpu, types: [g6.xlarge], taints: ["nvidia.com/gpu:NoSchedule", "team=vision:NoExecute"], min: 1, max: 3}\n',
    "blackwell": "- {name: gpu, types: [p6-b200.48xlarge], markets: [spot], zones: [us-east-1a]}\n",
}
#: What `kops create cluster` makes of a name and two zones, as far as validation asks for it.
CLUSTER: dict[str, Any] = {
    "api": {"dns": {}},
    "authorization": {"rbac": {}},
    "channel": "stable",
    "cloudProvider": "aws",
    "configBase": f"s3://state.example.com/{NAME}",
    "etcdClusters": [
        {"name": name, "cpuRequest": "200m", "memoryRequest": "100Mi", "etcdMembers": [{"name": "a", "instanceGroup": "control-plane-a"}]}
        for name in ("main", "events")
    ],
    "iam": {"allowContainerRegistry": True, "legacy": False},
    "kubernetesApiAccess": ["0.0.0.0/0"],
    "kubernetesVersion": "1.35.0",
    "networkCIDR": "172.20.0.0/16",
    "networking": {"cilium": {}},
    "nonMasqueradeCIDR": "100.64.0.0/10",
    "sshAccess": ["0.0.0.0/0"],
    "subnets": [
        {"name": f"us-east-1{letter}", "zone": f"us-east-1{letter}", "type": "Private", "cidr": f"172.20.{number}.0/19"}
        for letter, number in (("a", 32), ("c", 64))
    ]
    + [
        {"name": f"utility-us-east-1{letter}", "zone": f"us-east-1{letter}", "type": "Utility", "cidr": f"172.20.{number}.0/22"}
        for letter, number in (("a", 0), ("c", 4))
    ],
    "topology": {"dns": {"type": "None"}},
}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle(kops()) as running:
        yield running


def asked(pools: str) -> dict[str, Any]:
    files = {file.path: file.text(explain=True) for file in files_of(read_description(START + pools))}
    excerpt = yaml.safe_load(files["kops/cluster.yaml"])
    cluster = {**excerpt, "spec": _merged(CLUSTER, excerpt["spec"])}
    groups = list(yaml.safe_load_all(files["kops/instancegroups.yaml"]))
    return {
        "Cluster": yaml.safe_dump(cluster),
        "Groups": [yaml.safe_dump(group) for group in groups],
        "GPUTypes": [type_.name for type_ in catalogue.types("aws") if type_.gpus],
        "Accounts": [f"gpuscaler/{SERVICE_ACCOUNT}", f"gpuscaler/{'x' * 40}"],
    }


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _merged(below[key], above[key]) if isinstance(below.get(key), dict) and key in above else above.get(key, below.get(key))
        for key in {**below, **above}
    }


@pytest.mark.parametrize("pools", POOLS.values(), ids=list(POOLS))
def test_kops_accepts_the_files_and_gpuscaler_knows_the_groups(oracle: Oracle, pools: str) -> None:
    described = read_description(START + pools)
    made = oracle.ask(asked(pools))
    assert made["refused"] == []
    assert [group["refused"] for group in made["groups"]] == [[] for _ in described.groups]
    aws = Aws()
    for group, their in zip(described.groups, made["groups"], strict=True):
        assert their["autoScalingGroup"] == f"{group.name}.{NAME}"
        # The kubelet registers with exactly these taints: kOps has added none.
        keys = [taint.partition("=")[0] for taint in their["taints"]]
        assert (keys.count("nvidia.com/gpu"), keys.count("gpuscaler.io/arriving")) == (1, 1)
        spec = yaml.safe_load(asked(pools)["Groups"][described.groups.index(group)])["spec"]
        assert sorted(their["taints"]) == sorted(spec["taints"])
        assert their["labels"]["kops.k8s.io/gpu"] == "1"
        _create(aws, their, spec)
    found = aws.discover(NAME)
    assert found.set_aside == ()
    names = sorted(group.name for group in described.groups)
    assert [pool.warnings for pool in found.pools] == [(f"the pool is called {name} here",) for name in names]
    pools_by_name = {pool.pool.name: pool for pool in found.pools}
    for group, their in zip(described.groups, made["groups"], strict=True):
        offering = next(iter(pools_by_name[group.name].pool.offerings))
        assert (offering.market, offering.zone, offering.instance_type) == (group.market, group.zone, group.instance_type.name)
        assert {f"{taint.key}={taint.value}:{taint.effect}" for taint in offering.taints} | {"gpuscaler.io/arriving=:NoSchedule"} == set(
            their["taints"]
        )
        assert their["labels"].items() <= offering.labels.items()


def _create(aws: Aws, their: dict[str, Any], spec: dict[str, Any]) -> None:
    """Make the Auto Scaling group as kOps does."""
    name, (zone,) = their["autoScalingGroup"], spec["subnets"]
    disk = {"VolumeSize": spec["rootVolumeSize"], "VolumeType": spec["rootVolumeType"], "DeleteOnTermination": True}
    aws.template(name, InstanceType=spec["machineType"], BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}])
    template = {"LaunchTemplateName": name, "Version": "$Latest"}
    settings: dict[str, Any] = {"LaunchTemplate": template}
    if policy := spec.get("mixedInstancesPolicy"):
        overrides = [{"InstanceType": type_} for type_ in policy["instances"]]
        distribution = {
            "OnDemandBaseCapacity": policy["onDemandBase"],
            "OnDemandPercentageAboveBaseCapacity": policy["onDemandAboveBase"],
            "SpotAllocationStrategy": policy["spotAllocationStrategy"],
        }
        mixed = {"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}, "InstancesDistribution": distribution}
        settings = {"MixedInstancesPolicy": mixed}
    aws.group(
        name,
        their["tags"],
        AvailabilityZones=[zone],
        MinSize=spec["minSize"],
        MaxSize=spec["maxSize"],
        NewInstancesProtectedFromScaleIn=spec["instanceProtection"],
        **settings,
    )
    aws.client("autoscaling").suspend_processes(AutoScalingGroupName=name, ScalingProcesses=spec["suspendProcesses"])


def test_roles_are_called_as_kops_calls_them(oracle: Oracle) -> None:
    made = oracle.ask(asked(POOLS["defaults"]))
    assert made["roles"][0] == controller_role_arn(read_description(START + POOLS["defaults"])).rpartition("/")[2]
    assert made["roles"][1] == kops_role_name(f"{'x' * 40}.gpuscaler.sa.{NAME}") != f"{'x' * 40}.gpuscaler.sa.{NAME}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("suspendProcesses", "suspendedProcesses", "unknown field"),
        ("minSize: 0", "minSize: 11", "maxSize must be greater"),
        ("- us-east-1a", "- us-east-1b", "Not found"),
        ("price-capacity-optimized", "cheapest", "Unsupported value"),
        ("httpTokens: required", "httpTokens: always", "Unsupported value"),
        ("rootVolumeType: gp3", "rootVolumeType: gp9", "Unsupported value"),
        ("gpuscaler.io/arriving=:NoSchedule", "gpuscaler.io/arriving=a=b:NoSchedule", "invalid taint"),
    ],
)
def test_the_check_refuses_mistakes(oracle: Oracle, old: str, new: str, message: str) -> None:
    asking = asked(POOLS["defaults"])
    assert old in asking["Groups"][0]
    asking["Groups"] = [asking["Groups"][0].replace(old, new)]
    (group,) = oracle.ask(asking)["groups"]
    assert message in "".join(group["refused"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("policyARNs", "policyArns", "unknown field"),
        ("s3://train-example-com-oidc", "s3://train.example.com", "cannot contain dots"),
        ("policyARNs:", "inlinePolicy: '[]'\n        policyARNs:", "cannot set both"),
    ],
)
def test_the_check_refuses_mistakes_in_the_spec_of_the_cluster(oracle: Oracle, old: str, new: str, message: str) -> None:
    asking = asked(POOLS["defaults"])
    assert old in asking["Cluster"]
    refused = oracle.ask({**asking, "Cluster": asking["Cluster"].replace(old, new)})["refused"]
    assert message in "".join(refused)
