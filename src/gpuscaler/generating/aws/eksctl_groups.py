"""Node groups of a ClusterConfig: GPU groups of one type, market and zone, and general ones."""

import hashlib
from collections.abc import Mapping
from typing import Final

from gpuscaler.generating.aws.general import GeneralGroup
from gpuscaler.generating.aws.nodes import VOLUME_TYPE, group_tags, node_labels, node_taints, taint_tags
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.description.settings import GIB
from gpuscaler.generating.writing.explained import Explained, Tree, because, plain
from gpuscaler.model.offerings import SPOT

_ROLE_NAME: Final = 64


def gpu_group(description: Description, group: NodeGroup) -> dict[str, Tree]:
    """Return a group with the reason of each line."""
    return {
        "name": because(
            "A group has one type, one market and one zone, so that gpuscaler decides what is bought, and AWS does not.", group.name
        ),
        **_machines(description, group),
        "availabilityZones": because(
            "A group over several zones is evened out by AWS, which ends machines with running pods for that. EKS does so even if the "
            "process AZRebalance is suspended.",
            [group.zone],
        ),
        "minSize": because(
            "GPU machines cost money even if they are idle." if not group.min else "These machines are paid for even if they are idle.",
            group.min,
        ),
        "maxSize": because("gpuscaler never buys more than this. Quotas of the account may be lower.", group.max),
        "desiredCapacity": because("From now on, gpuscaler changes this number.", group.min),
        **_image(),
        **_volume(group.disk_gib, "Images with CUDA have 5 to 15 GB each."),
        **_network(description),
        **_role(description, group),
        **({} if description.managed else _self_managed()),
        "labels": because(
            "gpuscaler.io/pool is what gpuscaler calls the group, since AWS gives its Auto Scaling group a name with a random part. With "
            "k8s.amazonaws.com/accelerator, Cluster Autoscaler waits for the GPUs of a new node, should you go back to it.",
            dict(node_labels(group)),
        ),
        "taints": because(
            "gpuscaler.io/arriving keeps pods away until gpuscaler opens the node for those that it was bought for. The others keep away "
            "pods without GPUs. All are here: taints in user data would replace these.",
            [_taint(taint.key, taint.value, taint.effect) for taint in node_taints(group)],
        ),
        **_tags(description, group),
    }


def like_the_first(description: Description, group: NodeGroup) -> Explained:
    """Return a further group. Its lines have the reasons of the first one's, and repeating them would hide what differs."""
    market = "on spot" if group.market == SPOT else "on demand"
    why = f"{group.instance_type.name} {market} in {group.zone}. For the reasons of each line, see the first GPU group."
    return because(why, plain(gpu_group(description, group)))


def general_group(description: Description, group: GeneralGroup) -> dict[str, Tree]:
    """Return a group of machines without GPUs, on demand."""
    settings = description.general
    types = list(group.types)
    why = "These types have machines of one size, so it does not matter which of them AWS chooses."
    if len(types) == 1:
        why = "One size: an autoscaler, if you add one, must know what a new machine of the group will be."
    machines: dict[str, Tree] = {"instanceTypes": because(why, types)}
    if not description.managed:
        machines = (
            {"instanceType": because(why, types[0])} if len(types) == 1 else {"instancesDistribution": because(why, _shares(types, 100))}
        )
        why = "AWS would end machines without draining them, to have as many in each zone."
        machines["asgSuspendProcesses"] = because(why, ["AZRebalance"])
    return {
        "name": because(
            "Machines on demand for everything without GPUs, above all for gpuscaler itself, which cannot run on machines that it removes. "
            "It does not scale this group: it has no GPUs"
            + (", and none of the tags by which groups are found." if not description.managed else ", so gpuscaler leaves it alone."),
            group.name,
        ),
        **machines,
        "availabilityZones": because("If a zone fails, CoreDNS and gpuscaler go on in another one.", list(group.zones)),
        "minSize": because(
            "Two machines at least: while one is replaced, the other runs CoreDNS and gpuscaler." if settings.min > 1 else "As described.",
            settings.min,
        ),
        "maxSize": because("Nothing here grows the group. This is the most that you, or an autoscaler of yours, can set.", settings.max),
        "desiredCapacity": because("The group begins with its minimum.", settings.min),
        **_image(gpus=False),
        **_volume(-(-settings.disk // GIB), "Images for these machines are small."),
        **_network(description),
    }


def _machines(description: Description, group: NodeGroup) -> dict[str, Tree]:
    type_ = group.instance_type.name
    one = "One type: AWS chooses among the types of a group, and could give a pod that needs one GPU a machine with eight."
    if description.managed:
        spot = because("EKS then asks for spot machines only, by the strategy price-capacity-optimized, and sets no maximum price.", True)
        return {"instanceTypes": because(one, [type_]), **({"spot": spot} if group.market == SPOT else {})}
    if group.market != SPOT:
        return {"instanceType": because(one, type_)}
    why = (
        f"{one} No machine is on demand, so that gpuscaler fails over between groups, which AWS would do in a mixed group without telling. "
        "price-capacity-optimized is interrupted less often than lowest-price, eksctl's default. There is no maxPrice: above it, nothing "
        "would be granted."
    )
    return {"instancesDistribution": because(why, _shares([type_], 0))}


def _shares(types: list[str], on_demand: int) -> dict[str, Tree]:
    shares: dict[str, Tree] = {"instanceTypes": types, "onDemandBaseCapacity": 0, "onDemandPercentageAboveBaseCapacity": on_demand}
    return shares if on_demand else {**shares, "spotAllocationStrategy": "price-capacity-optimized"}


def _image(*, gpus: bool = True) -> dict[str, Tree]:
    why = "AWS makes no images of Amazon Linux 2 for EKS any more."
    if gpus:
        why += " For types with GPUs that it knows, eksctl takes the image with NVIDIA's driver and container toolkit."
    return {"amiFamily": because(why, "AmazonLinux2023")}


def _volume(gib: int, images: str) -> dict[str, Tree]:
    encrypted = (
        "The account's default key for EBS is used. If that is a key of your own, Auto Scaling needs a grant for it; without one, "
        "machines end while they start. EC2 deletes the volume with the machine."
    )
    return {
        "volumeSize": because(f"GiB for images and for what containers write. {images}", gib),
        "volumeType": because("gp3 costs less than gp2, and is as fast at any size.", VOLUME_TYPE),
        "volumeEncrypted": because(encrypted, True),
    }


def _network(description: Description) -> dict[str, Tree]:
    private = "Machines have no public addresses, so they cannot be reached from the internet."
    public = "Machines have public addresses. It spares the gateway for private ones."
    return {
        "privateNetworking": because(private if description.cluster.private else public, description.cluster.private),
        "disableIMDSv1": because(
            "Version 1 of the metadata service gives the role's credentials to any program that can be made to send a request.", True
        ),
        "disablePodIMDS": because(
            "Pods cannot take the role of the machine from its metadata service (hop limit 1). Neither gpuscaler nor the add-ons need "
            "that: they have roles of their own.",
            True,
        ),
    }


def _role(description: Description, group: NodeGroup) -> dict[str, Tree]:
    why = (
        "gpuscaler may launch machines only with roles whose names begin like this one (iam:PassRole in the stack). CloudFormation would "
        "make up a name. The role has no rights of an autoscaler: every pod on the machines could use them."
    )
    return {"iam": {"instanceRoleName": because(why, node_role_name(description, group.name))}}


def _self_managed() -> dict[str, Tree]:
    why = "The group has one zone, so there is nothing to even out. This holds if someone adds a zone later, too."
    return {"asgSuspendProcesses": because(why, ["AZRebalance"])}


def node_role_name(description: Description, group: str) -> str:
    """Return the role of a group's machines: at most 64 characters, with a hash in place of the end if the names are long."""
    name = f"eksctl-{description.cluster.name}-nodegroup-{group}"
    if len(name) <= _ROLE_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _ROLE_NAME - len(digest) - 1]}-{digest}"


def _taint(key: str, value: str, effect: str) -> Mapping[str, str]:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _tags(description: Description, group: NodeGroup) -> dict[str, Tree]:
    if not description.managed:
        why = (
            "By the first two, gpuscaler (and Cluster Autoscaler) find the group; the controller's rights depend on the second, too. "
            "The others say what its nodes will be like while it has none. propagateASGTags would write them, too, but the taints without "
            "their effects."
        )
        return {"tags": because(why, dict(group_tags(group, description.cluster.name)))}
    why = (
        "While the group has no node, autoscalers learn its taints from these tags, as VALUE:EFFECT. propagateASGTags writes them without "
        "the effect, which Cluster Autoscaler ignores; what stands here takes precedence. EKS sets the tags by which the group is found."
    )
    return {
        "tags": because(why, dict(taint_tags(node_taints(group)))),
        "propagateASGTags": because(
            "EKS keeps tags and labels of a node group to itself. With this, eksctl copies them to its Auto Scaling group.", True
        ),
    }
