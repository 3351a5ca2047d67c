"""What `terraform apply` with the provider of AWS makes in a simulated account: Terraform's own program plans, and each resource is made.

Identifiers that AWS gives out are known while Terraform plans, so that references between resources are resolved by Terraform itself.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.generating.applying.aws import EFFECTS, AwsDriver
from tests.generating.terraform.running import plan, written
from tests.generating.terraform.stand_in import Answers, load

from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.resolved import Description

Values = Mapping[str, Any]
#: Plans by the texts of the files: what Terraform plans depends on nothing else here.
_PLANS: dict[str, dict[str, Any]] = {}
#: Effects of taints in the words of Kubernetes, by those of EKS.
_TAINTS = {ours: kubernetes for kubernetes, ours in EFFECTS.items()}
#: What is not looked at in an account here: the control plane, and policies of roles, since this account allows everything.
_ELSEWHERE = {
    "aws_eks_access_entry",
    "aws_eks_cluster",
    "aws_iam_instance_profile",
    "aws_iam_role_policy",
    "aws_iam_role_policy_attachment",
}


def planned(folder: Path, description: Description) -> dict[str, Any]:
    """The resources of the files, by address. Terraform runs in ``folder``, once for the same files."""
    files = [file for file in files_of(description) if file.path.endswith(".tf")]
    key = "".join(file.text(explain=False) for file in files)
    if key not in _PLANS:
        _PLANS[key] = _planned(written(folder, files), description)
    return _PLANS[key]


def _planned(folder: Path, description: Description) -> dict[str, Any]:
    zones = sorted({*description.cluster.zones, *(group.zone for group in description.groups)})
    variables = {"subnet_ids": {zone: subnet_id(zone) for zone in zones}}
    return plan(folder, load("aws"), variables, _answers(description.cluster.region, description.cluster.account, zones), examples=True)


def _answers(region: str, account: str, zones: Iterable[str]) -> Answers:
    """What AWS says of what is there, and of what the files create."""
    where = {subnet_id(zone): zone for zone in zones}

    def answers(kind: str, values: Values) -> Values:
        name = values.get("name")
        match kind:
            case "aws_subnet":
                return {"availability_zone": where[values["id"]]}
            case "aws_partition":
                return {"partition": "aws"}
            case "aws_caller_identity":
                return {"account_id": account}
            case "aws_sqs_queue":
                url = f"https://sqs.{region}.amazonaws.com/{account}/{name}"
                return {"arn": f"arn:aws:sqs:{region}:{account}:{name}", "url": url, "id": url}
            case "aws_cloudwatch_event_rule":
                return {"arn": f"arn:aws:events:{region}:{account}:rule/{name}", "id": name}
            case "aws_iam_role":
                return {"arn": f"arn:aws:iam::{account}:role/{name}", "id": name}
            case "aws_launch_template":
                return {"id": f"lt-of-{name}"}
            case "aws_eks_node_group":
                groups = [{"name": f"eks-{values['node_group_name']}"}]
                return {"resources": [{"autoscaling_groups": groups, "remote_access_security_group_id": ""}]}
        return {}

    return answers


def apply(driver: AwsDriver, resources: Values) -> None:
    """Make the planned resources in the driver's account."""
    by_kind: dict[str, list[Values]] = {}
    for address, values in resources.items():
        by_kind.setdefault(address.split(".")[0], []).append(values)
    driver.addons |= {addon["addon_name"] for addon in by_kind.pop("aws_eks_addon", ())}
    for kind in _ELSEWHERE:
        by_kind.pop(kind, None)
    _apply_notices(driver, by_kind)
    _apply_rights(driver, by_kind)
    _apply_groups(driver, by_kind)
    # What has a resource and is made nowhere here.
    assert by_kind == {}


def _apply_notices(driver: AwsDriver, resources: dict[str, list[Values]]) -> None:
    for queue in resources.pop("aws_sqs_queue"):
        driver.queue(queue["name"], seconds=queue["message_retention_seconds"], encrypted=queue["sqs_managed_sse_enabled"])
    for policy in resources.pop("aws_sqs_queue_policy"):
        driver.queue_policy(policy["queue_url"].rpartition("/")[2], policy["policy"])
    for rule in resources.pop("aws_cloudwatch_event_rule"):
        pattern = json.loads(rule["event_pattern"])
        # ENABLED is what the provider writes without another state.
        driver.rules[rule["name"]] = {"Name": rule["name"], "State": rule["state"] or "ENABLED", "EventPattern": pattern, "Targets": []}
    for target in resources.pop("aws_cloudwatch_event_target"):
        driver.rules[target["rule"]]["Targets"].append({"Id": target["target_id"], "Arn": target["arn"]})
    driver.deliver_events()


def _apply_rights(driver: AwsDriver, resources: dict[str, list[Values]]) -> None:
    for role in resources.pop("aws_iam_role"):
        driver.roles[role["name"]] = {"AssumeRolePolicyDocument": json.loads(role["assume_role_policy"])}
    for association in resources.pop("aws_eks_pod_identity_association", ()):
        assert association["cluster_name"] == driver.cluster
        driver.associate(association["namespace"], association["service_account"], association["role_arn"])


def _apply_groups(driver: AwsDriver, resources: dict[str, list[Values]]) -> None:
    templates = {values["id"]: values for values in resources.pop("aws_launch_template")}
    for group in resources.pop("aws_eks_node_group", ()):
        _apply_managed(driver, group, templates)
    tags = [(values["autoscaling_group_name"], tag) for values in resources.pop("aws_autoscaling_group_tag", ()) for tag in values["tag"]]
    for (name, at_launch), found in groupby(sorted(tags, key=_of), _of):
        driver.add_tags(name, {tag["key"]: tag["value"] for _, tag in found}, at_launch=at_launch)
    for group in resources.pop("aws_autoscaling_group", ()):
        _apply_own(driver, group, templates)
    for hook in resources.pop("aws_autoscaling_lifecycle_hook", ()):
        driver.stage.client("autoscaling").put_lifecycle_hook(
            LifecycleHookName=hook["name"],
            AutoScalingGroupName=hook["autoscaling_group_name"],
            LifecycleTransition=hook["lifecycle_transition"],
            HeartbeatTimeout=hook["heartbeat_timeout"],
            DefaultResult=hook["default_result"],
        )


def _of(tag: tuple[str, Values]) -> tuple[str, bool]:
    return tag[0], tag[1]["propagate_at_launch"]


def _apply_managed(driver: AwsDriver, group: Values, templates: Values) -> None:
    (launch,), (sizes,) = group["launch_template"], group["scaling_config"]
    template = templates[launch["id"]]
    assert launch["version"] == str(template["latest_version"])
    assert sizes["desired_size"] == sizes["min_size"]
    driver.managed_group(
        group["node_group_name"],
        zones=_zones(driver, group["subnet_ids"]),
        types=group["instance_types"],
        spot=group["capacity_type"] == "SPOT",
        sizes=(sizes["min_size"], sizes["max_size"]),
        labels=group["labels"] or {},
        taints=[{**taint, "effect": _TAINTS[taint["effect"]]} for taint in group["taint"]],
        template=_template(template),
        tags=group["tags"] or {},
    )


def _apply_own(driver: AwsDriver, group: Values, templates: Values) -> None:
    (mixed,) = group["mixed_instances_policy"]
    (launch,), (distribution,) = mixed["launch_template"], mixed["instances_distribution"]
    (specification,) = launch["launch_template_specification"]
    template = templates[specification["launch_template_id"]]
    assert specification["version"] == str(template["latest_version"])
    used = {**driver.template(template["name"], **_template(template)), "Version": "1"}
    driver.scaling_group(
        group["name"],
        zones=_zones(driver, group["vpc_zone_identifier"]),
        tags={tag["key"]: tag["value"] for tag in group["tag"]},
        of_group_only=[tag["key"] for tag in group["tag"] if not tag["propagate_at_launch"]],
        suspended=group["suspended_processes"],
        MinSize=group["min_size"],
        MaxSize=group["max_size"],
        DesiredCapacity=group["min_size"] if group["desired_capacity"] is None else group["desired_capacity"],
        NewInstancesProtectedFromScaleIn=group["protect_from_scale_in"],
        CapacityRebalance=group["capacity_rebalance"],
        MixedInstancesPolicy={
            "LaunchTemplate": {"LaunchTemplateSpecification": used, "Overrides": [_asked(one) for one in launch["override"]]},
            "InstancesDistribution": _asked(distribution),
        },
    )


def _zones(driver: AwsDriver, subnets: list[str]) -> Iterator[str]:
    known = {subnet_id(f"{driver.stage.region.name}{letter}"): f"{driver.stage.region.name}{letter}" for letter in "abcdef"}
    return (known[subnet] for subnet in subnets)


def _template(values: Values) -> dict[str, Any]:
    """The data of a launch template in EC2's words."""
    found: dict[str, Any] = {
        "BlockDeviceMappings": [
            {"DeviceName": mapping["device_name"], "Ebs": _asked(disk)}
            for mapping in values["block_device_mappings"]
            for disk in mapping["ebs"]
        ],
        "TagSpecifications": [
            {"ResourceType": entry["resource_type"], "Tags": [{"Key": key, "Value": value} for key, value in entry["tags"].items()]}
            for entry in values["tag_specifications"]
        ],
        "SecurityGroupIds": values["vpc_security_group_ids"],
        "ImageId": values["image_id"],
        "UserData": values["user_data"],
        "InstanceType": values["instance_type"],
    }
    for metadata in values["metadata_options"]:
        found["MetadataOptions"] = _asked(metadata)
    for profile in values["iam_instance_profile"]:
        found["IamInstanceProfile"] = _asked(profile)
    return {key: value for key, value in found.items() if value}


def _asked(block: Values) -> dict[str, Any]:
    """The arguments of a block that have a value, in AWS's words."""
    booleans = {"true": True, "false": False}
    return {
        "".join(part.capitalize() for part in name.split("_")): booleans.get(value, value) if isinstance(value, str) else value
        for name, value in block.items()
        if value is not None and value != []
    }
