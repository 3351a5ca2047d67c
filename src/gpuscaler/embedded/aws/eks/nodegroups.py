"""EKS's calls about managed node groups."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import groups
from gpuscaler.embedded.aws.eks import managed
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.writing import to_datetime


def _nodegroup(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    return {"nodegroup": _find_nodegroup(region, params)}


def _create_nodegroup(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Create a node group's description; its Auto Scaling group is created separately, as EKS does it, and named in ``tags``."""
    cluster, name = params["clusterName"], params["nodegroupName"]
    if (cluster, name) in region.nodegroups:
        raise AwsError("ResourceInUseException", f"NodeGroup already exists with name {name} and cluster name {cluster}", status=409)
    kept = (
        "clusterName",
        "nodegroupName",
        "scalingConfig",
        "diskSize",
        "subnets",
        "instanceTypes",
        "amiType",
        "nodeRole",
        "labels",
        "taints",
        "updateConfig",
        "nodeRepairConfig",
    )
    region.nodegroups[cluster, name] = {
        **{key: params[key] for key in kept if key in params},
        "nodegroupArn": f"arn:aws:eks:{region.name}:{region.account}:nodegroup/{cluster}/{name}/{region.uuid()}",
        "createdAt": to_datetime(region.now),
        "status": "ACTIVE",
        "capacityType": params.get("capacityType", "ON_DEMAND"),
        "tags": params.get("tags", {}),
        "resources": {"autoScalingGroups": [{"name": f"eks-{name}"}]},
        "health": {"issues": []},
        **({"launchTemplate": params["launchTemplate"]} if "launchTemplate" in params else {}),
    }
    return {"nodegroup": region.nodegroups[cluster, name]}


def _find_nodegroup(region: Region, params: Mapping[str, Any]) -> dict[str, Any]:
    cluster, name = params["clusterName"], params["nodegroupName"]
    if (cluster, name) not in region.nodegroups:
        raise AwsError("ResourceNotFoundException", f"No node group found for name: {name}.", status=404)
    return region.nodegroups[cluster, name]


def _update_version(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Replace all nodes, by the current version of the group's launch template or by a given one."""
    nodegroup = _find_nodegroup(region, params)
    group = _scaling_group(region, params)
    if template := params.get("launchTemplate"):
        wanted = {
            {"name": "LaunchTemplateName", "id": "LaunchTemplateId", "version": "Version"}[key]: value for key, value in template.items()
        }
        groups.update(region, {"AutoScalingGroupName": group.name, "LaunchTemplate": wanted})
    return {"update": _update_reply(managed.begin_update(region, group, nodegroup, forced=params.get("force", False)))}


def _update_config(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Change sizes, labels and taints; those of existing nodes change a moment later."""
    nodegroup, group = _find_nodegroup(region, params), _scaling_group(region, params)
    if sizes := params.get("scalingConfig"):
        names = {"minSize": "MinSize", "maxSize": "MaxSize", "desiredSize": "DesiredCapacity"}
        groups.update(region, {"AutoScalingGroupName": group.name, **{names[key]: value for key, value in sizes.items()}})
    for kind, added, removed in (("labels", "addOrUpdateLabels", "removeLabels"), ("taints", "addOrUpdateTaints", "removeTaints")):
        if kind in params:
            nodegroup[kind] = _merge_changes(kind, nodegroup.get(kind), params[kind].get(added), params[kind].get(removed))
    nodegroup |= {key: params[key] for key in ("updateConfig", "nodeRepairConfig") if key in params}
    update = {
        "id": region.uuid(),
        "status": "Successful",
        "type": "ConfigUpdate",
        "createdAt": to_datetime(region.now),
        "params": [],
        "errors": [],
    }
    return {"update": update}


def _merge_changes(kind: str, before: Any, added: Any, removed: Any) -> Any:
    if kind == "labels":
        return {key: value for key, value in {**(before or {}), **(added or {})}.items() if key not in (removed or ())}
    rows = {(taint["key"], taint["effect"]): taint for taint in (*(before or ()), *(added or ()))}
    removed_keys = {(taint["key"], taint["effect"]) for taint in removed or ()}
    return [taint for key, taint in rows.items() if key not in removed_keys]


def _scaling_group(region: Region, params: Mapping[str, Any]) -> Group:
    group = managed.find_scaling_group(region, params["clusterName"], params["nodegroupName"])
    if group is None:
        raise AwsError("InvalidRequestException", f"The Auto Scaling group of node group {params['nodegroupName']} was not found.")
    return group


def _describe_update(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    for group in region.groups.values():
        for update in group.updates:
            if update.id == params["updateId"]:
                return {"update": _update_reply(update)}
    raise AwsError("ResourceNotFoundException", f"No update found for ID: {params['updateId']}", status=404)


def _update_reply(update: managed.Update) -> dict[str, Any]:
    errors = [{"errorCode": "PodEvictionFailure", "errorMessage": update.problem}] if update.problem else []
    return {
        "id": update.id,
        "status": update.status,
        "type": "VersionUpdate",
        "createdAt": to_datetime(update.started_at),
        "params": [],
        "errors": errors,
    }


OPERATIONS: Final = {
    "CreateNodegroup": _create_nodegroup,
    "DescribeNodegroup": _nodegroup,
    "DescribeUpdate": _describe_update,
    "UpdateNodegroupConfig": _update_config,
    "UpdateNodegroupVersion": _update_version,
}
