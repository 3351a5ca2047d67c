"""The script: calls as gpuscaler makes them, in the order in which they build on each other. Calls that cost money come last."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.embedded.aws.contract.sides import TAG, Side

#: Types that are described in addition to the launched one.
GPU_TYPES = ["g5.xlarge", "p5.48xlarge"]
#: Seconds that a launch and an end may take.
LAUNCH_SECONDS, END_SECONDS = 300.0, 600.0


class Step(NamedTuple):
    """One or a few calls, and the parts of their answers that are compared."""

    name: str
    play: Callable[[Side], Any]


def tags(side: Side, kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": TAG, "Value": side.run}]}]


def group(side: Side) -> dict[str, Any]:
    """The group of the run, as it is described now."""
    groups = side.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[side.run])["AutoScalingGroups"]
    return dict(groups[0]) if groups else {}


# Descriptions


def identity(side: Side) -> Any:
    return side.client("sts").get_caller_identity()["Account"]


def types(side: Side) -> Any:
    instance_types = side.client("ec2").describe_instance_types(InstanceTypes=[side.kind, *GPU_TYPES])["InstanceTypes"]
    return {instance_type["InstanceType"]: _type(instance_type) for instance_type in instance_types}


def _type(instance_type: dict[str, Any]) -> dict[str, Any]:
    gpus = [(gpu["Name"], gpu["Manufacturer"], gpu["Count"], gpu["MemoryInfo"]) for gpu in instance_type.get("GpuInfo", {}).get("Gpus", ())]
    return {
        "VCpuInfo": instance_type["VCpuInfo"]["DefaultVCpus"],
        "MemoryInfo": instance_type["MemoryInfo"],
        "GpuInfo": gpus,
        "SupportedArchitectures": instance_type["ProcessorInfo"]["SupportedArchitectures"],
        "SupportedUsageClasses": sorted(instance_type["SupportedUsageClasses"]),
        "EfaSupported": instance_type["NetworkInfo"]["EfaSupported"],
        "EfaInfo": instance_type["NetworkInfo"].get("EfaInfo"),
    }


def offered(side: Side) -> Any:
    filters = [{"Name": "instance-type", "Values": [side.kind]}]
    answer = side.client("ec2").describe_instance_type_offerings(LocationType="region", Filters=filters)
    return answer["InstanceTypeOfferings"]


def unknown_type(side: Side) -> Any:
    return side.client("ec2").describe_instance_types(InstanceTypes=["p99.huge"])


# Launch templates


def _template(side: Side, **more: Any) -> Any:
    data = {"ImageId": side.image, "InstanceType": side.kind, "TagSpecifications": tags(side, "instance")}
    return side.client("ec2").create_launch_template(
        LaunchTemplateName=side.run, LaunchTemplateData=data, TagSpecifications=tags(side, "launch-template"), **more
    )


def dry_template(side: Side) -> Any:
    return _template(side, DryRun=True)


def template(side: Side) -> Any:
    side.later(f"launch template {side.run}", lambda: side.client("ec2").delete_launch_template(LaunchTemplateName=side.run))
    created = _template(side)["LaunchTemplate"]
    # The creator is not part of the contract.
    created.pop("CreatedBy", None)
    return created


def versions(side: Side) -> Any:
    ec2 = side.client("ec2")
    changed = {"TagSpecifications": tags(side, "instance"), "EbsOptimized": True}
    ec2.create_launch_template_version(LaunchTemplateName=side.run, SourceVersion="1", LaunchTemplateData=changed)
    answer = ec2.describe_launch_template_versions(LaunchTemplateName=side.run, Versions=["$Latest", "$Default"])
    kept = ("VersionNumber", "DefaultVersion", "LaunchTemplateData")
    return [{key: version[key] for key in kept} for version in answer["LaunchTemplateVersions"]]


def unknown_template(side: Side) -> Any:
    return side.client("ec2").describe_launch_template_versions(LaunchTemplateName=f"{side.run}-none", Versions=["$Latest"])


# Groups


def create(side: Side, **more: Any) -> Any:
    asked = {
        "AutoScalingGroupName": side.run,
        "MinSize": 0,
        "MaxSize": 2,
        "DesiredCapacity": 0,
        "VPCZoneIdentifier": side.subnet,
        "LaunchTemplate": {"LaunchTemplateName": side.run, "Version": "$Latest"},
        "NewInstancesProtectedFromScaleIn": True,
        "Tags": [{"Key": TAG, "Value": side.run, "PropagateAtLaunch": True}],
    }
    asked |= more
    scaling, name = side.client("autoscaling"), asked["AutoScalingGroupName"]
    side.later(f"group {name}", lambda: scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True))
    return scaling.create_auto_scaling_group(**asked)


def described(side: Side) -> Any:
    return {key: value for key, value in group(side).items() if key != "ServiceLinkedRoleARN"}


def by_tag(side: Side) -> Any:
    scaling = side.client("autoscaling")
    filters = [{"Name": f"tag:{TAG}", "Values": [side.run]}]
    groups = scaling.describe_auto_scaling_groups(Filters=filters)["AutoScalingGroups"]
    key = [{"Name": "auto-scaling-group", "Values": [side.run]}]
    return [[group["AutoScalingGroupName"] for group in groups], scaling.describe_tags(Filters=key)["Tags"]]


def bad_sizes(side: Side) -> Any:
    return create(side, AutoScalingGroupName=f"{side.run}-bad", MinSize=3)


def above_maximum(side: Side) -> Any:
    return side.client("autoscaling").set_desired_capacity(AutoScalingGroupName=side.run, DesiredCapacity=3)


def suspended(side: Side) -> Any:
    scaling = side.client("autoscaling")
    scaling.suspend_processes(AutoScalingGroupName=side.run, ScalingProcesses=["AZRebalance"])
    names = [process["ProcessName"] for process in group(side)["SuspendedProcesses"]]
    scaling.resume_processes(AutoScalingGroupName=side.run, ScalingProcesses=["AZRebalance"])
    return [names, group(side)["SuspendedProcesses"]]


def lifecycle_hooks(side: Side) -> Any:
    scaling = side.client("autoscaling")
    named = {"AutoScalingGroupName": side.run, "LifecycleHookName": "drain"}
    scaling.put_lifecycle_hook(**named, LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING", HeartbeatTimeout=120)
    hooks = scaling.describe_lifecycle_hooks(AutoScalingGroupName=side.run)["LifecycleHooks"]
    scaling.delete_lifecycle_hook(**named)
    return [hooks, scaling.describe_lifecycle_hooks(AutoScalingGroupName=side.run)["LifecycleHooks"]]


def no_warm_pool(side: Side) -> Any:
    return side.client("autoscaling").describe_warm_pool(AutoScalingGroupName=side.run)


def unknown_instance(side: Side) -> Any:
    return side.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId="i-0123456789abcdef0", ShouldDecrementDesiredCapacity=True
    )


def unknown_protection(side: Side) -> Any:
    return side.client("autoscaling").set_instance_protection(
        AutoScalingGroupName=side.run, InstanceIds=["i-0123456789abcdef0"], ProtectedFromScaleIn=True
    )


def unknown_action(side: Side) -> Any:
    return side.client("autoscaling").complete_lifecycle_action(
        AutoScalingGroupName=side.run, LifecycleHookName="drain", InstanceId="i-0123456789abcdef0", LifecycleActionResult="CONTINUE"
    )


def unknown_group(side: Side) -> Any:
    return side.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=f"{side.run}-none")


def too_many(side: Side) -> Any:
    return side.client("autoscaling").launch_instances(
        AutoScalingGroupName=side.run, RequestedCapacity=3, ClientToken=f"{side.run}-too-many", RetryStrategy="none"
    )


# Queues


def queue(side: Side) -> Any:
    sqs = side.client("sqs")
    url = sqs.create_queue(QueueName=side.run, Attributes={"VisibilityTimeout": "60"}, tags={TAG: side.run})["QueueUrl"]
    side.later(f"queue {side.run}", lambda: sqs.delete_queue(QueueUrl=url))
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", "VisibilityTimeout"])["Attributes"]
    return [url.rpartition("/")[2], attributes]


def messages(side: Side) -> Any:
    sqs = side.client("sqs")
    url = sqs.get_queue_url(QueueName=side.run)["QueueUrl"]
    entries = [{"Id": "good", "MessageBody": '{"a": 1}'}, {"Id": "late", "MessageBody": "late", "DelaySeconds": 901}]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=10)["Messages"]
    receipts = [{"Id": "one", "ReceiptHandle": got[0]["ReceiptHandle"]}, {"Id": "two", "ReceiptHandle": "made up"}]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=receipts)
    return {
        "sent": [(entry["Id"], entry["MD5OfMessageBody"]) for entry in sent["Successful"]],
        "not sent": sent.get("Failed", []),
        "received": [(message["Body"], message["MD5OfBody"]) for message in got],
        "deleted": deleted["Successful"],
        "not deleted": [(entry["Id"], entry["SenderFault"], entry["Code"]) for entry in deleted["Failed"]],
    }


def unknown_queue(side: Side) -> Any:
    return side.client("sqs").get_queue_url(QueueName=f"{side.run}-none")


# Calls that cost money


def launched(side: Side) -> Any:
    """Launch one machine by LaunchInstances: twice with one token, and again with that token for another request."""
    asked: dict[str, Any] = {"AutoScalingGroupName": side.run, "RequestedCapacity": 1, "ClientToken": side.run, "RetryStrategy": "none"}
    scaling = side.client("autoscaling")
    first = scaling.launch_instances(**asked)
    again = scaling.launch_instances(**asked)
    for answer in (first, again):
        answer.pop("ResponseMetadata", None)
    return {"answer": first, "the same again": first == again, "desired": group(side)["DesiredCapacity"]}


def other_use_of_a_token(side: Side) -> Any:
    return side.client("autoscaling").launch_instances(
        AutoScalingGroupName=side.run, RequestedCapacity=2, ClientToken=side.run, RetryStrategy="none"
    )


def raised(side: Side) -> Any:
    """Launch two machines by desired capacity: the group then, its activities, and its machines in EC2."""
    side.client("autoscaling").set_desired_capacity(AutoScalingGroupName=side.run, DesiredCapacity=2, HonorCooldown=False)
    arrived = side.until(lambda: [instance["LifecycleState"] for instance in group(side)["Instances"]] == ["InService"] * 2, LAUNCH_SECONDS)
    activities = side.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=side.run)["Activities"]
    idents = [instance["InstanceId"] for instance in group(side)["Instances"]]
    reservations = side.client("ec2").describe_instances(Filters=[{"Name": "instance-id", "Values": idents}])["Reservations"]
    instances = [instance for some in reservations for instance in some["Instances"]]
    return {"came": arrived, "group": described(side), "activities": activities, "machines": sorted(map(_machine, instances), key=str)}


def _machine(instance: dict[str, Any]) -> dict[str, Any]:
    kept = ("InstanceType", "State", "InstanceLifecycle", "SubnetId")
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"] if not tag["Key"].startswith("aws:ec2")}
    return {**{key: instance.get(key) for key in kept}, "Tags": tags}


def lowered(side: Side) -> Any:
    """Lower the desired capacity: no machine ends, since all are protected."""
    side.client("autoscaling").set_desired_capacity(AutoScalingGroupName=side.run, DesiredCapacity=1, HonorCooldown=False)
    side.wait(60.0)
    return [(instance["LifecycleState"], instance["ProtectedFromScaleIn"]) for instance in group(side)["Instances"]]


def ended(side: Side) -> Any:
    """End machines by id: the first lowers the desired capacity, the second does not; Launch is suspended, so nothing replaces it."""
    scaling = side.client("autoscaling")
    scaling.suspend_processes(AutoScalingGroupName=side.run, ScalingProcesses=["Launch"])
    idents = [instance["InstanceId"] for instance in group(side)["Instances"]]
    answers = [
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=ident, ShouldDecrementDesiredCapacity=number == 0)["Activity"]
        for number, ident in enumerate(idents)
    ]
    went = side.until(lambda: not group(side)["Instances"], END_SECONDS)
    return {"answers": answers, "gone": went, "desired": group(side)["DesiredCapacity"]}


def on_spot(side: Side) -> Any:
    """Launch one spot machine by LaunchInstances in a group of its own: how each service spells its market. It is ended again."""
    name = f"{side.run}-spot"
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": side.run, "Version": "$Latest"}}
    distribution = {"OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"}
    policy = {"LaunchTemplate": template, "InstancesDistribution": distribution}
    scaling = side.client("autoscaling")
    side.later(f"group {name}", lambda: scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True))
    tags = [{"Key": TAG, "Value": side.run, "PropagateAtLaunch": True}]
    sizes = {"MinSize": 0, "MaxSize": 1, "DesiredCapacity": 0, "VPCZoneIdentifier": side.subnet}
    scaling.create_auto_scaling_group(AutoScalingGroupName=name, **sizes, MixedInstancesPolicy=policy, Tags=tags)
    answer = scaling.launch_instances(AutoScalingGroupName=name, RequestedCapacity=1, ClientToken=name, RetryStrategy="none")
    idents = [ident for instance in answer["Instances"] for ident in instance["InstanceIds"]]
    reservations = side.client("ec2").describe_instances(Filters=[{"Name": "instance-id", "Values": idents}])["Reservations"]
    for ident in idents:
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=ident, ShouldDecrementDesiredCapacity=True)
    return {
        "markets": [instance["MarketType"] for instance in answer["Instances"]],
        "refused": [(error["MarketType"], error["ErrorCode"]) for error in answer.get("Errors", ())],
        "lifecycles": [instance.get("InstanceLifecycle") for some in reservations for instance in some["Instances"]],
    }


FREE = (
    Step("the caller", identity),
    Step("instance types", types),
    Step("where a type is offered", offered),
    Step("an unknown type", unknown_type),
    Step("a launch template, dry run", dry_template),
    Step("a launch template", template),
    Step("its versions", versions),
    Step("an unknown template", unknown_template),
    Step("a group", create),
    Step("the group", described),
    Step("the group by its tag", by_tag),
    Step("a group with an existing name", create),
    Step("a group with a minimum above its maximum", bad_sizes),
    Step("more than the maximum", above_maximum),
    Step("a suspended process", suspended),
    Step("a lifecycle hook", lifecycle_hooks),
    Step("an unknown warm pool", no_warm_pool),
    Step("termination of an unknown machine", unknown_instance),
    Step("protection of an unknown machine", unknown_protection),
    Step("an unknown lifecycle action", unknown_action),
    Step("activities of an unknown group", unknown_group),
    Step("LaunchInstances beyond the maximum", too_many),
    Step("a queue", queue),
    Step("messages", messages),
    Step("an unknown queue", unknown_queue),
)
PAID = (
    Step("LaunchInstances", launched),
    Step("a token reused for another call", other_use_of_a_token),
    Step("machines by desired capacity", raised),
    Step("a lower desired capacity", lowered),
    Step("machines terminated by id", ended),
    Step("LaunchInstances on spot", on_spot),
)
#: The maximum number of machines at a time, and their maximum hours, if everything takes as long as allowed.
MOST_MACHINES, MOST_HOURS = 2, 0.5
