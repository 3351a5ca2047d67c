"""Notices of EC2 and Auto Scaling, as EventBridge sends them to the queues of a rule."""

import json
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import TERMINATING, Group, Hook, Instance
from gpuscaler.embedded.aws.wire.writing import to_datetime


def publish(region: Region, source: str, kind: str, detail: dict[str, Any], resources: list[str]) -> None:
    """Send an event to every queue that receives events."""
    event = {
        "version": "0",
        "id": region.uuid(),
        "detail-type": kind,
        "source": source,
        "account": region.account,
        "time": to_datetime(region.now).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": region.name,
        "resources": resources,
        "detail": detail,
    }
    body = json.dumps(event)
    for queue in region.queues.values():
        if queue.receives_notices:
            queue.send(body, ident=region.uuid(), now=region.now)


def interruption(region: Region, instance: Instance) -> None:
    """The two-minute warning."""
    detail = {"instance-id": instance.id, "instance-action": "terminate"}
    publish(region, "aws.ec2", "EC2 Spot Instance Interruption Warning", detail, _zonal(instance))


def rebalance(region: Region, instance: Instance) -> None:
    """A spot instance has an elevated risk of interruption."""
    publish(region, "aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": instance.id}, _zonal(instance))


def state_change(region: Region, instance: Instance) -> None:
    """An instance has reached a state."""
    arn = f"arn:aws:ec2:{region.name}:{region.account}:instance/{instance.id}"
    detail = {"instance-id": instance.id, "state": instance.state}
    publish(region, "aws.ec2", "EC2 Instance State-change Notification", detail, [arn])


def scheduled_change(region: Region, instance: Instance, begins: datetime) -> None:
    """AWS will maintain the hardware of the instance."""
    detail = {
        "eventArn": f"arn:aws:health:{region.name}::event/EC2/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED/{region.uuid()}",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "startTime": format_datetime(begins, usegmt=True),
        "affectedEntities": [{"entityValue": instance.id}],
    }
    publish(region, "aws.health", "AWS Health Event", detail, [instance.id])


def lifecycle_action(region: Region, group: Group, instance: Instance, hook: Hook) -> None:
    """An instance waits for the action on a hook."""
    ending = hook.transition == TERMINATING
    detail = {
        "LifecycleActionToken": instance.token,
        "AutoScalingGroupName": group.name,
        "LifecycleHookName": hook.name,
        "EC2InstanceId": instance.id,
        "LifecycleTransition": hook.transition,
        "Origin": "AutoScalingGroup" if ending else "EC2",
        "Destination": "EC2" if ending else "AutoScalingGroup",
    }
    if hook.settings.get("NotificationMetadata"):
        detail["NotificationMetadata"] = hook.settings["NotificationMetadata"]
    kind = f"EC2 Instance-{'terminate' if ending else 'launch'} Lifecycle Action"
    publish(region, "aws.autoscaling", kind, detail, [group.arn])


def _zonal(instance: Instance) -> list[str]:
    return [f"arn:aws:ec2:{instance.machine.offering.zone}:instance/{instance.id}"]
