"""ClusterConfigs of eksctl: what their groups are, and that gpuscaler finds and understands them in an account."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.generating.corpus import NAMES, description, generated
from tests.generating.looking import complaints, look_at

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER, ENABLED, decide_ownership
from gpuscaler.clouds.discovery.hints import LABEL, hints_of
from gpuscaler.generating.aws.eksctl import eksctl_files, eksctl_identity_files
from gpuscaler.generating.aws.nodes import node_labels, node_taints
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.model.taints import Taint

EKSCTL = tuple(name for name in NAMES if description(name).tool == "eksctl")
ARRIVING = {"key": "gpuscaler.io/arriving", "effect": "NoSchedule"}
SMALLEST = """
cloud: aws
cluster: {name: research, region: us-east-1}
gpu_pools:
- {name: train, types: [g5.xlarge], zones: [us-east-1b]}
"""


def _config(of: Description) -> dict[str, Any]:
    (file,) = eksctl_files(of)
    config: dict[str, Any] = yaml.safe_load(file.text(explain=True))
    return config


def _groups(of: Description) -> list[dict[str, Any]]:
    config = _config(of)
    return [*config.get("managedNodeGroups", ()), *config.get("nodeGroups", ())]


def _gpu_groups(of: Description) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in _groups(of) if "taints" in group}


def _tags_in_account(of: Description, group: Mapping[str, Any]) -> dict[str, str]:
    """The tags of the Auto Scaling group: what EKS and eksctl v0.215.0 set beside ``tags``, with the taints as eksctl writes them."""
    name = of.cluster.name
    if not of.managed:
        return {f"kubernetes.io/cluster/{name}": "owned", "alpha.eksctl.io/cluster-name": name, **group.get("tags", {})}
    eks = {ENABLED: "true", f"{CLUSTER_AUTOSCALER}{name}": "owned", "eks:cluster-name": name, "eks:nodegroup-name": group["name"]}
    if not group.get("propagateASGTags"):
        return eks
    labels = {f"{LABEL}{key}": value for key, value in group["labels"].items()}
    taints = {f"{CLUSTER_AUTOSCALER}node-template/taint/{taint['key']}": taint.get("value", "") for taint in group["taints"]}
    return {**eks, **labels, **taints, **group["tags"]}


@pytest.mark.parametrize("name", EKSCTL)
def test_there_is_a_group_of_one_type_and_zone_for_each_group_of_the_description(name: str) -> None:
    found = {
        group["name"]: (
            group.get("instanceTypes") or group.get("instancesDistribution", {}).get("instanceTypes") or [group["instanceType"]],
            group["availabilityZones"],
            "spot" if group.get("spot") or "instancesDistribution" in group else "on-demand",
            (group["minSize"], group["maxSize"], group["desiredCapacity"]),
        )
        for group in _gpu_groups(description(name)).values()
    }
    expected = {
        group.name: ([group.instance_type.name], [group.zone], group.market, (group.min, group.max, group.min))
        for group in description(name).groups
    }
    assert found == expected


@pytest.mark.parametrize("name", EKSCTL)
def test_gpuscaler_finds_the_gpu_groups_by_their_tags_and_no_other(name: str) -> None:
    of = description(name)
    for group in _groups(of):
        ownership = decide_ownership(group["name"], _tags_in_account(of, group), cluster=of.cluster.name, named=(), extra={})
        if "taints" in group or of.managed:
            assert ownership.source == ("eks" if of.managed else "cluster-autoscaler")
        else:
            assert not ownership.source
            assert "no tag says that it may be scaled" in ownership.reason


@pytest.mark.parametrize("name", EKSCTL)
def test_tags_tell_labels_and_taints_of_nodes_without_a_mistake(name: str) -> None:
    of = description(name)
    written = _gpu_groups(of)
    for group in of.groups:
        hints = hints_of(_tags_in_account(of, written[group.name]))
        assert (hints.labels, set(hints.taints)) == (dict(node_labels(group)), set(node_taints(group)))
        assert not hints.warnings
        assert hints.labels["gpuscaler.io/pool"] == group.name


@pytest.mark.parametrize("name", EKSCTL)
def test_gpuscalers_taint_is_on_gpu_nodes_only_beside_the_others_and_not_in_user_data(name: str) -> None:
    for group in _groups(description(name)):
        assert ("taints" in group) == (group["name"] in {of.name for of in description(name).groups})
        assert "overrideBootstrapCommand" not in group
        assert "kubeletExtraConfig" not in group
        if "taints" in group:
            assert group["taints"][0] == ARRIVING
            assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in group["taints"]


@pytest.mark.parametrize("name", EKSCTL)
def test_pods_get_no_rights_from_the_role_of_their_machine(name: str) -> None:
    for group in _groups(description(name)):
        assert set(group.get("iam", {})) <= {"instanceRoleName"}
        assert group["disablePodIMDS"]
        assert group["disableIMDSv1"]
        assert (group["volumeType"], group["volumeEncrypted"]) == ("gp3", True)


def test_spot_groups_of_ones_own_have_no_machine_on_demand_and_no_highest_price() -> None:
    groups = _gpu_groups(description("s1-self-managed"))
    assert groups["train-g6-xlarge-spot-b"]["instancesDistribution"] == {
        "instanceTypes": ["g6.xlarge"],
        "onDemandBaseCapacity": 0,
        "onDemandPercentageAboveBaseCapacity": 0,
        "spotAllocationStrategy": "price-capacity-optimized",
    }
    assert groups["train-g6-xlarge-on-demand-b"]["instanceType"] == "g6.xlarge"
    assert all(group["asgSuspendProcesses"] == ["AZRebalance"] for group in groups.values())


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("m5.2xlarge, m5a.2xlarge", {"general": ["m5.2xlarge", "m5a.2xlarge"]}),
        ("m5.2xlarge, m5.4xlarge", {"general-m5-2xlarge": ["m5.2xlarge"], "general-m5-4xlarge": ["m5.4xlarge"]}),
        ("m6i.large, m6g.large", {"general-m6i-large": ["m6i.large"], "general-m6g-large": ["m6g.large"]}),
        ("c5.xlarge, c5n.xlarge", {"general-c5-xlarge": ["c5.xlarge"], "general-c5n-xlarge": ["c5n.xlarge"]}),
        ("t3.large, x2idn.16xlarge", {"general-t3-large": ["t3.large"], "general-x2idn-16xlarge": ["x2idn.16xlarge"]}),
    ],
)
def test_types_without_gpus_share_a_group_only_if_their_machines_are_equal_in_size(types: str, expected: dict[str, list[str]]) -> None:
    of = read_description(f"{SMALLEST}general: {{types: [{types}], min: 3, max: 5}}\n")
    groups = [group for group in _groups(of) if "taints" not in group]
    assert {group["name"]: group["instanceTypes"] for group in groups} == expected
    assert {(group["minSize"], group["maxSize"]) for group in groups} == {(3, 5)}


def test_a_cluster_has_two_zones_at_least_and_those_of_all_pools() -> None:
    assert _config(read_description(SMALLEST))["availabilityZones"] == ["us-east-1a", "us-east-1b"]
    one = read_description(SMALLEST.replace("region:", "zones: [us-east-1b], region:"))
    assert _config(one)["availabilityZones"] == ["us-east-1a", "us-east-1b"]
    assert [group["availabilityZones"] for group in _groups(one) if group["name"] == "general"] == [["us-east-1b"]]
    other = read_description(SMALLEST.replace("[us-east-1b]", "[us-east-1f]"))
    assert _config(other)["availabilityZones"] == ["us-east-1a", "us-east-1b", "us-east-1f"]


def test_a_cluster_that_exists_gets_its_gpu_groups_only() -> None:
    of = description("s3-metrics")
    assert set(_config(of)) == {"apiVersion", "kind", "metadata", "managedNodeGroups"}
    assert "version" not in _config(of)["metadata"]
    assert set(_gpu_groups(of)) == {group["name"] for group in _groups(of)}
    files = generated("s3-metrics")
    assert "eksctl create nodegroup --config-file=eksctl/cluster.yaml --install-nvidia-plugin=false" in files["eksctl/cluster.yaml"].apply
    assert "add its network" in files["eksctl/cluster.yaml"].edit
    assert "--name=eks-pod-identity-agent\n" in files["eksctl/identity.yaml"].apply


def test_the_controller_takes_its_role_by_an_association_or_by_tokens_of_the_cluster() -> None:
    (identity,) = eksctl_identity_files(description("s1-eksctl"))
    assert yaml.safe_load(identity.text(explain=False))["iam"]["podIdentityAssociations"] == [
        {
            "namespace": "gpuscaler",
            "serviceAccountName": "gpuscaler-controller",
            "roleARN": "arn:aws:iam::111122223333:role/gpuscaler-eks-gpu",
        }
    ]
    assert "replace 111122223333" in identity.edit
    assert "eks-pod-identity-agent" in [addon["name"] for addon in _config(description("s1-eksctl"))["addons"]]
    assert not list(eksctl_identity_files(description("s1-self-managed")))
    assert _config(description("s1-self-managed"))["iam"] == {"withOIDC": True}


def test_the_api_server_is_open_to_the_addresses_that_are_named_or_the_files_say_that_it_is_open_to_all() -> None:
    endpoints = {"publicAccess": True, "privateAccess": True}
    (file,) = eksctl_files(read_description(SMALLEST))
    assert yaml.safe_load(file.text(explain=True))["vpc"] == {"clusterEndpoints": endpoints}
    assert "open to the whole internet" in file.text(explain=True)
    assert "open to the whole internet" in file.edit
    (file,) = eksctl_files(read_description(SMALLEST.replace("name: research", "name: research, api_access: [203.0.113.0/24]")))
    assert yaml.safe_load(file.text(explain=True))["vpc"] == {"clusterEndpoints": endpoints, "publicAccessCIDRs": ["203.0.113.0/24"]}
    assert "whole internet" not in file.text(explain=True)


def test_a_new_cluster_enforces_network_policies() -> None:
    (network,) = (addon for addon in _config(description("s1-eksctl"))["addons"] if addon["name"] == "vpc-cni")
    assert json.loads(network["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_commands_protect_the_machines_of_gpu_groups_only() -> None:
    (managed,), (own,) = eksctl_files(description("s1-eksctl")), eksctl_files(description("s1-self-managed"))
    for command in (managed.apply, own.apply):
        assert "--new-instances-protected-from-scale-in" in command
        assert f"Name=tag-key,Values={LABEL}gpuscaler.io/pool" in command
        assert "set-instance-protection" not in command
    assert "put-lifecycle-hook" not in managed.apply
    assert "put-lifecycle-hook" in own.apply
    (warm,) = eksctl_files(read_description(SMALLEST.replace("{name: train", "{min: 1, name: train")))
    assert "set-instance-protection" in warm.apply


def test_regions_without_metrics_server_do_not_get_it() -> None:
    china = read_description(SMALLEST.replace("us-east-1", "cn-north-1"))
    assert "metrics-server" not in [addon["name"] for addon in _config(china)["addons"]]
    (identity,) = eksctl_identity_files(china)
    assert "arn:aws-cn:iam::" in identity.text(explain=False)


def test_texts_of_a_description_stay_texts() -> None:
    texts = ("no", "y", "1.0", "null", "1e3", "0o17", "0x1F", "1_000", "2026-01-01", "12.5e-3")
    labels = ", ".join(f'"{text}": "{text}"' for text in texts if text != "12.5e-3")
    taints = "[{key: 'on', value: 'off', effect: NoExecute}, 'a:NoSchedule']"
    of = read_description(SMALLEST.replace("{name: train", f"{{labels: {{{labels}, n: '12.5e-3'}}, taints: {taints}, name: '1e3'"))
    written = _gpu_groups(of)["1e3-spot-b"]
    assert {key: value for key, value in written["labels"].items() if "/" not in key} == dict(of.groups[0].labels)
    assert written["taints"] == [ARRIVING, {"key": "on", "value": "off", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]
    assert hints_of(_tags_in_account(of, written)).taints == (Taint("a"), Taint("gpuscaler.io/arriving"), Taint("on", "off", "NoExecute"))
    (file,) = eksctl_files(of)
    plain = {line.strip() for line in file.text(explain=False).splitlines()}
    # Parsers of Go read these as booleans and numbers unless they are quoted; PyYAML does not.
    assert {f"'{text}': '{text}'" for text in texts if text != "12.5e-3"} <= plain
    assert "'n': '12.5e-3'" in plain


@pytest.mark.parametrize("nodes", ["managed", "self-managed"])
def test_names_of_roles_fit_into_iam_stay_distinct_and_are_those_that_gpuscaler_may_pass(nodes: str) -> None:
    text = SMALLEST.replace("name: research", f"name: {'c' * 60}").replace("[us-east-1b]", "[us-east-1a, us-east-1b]")
    groups = _gpu_groups(read_description(f"nodes: {nodes}\n{text}"))
    roles = {group["iam"]["instanceRoleName"] for group in groups.values()}
    assert len(roles) == len(groups) == 4
    assert max(map(len, roles)) <= 64
    groups = _gpu_groups(read_description(f"nodes: {nodes}\n{SMALLEST}"))
    assert all(group["iam"]["instanceRoleName"].startswith("eksctl-research-nodegroup-") for group in groups.values())


def test_files_say_that_they_do_not_set_up_fast_networks() -> None:
    (file,) = eksctl_files(read_description(SMALLEST.replace("g5.xlarge", "p5.48xlarge")))
    assert "p5.48xlarge: Elastic Fabric Adapters are not set up" in file.edit
    (file,) = eksctl_files(read_description(SMALLEST))
    assert "Elastic" not in file.edit


def test_500_groups_are_written_with_a_word_on_the_quota() -> None:
    pools = "".join(f"- {{name: p{n}, types: [g5.xlarge], zones: [us-east-1a, us-east-1b]}}\n" for n in range(125))
    of = read_description(SMALLEST[: SMALLEST.index("- {")] + pools)
    (file,) = eksctl_files(of)
    assert len(_gpu_groups(of)) == 500
    assert not file.gaps
    assert "ask AWS for 501 managed node groups" in file.edit
    assert len(file.text(explain=True)) < 1_000_000


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EKSCTL])
def test_other_tools_get_no_files_of_eksctl(name: str) -> None:
    assert not [path for path in generated(name) if path.startswith("eksctl/")]


@pytest.mark.parametrize("name", EKSCTL)
def test_the_doctor_finds_nothing(name: str) -> None:
    assert complaints(look_at(name, [path for path in generated(name) if path.startswith("eksctl/")])) == []
