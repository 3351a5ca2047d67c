"""InstanceGroups of kOps: what gpuscaler needs is in them, nothing is set twice, and names are those that kOps gives."""

from typing import Any

import pytest
import yaml
from tests.generating.corpus import description, generated
from tests.generating.looking import complaints, look_at

from gpuscaler.clouds.aws.discovery.ownership import decide_ownership
from gpuscaler.generating.aws.kops import kops_files
from gpuscaler.generating.aws.names import controller_policy_arn, controller_role_arn, kops_role_name
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description

SCENE = "s0-kops"
GROUPS, CLUSTER = "kops/instancegroups.yaml", "kops/cluster.yaml"
START = "cloud: aws\ntool: kops\ncluster: {name: train.example.com, region: us-east-1}\ngpu_pools:\n"


def groups(pools: str) -> list[dict[str, Any]]:
    """The InstanceGroups of pools."""
    files = {file.path: file for file in files_of(read_description(START + pools))}
    assert not any(file.gaps for file in files.values())
    return list(yaml.safe_load_all(files[GROUPS].text(explain=False)))


def taints(group: dict[str, Any]) -> list[str]:
    return list(group["spec"]["taints"])


def test_only_kops_gets_these_files() -> None:
    assert {GROUPS, CLUSTER} <= set(generated(SCENE))
    assert not list(kops_files(description("s1-eksctl")))


def test_a_group_for_each_type_market_and_zone_and_spot_where_it_is_asked_for() -> None:
    made = groups("- {name: gpu, types: [g5.xlarge], min: 1, max: 7, disk: 100Gi}\n")
    assert [(group["metadata"]["name"], group["spec"]["subnets"]) for group in made] == [
        ("gpu-spot-a", ["us-east-1a"]),
        ("gpu-spot-b", ["us-east-1b"]),
        ("gpu-on-demand-a", ["us-east-1a"]),
        ("gpu-on-demand-b", ["us-east-1b"]),
    ]
    spot, on_demand = made[0]["spec"], made[2]["spec"]
    assert spot["mixedInstancesPolicy"] == {
        "instances": ["g5.xlarge"],
        "onDemandBase": 0,
        "onDemandAboveBase": 0,
        "spotAllocationStrategy": "price-capacity-optimized",
    }
    assert "mixedInstancesPolicy" not in on_demand
    for spec in (spot, on_demand):
        assert (spec["minSize"], spec["maxSize"], spec["rootVolumeSize"]) == (1, 7, 100)
        assert "maxPrice" not in spec


def test_the_first_write_up_has_what_its_group_lacked() -> None:
    """The tags of discovery (S0-2), a taint in kOps' form, protection, and no rebalancing of zones."""
    (group,) = yaml.safe_load_all(generated(SCENE)[GROUPS].text(explain=False))
    spec = group["spec"]
    assert group["metadata"]["labels"] == {"kops.k8s.io/cluster": "train.example.com"}
    kops_tags = {"KubernetesCluster": "train.example.com", "k8s.io/role/node": "1", **spec["cloudLabels"]}
    owner = decide_ownership("gpu", kops_tags, cluster="train.example.com", named=(), extra={})
    assert (owner.source, owner.reason) == ("cluster-autoscaler", "")
    assert taints(group) == ["gpuscaler.io/arriving=:NoSchedule", "nvidia.com/gpu=present:NoSchedule"]
    assert spec["nodeLabels"] == {
        "kops.k8s.io/instancegroup": "gpu-on-demand-a",
        "gpuscaler.io/pool": "gpu-on-demand-a",
        "k8s.amazonaws.com/accelerator": "nvidia-a10g",
        "gpu": "true",
    }
    assert (spec["instanceProtection"], spec["suspendProcesses"], spec["autoscale"]) == (True, ["AZRebalance"], False)
    assert spec["instanceMetadata"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
    assert (spec["minSize"], spec["rootVolumeType"], spec["rootVolumeEncryption"], spec["associatePublicIp"]) == (0, "gp3", True, False)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("[]", ["nvidia.com/gpu=:NoSchedule"]),
        ('["team=vision:NoSchedule"]', ["team=vision:NoSchedule", "nvidia.com/gpu=:NoSchedule"]),
        ('["nvidia.com/gpu:NoSchedule"]', ["nvidia.com/gpu=:NoSchedule"]),
        ('["nvidia.com/gpu=a10g:NoExecute"]', ["nvidia.com/gpu=a10g:NoExecute"]),
    ],
)
def test_the_taint_that_kops_adds_is_named_once(asked: str, expected: list[str]) -> None:
    """Each taint has a "=": of others, kOps makes no tag, and gpuscaler would plan with a taint too few."""
    (group,) = groups(f"- {{name: gpu, types: [g5.xlarge], markets: [spot], zones: [us-east-1a], taints: {asked}}}\n")
    assert taints(group) == ["gpuscaler.io/arriving=:NoSchedule", *expected]


def test_only_gpus_that_kops_driver_does_not_know_get_another_one() -> None:
    made = groups("- {name: gpu, types: [g5.xlarge, p6-b200.48xlarge, g7e.2xlarge], markets: [spot], zones: [us-east-1a]}\n")
    assert ["containerd" in group["spec"] for group in made] == [False, True, True]
    assert made[1]["spec"]["containerd"] == {"nvidiaGPU": {"package": "nvidia-driver-580-server-open"}}


def test_public_machines_keep_the_addresses_of_their_subnet() -> None:
    text = START.replace("region: us-east-1", "region: us-east-1, private: false") + "- {name: gpu, types: [g5.xlarge]}\n"
    files = {file.path: file for file in files_of(read_description(text))}
    assert "associatePublicIp" not in files[GROUPS].text(explain=False)


def test_the_clusters_spec_names_the_policy_of_the_stack_and_switches_off_the_other_reader_of_notices() -> None:
    described = description(SCENE)
    cluster = yaml.safe_load(generated(SCENE)[CLUSTER].text(explain=False))
    spec = cluster["spec"]
    (account,) = spec["iam"]["serviceAccountExternalPermissions"]
    assert (account["namespace"], account["name"]) == ("gpuscaler", "gpuscaler-controller")
    assert account["aws"] == {"policyARNs": [controller_policy_arn(described)]}
    assert controller_role_arn(described) == "arn:aws:iam::111122223333:role/gpuscaler-controller.gpuscaler.sa.train.example.com"
    assert spec["nodeTerminationHandler"] == {"enabled": False}
    assert spec["containerd"] == {"nvidiaGPU": {"enabled": True}}
    step = generated(SCENE)[CLUSTER]
    assert "s3://train-example-com-oidc" in step.edit
    assert "create-bucket --bucket train-example-com-oidc --region ap-northeast-1" in step.apply
    assert "LocationConstraint=ap-northeast-1" in step.apply
    for said in ("those of the control plane included", "Node Termination Handler", "managed: false"):
        assert said in step.edit


def test_long_names_of_roles_end_as_kops_ends_them() -> None:
    assert kops_role_name("nodes.example.com") == "nodes.example.com"
    # Source: kOps 1.35.0, asked by test_kops_oracle.py.
    long = f"{'x' * 40}.gpuscaler.sa.train.example.com"
    assert kops_role_name(long) == f"{'x' * 40}.gpuscaler.sa.tra-spgmu0"


def test_the_doctor_finds_nothing() -> None:
    assert complaints(look_at(SCENE)) == []


@pytest.mark.parametrize(
    "taints", ["[team=x:NoSchedule]", "[nvidia.com/gpu=yes:NoExecute]", "[lab/soft=yes:PreferNoSchedule, lab/big=yes:NoExecute]"]
)
def test_the_device_plugin_tolerates_all_taints_of_its_groups_as_kops_makes_them(taints: str) -> None:
    """kOps' own plugin tolerates nvidia.com/gpu:NoSchedule only, and kOps adds that taint where a group has no such key."""
    files = {file.path: file for file in files_of(read_description(f"{START}- {{name: big, types: [g5.xlarge], taints: {taints}}}\n"))}
    plugin = yaml.safe_load(files["kubernetes/device-plugin.yaml"].text(explain=False))
    tolerated = {(item["key"], item["effect"]) for item in plugin["spec"]["template"]["spec"]["tolerations"]}
    for group in yaml.safe_load_all(files[GROUPS].text(explain=False)):
        assert {(text.partition("=")[0], text.rpartition(":")[2]) for text in group["spec"]["taints"]} <= tolerated


def test_where_kops_own_device_plugin_runs_there_is_no_second_one() -> None:
    text = f"{START}- {{name: big, types: [g5.xlarge], taints: [nvidia.com/gpu=:NoSchedule, lab/soft=yes:PreferNoSchedule]}}\n"
    assert "kubernetes/device-plugin.yaml" not in {file.path for file in files_of(read_description(text))}
