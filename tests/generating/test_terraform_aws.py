"""The Terraform files of AWS: against the provider's schema, evaluated by Terraform itself, and read as gpuscaler reads an account."""

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import pytest
from tests.generating.corpus import FOLDER
from tests.generating.terraform.checking import mistakes
from tests.generating.terraform.running import TERRAFORM, TerraformError, needs_terraform, plan, terraform, validate, written
from tests.generating.terraform.stand_in import load

from gpuscaler.clouds.aws.discovery.iam import policy
from gpuscaler.clouds.aws.discovery.ownership import decide_ownership
from gpuscaler.clouds.aws.templates.user_data import kubelet_of
from gpuscaler.clouds.discovery.hints import hints_of
from gpuscaler.generating.aws.nodes import group_tags, node_labels, node_taints
from gpuscaler.generating.aws.notices import RULES
from gpuscaler.generating.aws.terraform.files import terraform_files
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.writing.files import GeneratedFile

TABLE = load("aws")
SCENE = (FOLDER / "s4-terraform.yaml").read_text()
EXISTING = SCENE.replace('version: "1.34"', "create: false")
SELF_MANAGED = """
cloud: aws
tool: terraform
nodes: self-managed
cluster: {name: research, region: eu-west-1, zones: [eu-west-1b], create: false, private: false}
gpu_pools:
- name: train
  types: [g5.xlarge, g5g.xlarge]
  min: 1
  disk: 300Gi
  labels: {team: "a"}
  taints: [{key: dedicated, value: gpu, effect: NoExecute}]
- {name: amd, types: [g4ad.xlarge], markets: [spot], zones: [eu-west-1c], taints: []}
controller: {identity: irsa, namespace: scaling}
"""
NEW_SELF_MANAGED = SELF_MANAGED.replace(", create: false, private: false", ", api_access: [203.0.113.0/24]").replace(
    "controller:", "general: {types: [m7g.large, c5.xlarge]}\ncontroller:"
)
TEXTS = {"managed": SCENE, "existing": EXISTING, "self-managed": SELF_MANAGED, "new-self-managed": NEW_SELF_MANAGED}
EFFECTS = {"NO_SCHEDULE": "NoSchedule", "PREFER_NO_SCHEDULE": "PreferNoSchedule", "NO_EXECUTE": "NoExecute"}
Values = Mapping[str, Any]


@cache
def described(name: str) -> Description:
    return read_description(TEXTS[name], name)


def files(name: str) -> list[GeneratedFile]:
    return list(terraform_files(described(name)))


def subnet(zone: str) -> str:
    return f"subnet-{zone}"


def answers(kind: str, config: Values) -> Values:
    """What AWS says of subnets: that they are in the zone of their name, and give no public addresses."""
    return {"availability_zone": config["id"].removeprefix("subnet-")} if kind == "aws_subnet" else {}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Values]:
    """What Terraform would ask AWS for, with examples for what only AWS knows."""
    if TERRAFORM is None:
        pytest.skip("terraform is not installed")

    @cache
    def run(name: str) -> Values:
        folder = written(tmp_path_factory.mktemp(name), files(name))
        zones = {f"{described(name).cluster.region}{letter}" for letter in "abc"}
        return plan(folder, TABLE, {"subnet_ids": {zone: subnet(zone) for zone in sorted(zones)}}, answers, examples=True)

    return run


def each(values: Values, kind: str) -> Values:
    """The instances of a resource with for_each, by key."""
    return {address.split('["', 1)[1].removesuffix('"]'): body for address, body in values.items() if address.startswith(f"{kind}[")}


def group_of(name: str, key: str) -> NodeGroup:
    return next(group for group in described(name).groups if group.name == key)


@pytest.mark.parametrize("name", TEXTS)
def test_every_value_has_a_reason_and_reasons_change_nothing(name: str) -> None:
    def parsed(text: str) -> Any:
        return strip(hcl2.loads(text))

    def strip(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: strip(value) for key, value in tree.items() if "comments__" not in key}
        return [strip(value) for value in tree] if isinstance(tree, list) else tree

    for file in files(name):
        assert not file.gaps, file.path
        assert parsed(file.text(explain=True)) == parsed(file.text(explain=False)), file.path


@pytest.mark.parametrize("name", TEXTS)
def test_resources_arguments_and_references_are_known(name: str) -> None:
    assert mistakes([file.text(explain=False) for file in files(name)], TABLE) == []


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("message_retention_seconds", "retention_seconds", "aws_sqs_queue.notices.retention_seconds: no such argument or block"),
        ("    min_size     = each.value.min\n", "", "aws_eks_node_group.gpu.scaling_config.min_size: is required and not there"),
        (
            "sqs_managed_sse_enabled   = true",
            "sqs_managed_sse_enabled = [true]",
            "aws_sqs_queue.notices.sqs_managed_sse_enabled: [True], expected bool",
        ),
        ('"aws_sqs_queue" "notices"', '"aws_sqs_queue" "other"', "aws_sqs_queue.notices: is mentioned and not there"),
        ("aws_sqs_queue.notices.url", "aws_sqs_queue.notices.uri", "aws_sqs_queue.notices.uri: no such attribute"),
        ("local.notices", "local.notes", "local.notes: is mentioned and not there"),
        ("local.cluster.version", "local.cluster.release", "local.cluster.release: is mentioned and not there"),
        ("var.kms_key_arn", "var.key", "var.key: is mentioned and not there"),
        ('dynamic "taint"', 'dynamic "taints"', "aws_eks_node_group.gpu.taints: no such block"),
        ('"aws_kms_grant"', '"aws_kms_grants"', "aws_kms_grants.autoscaling: the table has no such type"),
    ],
)
def test_the_check_finds_mistakes(old: str, new: str, mistake: str) -> None:
    texts = [file.text(explain=False) for file in files("managed")]
    assert any(old in text for text in texts)
    assert mistake in mistakes([text.replace(old, new) for text in texts], TABLE)


@needs_terraform
@pytest.mark.parametrize("name", TEXTS)
def test_terraform_accepts_the_files(tmp_path: Path, name: str) -> None:
    for explain in (True, False):
        folder = written(tmp_path, files(name), explain=explain)
        terraform(folder, "fmt", "-check", "-diff")
        validate(folder, TABLE)


@needs_terraform
@pytest.mark.parametrize("name", TEXTS)
def test_a_plan_needs_nothing_that_only_aws_knows(tmp_path: Path, name: str) -> None:
    zones = [f"{described(name).cluster.region}{letter}" for letter in "abc"]
    folder = written(tmp_path, files(name))
    groups = plan(folder, TABLE, {"subnet_ids": {zone: subnet(zone) for zone in zones}, "kms_key_arn": "arn:aws:kms:key"}, answers)
    assert groups["aws_kms_grant.autoscaling[0]"]["key_id"] == "arn:aws:kms:key"
    assert set(each(groups, "aws_launch_template.gpu")) == {group.name for group in described(name).groups}


@needs_terraform
@pytest.mark.parametrize(
    ("subnets", "error"),
    [
        ({"us-east-2a": "subnet-us-east-2a"}, "A subnet for each of us-east-2a, us-east-2b is needed"),
        ({"us-east-2a": "subnet-us-east-2b", "us-east-2b": "subnet-us-east-2a"}, "is in us-east-2b, not in us-east-2a"),
    ],
)
def test_wrong_subnets_are_named_before_anything_is_created(tmp_path: Path, subnets: dict[str, str], error: str) -> None:
    with pytest.raises(TerraformError, match=error):
        plan(written(tmp_path, files("managed")), TABLE, {"subnet_ids": subnets}, answers)


@pytest.mark.parametrize("name", ["managed", "existing"])
def test_managed_groups_are_what_was_described(planned: Callable[[str], Values], name: str) -> None:
    groups = each(planned(name), "aws_eks_node_group.gpu")
    assert set(groups) == {group.name for group in described(name).groups}
    for key, values in groups.items():
        group = group_of(name, key)
        assert values["subnet_ids"] == [subnet(group.zone)]
        assert values["instance_types"] == [group.instance_type.name]
        assert values["capacity_type"] == {"spot": "SPOT", "on-demand": "ON_DEMAND"}[group.market]
        assert values["ami_type"] == "AL2023_x86_64_NVIDIA"
        assert values["scaling_config"] == [{"min_size": group.min, "max_size": group.max, "desired_size": group.min}]
        assert values["labels"] == node_labels(group)
        taints = [(taint["key"], taint["value"], EFFECTS[taint["effect"]]) for taint in values["taint"]]
        assert taints == [(taint.key, taint.value, taint.effect) for taint in node_taints(group)]


def test_tags_of_managed_groups_tell_labels_and_taints(planned: Callable[[str], Values]) -> None:
    tags: dict[str, dict[str, str]] = {}
    for key, values in each(planned("managed"), "aws_autoscaling_group_tag.node_template").items():
        (tag,) = values["tag"]
        tags.setdefault(key.split()[0], {})[tag["key"]] = tag["value"]
    for name, found in tags.items():
        hints, group = hints_of(found), group_of("managed", name)
        assert (hints.labels, set(hints.taints), hints.warnings) == (node_labels(group), set(node_taints(group)), ())
    assert len(tags) == len(described("managed").groups)


@pytest.mark.parametrize("name", ["self-managed", "new-self-managed"])
def test_self_managed_groups_are_what_was_described(planned: Callable[[str], Values], name: str) -> None:
    groups = each(planned(name), "aws_autoscaling_group.gpu")
    assert set(groups) == {group.name for group in described(name).groups}
    for key, values in groups.items():
        group = group_of(name, key)
        tags = {tag["key"]: tag["value"] for tag in values["tag"]}
        assert tags == {**group_tags(group, "research"), "kubernetes.io/cluster/research": "owned"}
        assert [tag["key"] for tag in values["tag"] if tag["propagate_at_launch"]] == ["kubernetes.io/cluster/research"]
        assert decide_ownership("asg", tags, cluster="research", named=(), extra={}).source == "cluster-autoscaler"
        assert (values["min_size"], values["max_size"]) == (group.min, group.max)
        assert values["vpc_zone_identifier"] == [subnet(group.zone)]
        assert values["suspended_processes"] == ["AZRebalance"]
        assert values["protect_from_scale_in"] is True
        (policy_,) = values["mixed_instances_policy"]
        (shares,) = policy_["instances_distribution"]
        assert (shares["on_demand_base_capacity"], shares["on_demand_percentage_above_base_capacity"]) == (
            0,
            0 if group.market == "spot" else 100,
        )
        assert shares["spot_allocation_strategy"] == "price-capacity-optimized"
        assert [entry["instance_type"] for entry in policy_["launch_template"][0]["override"]] == [group.instance_type.name]
    assert set(each(planned(name), "aws_autoscaling_lifecycle_hook.terminate")) == set(groups)


def test_user_data_registers_nodes_with_labels_and_taints(planned: Callable[[str], Values]) -> None:
    for key, values in each(planned("self-managed"), "aws_launch_template.gpu").items():
        group, kubelet = group_of("self-managed", key), kubelet_of(values["user_data"])
        assert kubelet.labels == node_labels(group)
        assert kubelet.taints == node_taints(group)
        text = base64.b64decode(values["user_data"]).decode()
        assert '"name": "research"' in text
        assert '"cidr": "aws_eks_cluster.kubernetes_network_config.service_ipv4_cidr"' in text


@pytest.mark.parametrize("name", TEXTS)
def test_disks_are_encrypted_and_machines_ask_for_tokens(planned: Callable[[str], Values], name: str) -> None:
    templates = each(planned(name), "aws_launch_template.gpu")
    for key, values in templates.items():
        (mapping,) = values["block_device_mappings"]
        (disk,) = mapping["ebs"]
        assert (mapping["device_name"], disk["volume_size"], disk["volume_type"]) == ("/dev/xvda", group_of(name, key).disk_gib, "gp3")
        assert (disk["encrypted"], disk["delete_on_termination"], disk["kms_key_id"]) == ("true", "true", None)
        (metadata,) = values["metadata_options"]
        assert (metadata["http_tokens"], metadata["http_put_response_hop_limit"]) == ("required", 1)
    assert not [address for address in planned(name) if address.startswith("aws_kms_grant")]


@pytest.mark.parametrize("name", TEXTS)
def test_kubectl_speaks_to_this_cluster_before_anything_is_installed_there(name: str) -> None:
    cluster = described(name).cluster
    last = files(name)[-1].apply
    assert last.index("apply plan.tfplan") < last.index(f"aws eks update-kubeconfig --region {cluster.region} --name {cluster.name}")


@pytest.mark.parametrize(
    ("name", "expected"), [("self-managed", ("associate-iam-oidc-provider", "authenticationMode")), ("existing", ("pod-identity-agent",))]
)
def test_what_a_cluster_that_exists_must_have_is_said_before(name: str, expected: tuple[str, ...]) -> None:
    before = {file.path: file.edit for file in files(name)}["terraform/access.tf"]
    assert all(text in before for text in expected)
    assert not {file.path: file.edit for file in files(f"new-{name}" if name == "self-managed" else "managed")}["terraform/access.tf"]


def test_the_api_server_is_open_only_to_addresses_that_are_named(planned: Callable[[str], Values]) -> None:
    closed, opened = ({**planned(name)["aws_eks_cluster.this"]["vpc_config"][0]} for name in ("managed", "new-self-managed"))
    assert (closed["endpoint_public_access"], closed.get("public_access_cidrs")) == (False, None)
    assert (opened["endpoint_public_access"], opened["public_access_cidrs"]) == (True, ["203.0.113.0/24"])


def test_a_new_cluster_enforces_network_policies(planned: Callable[[str], Values]) -> None:
    addons = each(planned("managed"), "aws_eks_addon.nodes")
    assert json.loads(addons["vpc-cni"]["configuration_values"]) == {"enableNetworkPolicy": "true"}
    assert not addons["kube-proxy"].get("configuration_values")


@pytest.mark.parametrize("name", TEXTS)
def test_rights_are_those_that_generate_iam_prints(planned: Callable[[str], Values], name: str) -> None:
    found = json.loads(planned(name)["aws_iam_role_policy.gpuscaler"]["policy"])
    assert found == policy(described(name).cluster.name, queue="aws_sqs_queue.arn", node_role="aws_iam_role.arn")
    roles = {
        address: json.dumps(values) for address, values in planned(name).items() if address.startswith("aws_iam_role_policy_attachment")
    }
    assert not [address for address, text in roles.items() if "utoscal" in text or "AutoScaling" in text]


def test_only_the_service_account_may_take_the_role(planned: Callable[[str], Values]) -> None:
    trust = json.loads(planned("managed")["aws_iam_role.gpuscaler"]["assume_role_policy"])["Statement"]
    condition = {
        "aws:RequestTag/eks-cluster-name": described("managed").cluster.name,
        "aws:RequestTag/kubernetes-namespace": "gpuscaler",
        "aws:RequestTag/kubernetes-service-account": "gpuscaler-controller",
    }
    assert trust == [
        {
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
            "Condition": {"StringEquals": condition},
        }
    ]
    for roles in (each(planned(name), "aws_iam_role.addons") for name in TEXTS if described(name).cluster.create):
        accounts = {
            name: json.loads(role["assume_role_policy"])["Statement"][0]["Condition"]["StringEquals"] for name, role in roles.items()
        }
        assert {name: equals["aws:RequestTag/kubernetes-service-account"] for name, equals in accounts.items()} == {
            "vpc-cni": "aws-node",
            "aws-ebs-csi-driver": "ebs-csi-controller-sa",
        }
    association = planned("managed")["aws_eks_pod_identity_association.gpuscaler"]
    assert (association["namespace"], association["service_account"]) == ("gpuscaler", "gpuscaler-controller")
    (statement,) = json.loads(planned("self-managed")["aws_iam_role.gpuscaler"]["assume_role_policy"])["Statement"]
    issuer = "aws_eks_cluster.identity.oidc.issuer"
    assert statement["Condition"] == {
        "StringEquals": {f"{issuer}:sub": "system:serviceaccount:scaling:gpuscaler-controller", f"{issuer}:aud": "sts.amazonaws.com"}
    }


def test_rules_fill_the_queue(planned: Callable[[str], Values]) -> None:
    values = planned("managed")
    rules = each(values, "aws_cloudwatch_event_rule.notices")
    assert {key: json.loads(rule["event_pattern"]) for key, rule in rules.items()} == {rule.id: rule.pattern for rule in RULES}
    targets = each(values, "aws_cloudwatch_event_target.notices")
    assert {key: (target["rule"], target["arn"]) for key, target in targets.items()} == {
        key: (rule["name"], "aws_sqs_queue.arn") for key, rule in rules.items()
    }
    allow = json.loads(values["aws_sqs_queue_policy.notices"]["policy"])["Statement"][0]
    assert allow["Condition"] == {"ArnEquals": {"aws:SourceArn": ["aws_cloudwatch_event_rule.arn"] * len(RULES)}}


def test_images_fit_the_processor_and_the_gpus(planned: Callable[[str], Values]) -> None:
    text = next(file.text(explain=False) for file in files("self-managed") if file.path.endswith("groups.tf"))
    images = {name: machine["image"] for name, machine in hcl2.loads(text)["locals"][0]["machines"].items() if isinstance(machine, dict)}
    assert images == {
        "train-g5-xlarge": '"amazon-linux-2023/x86_64/nvidia"',
        "train-g5g-xlarge": '"amazon-linux-2023/arm64/nvidia"',
        "amd": '"amazon-linux-2023/x86_64/standard"',
    }
    general = each(planned("new-self-managed"), "aws_eks_node_group.general")
    assert {values["ami_type"]: values["instance_types"] for values in general.values()} == {
        "AL2023_ARM_64_STANDARD": ["m7g.large"],
        "AL2023_x86_64_STANDARD": ["c5.xlarge"],
    }


def test_a_new_cluster_needs_subnets_in_two_zones() -> None:
    text = NEW_SELF_MANAGED.replace(", zones: [eu-west-1c]", "")
    variables = next(file.text(explain=False) for file in terraform_files(read_description(text)) if file.path.endswith("variables.tf"))
    assert 'setsubtract(["eu-west-1a", "eu-west-1b"], keys(var.subnet_ids))' in variables


@needs_terraform
def test_terraform_refuses_what_the_provider_does_not_know(tmp_path: Path) -> None:
    folder = written(tmp_path, files("managed"))
    text = (folder / "nodes.tf").read_text()
    (folder / "nodes.tf").write_text(text.replace("capacity_type", "market"))
    with pytest.raises(TerraformError, match='An argument named "market" is not expected here'):
        validate(folder, TABLE)


def test_other_clouds_and_tools_get_no_files() -> None:
    assert not list(terraform_files(read_description((FOLDER / "s2-azure.yaml").read_text())))
    assert not list(terraform_files(read_description((FOLDER / "s1-eksctl.yaml").read_text())))
