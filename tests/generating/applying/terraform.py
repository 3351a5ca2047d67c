"""Makes in a simulated AWS account what a plan of Terraform asks the provider for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.generating.applying.aws import EFFECTS, AwsDriver
from tests.generating.terraform.running import plan, written
from tests.generating.terraform.stand_in import load

from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.generating.aws.general import control_plane_zones
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.resolved import Description

Plan = Mapping[str, Mapping[str, Any]]
_EFFECTS: Final = {theirs: ours for ours, theirs in EFFECTS.items()}


def plan_of(folder: Path, description: Description) -> Plan:
    """Run Terraform on the files; what AWS would answer are the names of what the files create."""
    zones = {subnet_id(zone): zone for zone in control_plane_zones(description)}
    region, account = description.cluster.region, description.cluster.account

    def answers(kind: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        name = given.get("name") or given.get("node_group_name")
        match kind:
            case "aws_subnet":
                return {"availability_zone": zones[given["id"]]}
            case "aws_partition":
                return {"partition": "aws"}
            case "aws_caller_identity":
                return {"account_id": account}
            case "aws_sqs_queue":
                return {"arn": f"arn:aws:sqs:{region}:{account}:{name}", "url": name}
            case "aws_cloudwatch_event_rule":
                return {"arn": f"arn:aws:events:{region}:{account}:rule/{name}"}
            case "aws_iam_role":
                return {"arn": f"arn:aws:iam::{account}:role/{name}"}
            case "aws_launch_template":
                return {"id": name}
            case "aws_eks_node_group":
                return {"resources": [{"autoscaling_groups": [{"name": f"eks-{name}"}], "remote_access_security_group_id": ""}]}
        return {}

    variables = {"subnet_ids": {zone: subnet for subnet, zone in zones.items()}}
    return plan(written(folder, files_of(description)), load("aws"), variables, answers, examples=True)


def apply(driver: AwsDriver, planned: Plan, description: Description) -> None:
    """Do what ``terraform apply`` asks AWS for, as far as the account has it."""
    templates = {values["name"]: _template(values) for values in _of(planned, "aws_launch_template")}
    zones = {subnet_id(zone): zone for zone in control_plane_zones(description)}
    for values in _of(planned, "aws_eks_node_group"):
        (sizes,), (launch,) = values["scaling_config"], values["launch_template"]
        driver.managed_group(
            values["node_group_name"],
            zones=[zones[subnet] for subnet in values["subnet_ids"]],
            types=values["instance_types"],
            spot=values["capacity_type"] == "SPOT",
            sizes=(sizes["min_size"], sizes["max_size"]),
            labels=values["labels"] or {},
            taints=[{**taint, "effect": _EFFECTS[taint["effect"]]} for taint in values["taint"]],
            template=templates[launch["id"]],
            tags={},
        )
    for values in _of(planned, "aws_autoscaling_group_tag"):
        (tag,) = values["tag"]
        driver.add_tags(values["autoscaling_group_name"], {tag["key"]: tag["value"]})
    for values in _of(planned, "aws_autoscaling_group"):
        _group(driver, values, templates, zones)
    client = driver.stage.client("autoscaling")
    for values in _of(planned, "aws_autoscaling_lifecycle_hook"):
        client.put_lifecycle_hook(
            AutoScalingGroupName=values["autoscaling_group_name"],
            LifecycleHookName=values["name"],
            LifecycleTransition=values["lifecycle_transition"],
            HeartbeatTimeout=values["heartbeat_timeout"],
            DefaultResult=values["default_result"],
        )
    _queues(driver, planned)
    for values in _of(planned, "aws_iam_role"):
        driver.roles[values["name"]] = {"AssumeRolePolicyDocument": json.loads(values["assume_role_policy"])}


def _of(planned: Plan, kind: str) -> list[Mapping[str, Any]]:
    return [values for address, values in planned.items() if address.startswith((f"{kind}.",))]


def _template(values: Mapping[str, Any]) -> dict[str, Any]:
    (mapping,), (metadata,) = values["block_device_mappings"], values["metadata_options"]
    (disk,) = mapping["ebs"]
    ebs = {
        "VolumeSize": disk["volume_size"],
        "VolumeType": disk["volume_type"],
        "Encrypted": disk["encrypted"] == "true",
        "DeleteOnTermination": disk["delete_on_termination"] == "true",
    }
    return {
        "UserData": values["user_data"],
        "BlockDeviceMappings": [{"DeviceName": mapping["device_name"], "Ebs": ebs}],
        "MetadataOptions": {"HttpTokens": metadata["http_tokens"], "HttpPutResponseHopLimit": metadata["http_put_response_hop_limit"]},
    }


def _group(driver: AwsDriver, values: Mapping[str, Any], templates: Mapping[str, dict[str, Any]], zones: Mapping[str, str]) -> None:
    (policy,) = values["mixed_instances_policy"]
    (shares,), (launch,) = policy["instances_distribution"], policy["launch_template"]
    (specification,) = launch["launch_template_specification"]
    name = specification["launch_template_id"]
    mixed = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": driver.template(name, **templates[name]),
            "Overrides": [{"InstanceType": override["instance_type"]} for override in launch["override"]],
        },
        "InstancesDistribution": {
            "OnDemandBaseCapacity": shares["on_demand_base_capacity"],
            "OnDemandPercentageAboveBaseCapacity": shares["on_demand_percentage_above_base_capacity"],
            "SpotAllocationStrategy": shares["spot_allocation_strategy"],
        },
    }
    driver.scaling_group(
        values["name"],
        zones=[zones[subnet] for subnet in values["vpc_zone_identifier"]],
        tags={tag["key"]: tag["value"] for tag in values["tag"]},
        suspended=values["suspended_processes"],
        MinSize=values["min_size"],
        MaxSize=values["max_size"],
        NewInstancesProtectedFromScaleIn=values["protect_from_scale_in"],
        MixedInstancesPolicy=mixed,
        CapacityRebalance=values["capacity_rebalance"],
    )


def _queues(driver: AwsDriver, planned: Plan) -> None:
    sqs = driver.stage.client("sqs")
    for values in _of(planned, "aws_sqs_queue"):
        attributes = {
            "MessageRetentionPeriod": str(values["message_retention_seconds"]),
            "SqsManagedSseEnabled": str(values["sqs_managed_sse_enabled"]).lower(),
        }
        sqs.create_queue(QueueName=values["name"], Attributes=attributes)
    for values in _of(planned, "aws_cloudwatch_event_rule"):
        driver.rules[values["name"]] = {
            "Name": values["name"],
            "State": "ENABLED",
            "EventPattern": json.loads(values["event_pattern"]),
            "Targets": [
                {"Id": target["target_id"], "Arn": target["arn"]}
                for target in _of(planned, "aws_cloudwatch_event_target")
                if target["rule"] == values["name"]
            ],
        }
    for values in _of(planned, "aws_sqs_queue_policy"):
        url = sqs.get_queue_url(QueueName=values["queue_url"])["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": values["policy"]})
    driver.deliver_events()
