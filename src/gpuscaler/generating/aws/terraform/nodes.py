"""GPU groups, as Terraform: a list of them, and the launch templates and groups that are made of it, managed by EKS or not.

Sources, 2026-11-26: the EKS user guide, "Customize managed nodes with launch templates"; the API reference of EKS, ``Taint``; the EC2 Auto
Scaling user guide on scale-in protection, processes and lifecycle hooks.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER
from gpuscaler.clouds.discovery.hints import LABEL, TAINT
from gpuscaler.generating.aws.eksctl_commands import HEARTBEAT, HOOK
from gpuscaler.generating.aws.nodes import ClusterFacts, discovery_tags, node_config, node_labels, node_taints, user_data
from gpuscaler.generating.aws.terraform.cluster import disk, metadata_options
from gpuscaler.generating.aws.terraform.images import ami_type, image_path, why_image
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.writing.explained import Explained, Tree, because, plain
from gpuscaler.generating.writing.hcl import Block, Expression, Nested, call
from gpuscaler.model.well_known import POOL_LABEL

_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
_GROUPS = Expression("local.groups")


def group_blocks(description: Description) -> Iterator[Tree]:
    """Yield the machines that are wanted, and the list of groups that follows. Only the first machine's fields have their reasons."""
    machines = dict[str, list[NodeGroup]]()
    for group in description.groups:
        machines.setdefault(group.name.removesuffix(_suffix(group)), []).append(group)
    entries: dict[str, Tree] = {}
    for name, groups in machines.items():
        fields = _fields(groups, managed=description.managed)
        entries[name] = plain(fields) if entries else fields
    yield because("Which machines are wanted. Change sizes, zones and markets here.", Block("locals", (), {"machines": entries}))
    name_text = '"${name}-${place[0]}-${substr(place[1], -1, 1)}"'
    text = (
        "merge([for name, machine in local.machines : {\n"
        f"  for place in setproduct(machine.markets, machine.zones) : {name_text} => merge(machine, {{\n"
        "    market = place[0]\n"
        "    zone   = place[1]\n"
        f'    labels = merge({{ "{POOL_LABEL}" = {name_text} }}, machine.labels)\n'
        "  })\n"
        "}]...)"
    )
    why = (
        "A group for each machine, market and zone, such as "
        f"{description.groups[0].name}: then there is nothing that EKS or Auto Scaling could even out, and gpuscaler alone decides where a "
        f"machine is bought. The label {POOL_LABEL} is the pool's name in gpuscaler."
    )
    yield Block("locals", (), {"groups": because(why, Expression(text))})


def _suffix(group: NodeGroup) -> str:
    return f"-{group.market}-{group.zone[-1:]}"


def _fields(groups: list[NodeGroup], *, managed: bool) -> dict[str, Explained]:
    """Return the fields of machines that differ in market and zone only."""
    group = groups[0]
    type_ = group.instance_type
    image = {"ami_type": ami_type(type_)} if managed else {"image": image_path(type_)}
    labels = {key: value for key, value in node_labels(group).items() if (key, value) != (POOL_LABEL, group.name)}
    return {
        "instance_type": because("One type only, so that every machine has the same GPUs and a plan for the group is exact.", type_.name),
        "markets": because(
            "Spot and on-demand are groups of their own. In a mixed group, AWS keeps to a share, and does not buy on demand where "
            "spot has run dry.",
            list(dict.fromkeys(group.market for group in groups)),
        ),
        "zones": because("A pod's volume, or a gang, needs machines in a known zone.", list(dict.fromkeys(group.zone for group in groups))),
        "min": because("Machines of each group that are kept even if they are idle.", group.min),
        "max": because("The most machines that gpuscaler buys in each group.", group.max),
        "disk_gib": because("The size of the root volume, which holds images and emptyDir volumes.", group.disk_gib),
        **{key: because(why_image(type_), value) for key, value in image.items()},
        "labels": because(
            "Labels that nodes register with. Cluster Autoscaler waits for the GPUs of a new node only if it has the accelerator's label.",
            labels,
        ),
        "taints": because(
            "Nodes register with gpuscaler.io/arriving, which gpuscaler removes as soon as the pods that the machine was bought for have "
            "their places. Without it, any pod could take the GPUs first. The others keep pods away that need no GPU.",
            [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node_taints(group)],
        ),
    }


def node_blocks(description: Description) -> Iterator[Tree]:
    yield _node_template_tags()
    yield _launch_template(description)
    yield from _managed(description) if description.managed else _self_managed(description)


def _node_template_tags() -> Block:
    labels = Expression(f'{{ for key, value in group.labels : "{LABEL}${{key}}" => value }}')
    taints = Expression(f'[for taint in group.taints : {{ "{TAINT}${{taint.key}}" = "${{taint.value}}:${{taint.effect}}" }}]...')
    text = f"{{ for name, group in local.groups : name => merge(\n  {labels.text},\n  {taints.text}\n) }}"
    return Block(
        "locals",
        (),
        {
            "node_template_tags": because(
                "Tags that say which labels and taints a node will have while the group has no node: without them, an autoscaler "
                "that starts "
                "from zero does not know that a pod fits. They are made from the same list as the nodes, so that they cannot differ.",
                Expression(text),
            )
        },
    )


def _launch_template(description: Description) -> Explained:
    name = Expression(f'"{description.cluster.name[:64]}-${{each.key}}"')
    body: dict[str, Tree] = {"for_each": _GROUPS, "name": name}
    if not description.managed:
        body |= {
            "image_id": Expression("data.aws_ssm_parameter.image[each.value.image].value"),
            "vpc_security_group_ids": because(
                "The cluster's own security group, in which nodes, pods and the API server reach each other.",
                [Expression("local.cluster.security_group")],
            ),
            "user_data": _user_data(),
            "iam_instance_profile": Nested({"arn": Expression("aws_iam_instance_profile.nodes.arn")}),
        }
    body |= {"block_device_mappings": disk(Expression("each.value.disk_gib")), "metadata_options": metadata_options()}
    tagged = [Nested({"resource_type": kind, "tags": {"Name": name}}) for kind in ("instance", "volume")]
    body["tag_specifications"] = because("The console and the bill then show which group a machine or disk belongs to.", tagged)
    return because("How the machines of each group start.", Block("resource", ("aws_launch_template", "gpu"), body))


def _user_data() -> Explained:
    """Return nodeadm's user data in the form that :mod:`gpuscaler.generating.aws.nodes` has, with what differs between groups."""
    config: dict[str, Any] = yaml.safe_load(node_config(ClusterFacts(name="", endpoint="", authority="", cidr=""), {}, ()))
    facts = {"name": "name", "apiServerEndpoint": "endpoint", "certificateAuthority": "authority", "cidr": "service_cidr"}
    spec = config["spec"]
    spec["cluster"] = because(
        "How the machine finds the cluster and proves that it is the right one.",
        {key: Expression(f"local.cluster.{facts[key]}") for key in spec["cluster"]},
    )
    spec["kubelet"]["config"]["registerWithTaints"] = because(
        "All taints stand here, and no flag sets any: with a flag, the kubelet would ignore this list.", Expression("each.value.taints")
    )
    flags = '"--node-labels=${join(",", [for key, value in each.value.labels : "${key}=${value}"])}"'
    spec["kubelet"]["flags"] = because("Labels can be set by a flag only.", [Expression(flags)])
    mark = "NODE CONFIG"
    lines: list[Tree] = [call("yamlencode", config) if line == mark else line for line in user_data(mark).split("\n")]
    return because(
        "`nodeadm`, which starts the kubelet on Amazon Linux 2023, reads its configuration from a part of this message.",
        call("base64encode", call("join", "\n", lines)),
    )


def _managed(description: Description) -> Iterator[Tree]:
    yield Block(
        "locals", (), {"taint_effects": because("The EKS API spells the effects of taints differently from Kubernetes.", dict(_EFFECTS))}
    )
    taint = {
        "key": Expression("taint.value.key"),
        "value": Expression("taint.value.value"),
        "effect": Expression("local.taint_effects[taint.value.effect]"),
    }
    sizes = {
        "min_size": Expression("each.value.min"),
        "max_size": Expression("each.value.max"),
        "desired_size": because("The number at the start. Afterwards, gpuscaler changes it.", Expression("each.value.min")),
    }
    body: dict[str, Tree] = {
        "for_each": _GROUPS,
        "cluster_name": Expression("local.cluster.name"),
        "node_group_name": Expression("each.key"),
        "node_role_arn": Expression("aws_iam_role.nodes.arn"),
        "subnet_ids": because(
            "One zone only. Auto Scaling evens out the zones of managed groups, even if that is suspended, and ends machines that work.",
            [Expression("data.aws_subnet.nodes[each.value.zone].id")],
        ),
        "instance_types": [Expression("each.value.instance_type")],
        "ami_type": Expression("each.value.ami_type"),
        "capacity_type": because(
            "EKS buys spot machines with the strategy price-capacity-optimized.",
            Expression('each.value.market == "spot" ? "SPOT" : "ON_DEMAND"'),
        ),
        "version": because(
            "After an upgrade of the cluster, the next `terraform apply` replaces the nodes, as PodDisruptionBudgets allow.",
            Expression("local.cluster.version"),
        ),
        "labels": because("gpuscaler also reads them from EKS, while the group has no node.", Expression("each.value.labels")),
        "dynamic": Nested({"for_each": Expression("each.value.taints"), "content": Nested(taint)}, labels=("taint",)),
        "scaling_config": Nested(sizes),
        "launch_template": Nested(
            {
                "id": Expression("aws_launch_template.gpu[each.key].id"),
                "version": Expression("aws_launch_template.gpu[each.key].latest_version"),
            }
        ),
        "lifecycle": because(
            "gpuscaler changes the number of machines all the time. Without this, each `terraform apply` would end machines that work.",
            Nested({"ignore_changes": [Expression("scaling_config[0].desired_size")]}),
        ),
        "depends_on": because(
            "A node without the rights of its role or the key of its disk does not become Ready, and EKS would give up the group.",
            _needs(description, "aws_iam_role_policy_attachment.nodes", "aws_kms_grant.autoscaling"),
        ),
    }
    yield because("A node group of EKS for each entry of local.groups.", Block("resource", ("aws_eks_node_group", "gpu"), body))
    pairs = (
        "merge([for name, tags in local.node_template_tags : {\n"
        '  for key, value in tags : "${name} ${key}" => { group = name, key = key, value = value }\n'
        "}]...)"
    )
    tag = {
        "key": Expression("each.value.key"),
        "value": Expression("each.value.value"),
        "propagate_at_launch": because("The tags describe the group. Machines do not need them.", False),
    }
    yield because(
        "EKS puts the tags for discovery on its Auto Scaling groups itself, but not those about labels and taints.",
        Block(
            "resource",
            ("aws_autoscaling_group_tag", "node_template"),
            {
                "for_each": Expression(pairs),
                "autoscaling_group_name": Expression("aws_eks_node_group.gpu[each.value.group].resources[0].autoscaling_groups[0].name"),
                "tag": Nested(tag),
            },
        ),
    )


def _needs(description: Description, *resources: str) -> list[Tree]:
    """Return what must exist before the first machine starts."""
    return [Expression(resource) for resource in (*resources, *(("aws_eks_addon.nodes",) if description.cluster.create else ()))]


def _self_managed(description: Description) -> Iterator[Tree]:
    name = description.cluster.name
    discovery = because(
        f"gpuscaler adopts groups with these two tags, and its role may change no others. {CLUSTER_AUTOSCALER}{name} names the cluster.",
        dict(discovery_tags(name)),
    )
    owned = because(
        "The cloud provider of Kubernetes recognizes a machine of the cluster by this tag.", {f"kubernetes.io/cluster/{name}": "owned"}
    )
    yield Block("locals", (), {"discovery_tags": discovery, "machine_tags": owned})
    distribution = {
        "on_demand_base_capacity": because("No machine of another market than the group's.", 0),
        "on_demand_percentage_above_base_capacity": because(
            "All machines on demand, or none. LaunchInstances, by which gpuscaler learns at once that AWS has no machine, refuses "
            "mixed groups.",
            Expression('each.value.market == "spot" ? 0 : 100'),
        ),
        "spot_allocation_strategy": because(
            "Auto Scaling's default looks at the price alone, and such machines are interrupted most.", "price-capacity-optimized"
        ),
    }
    template = Nested(
        {
            "launch_template_specification": Nested(
                {
                    "launch_template_id": Expression("aws_launch_template.gpu[each.key].id"),
                    "version": Expression("aws_launch_template.gpu[each.key].latest_version"),
                }
            ),
            "override": Nested({"instance_type": Expression("each.value.instance_type")}),
        }
    )
    tag = {
        "key": Expression("tag.key"),
        "value": Expression("tag.value"),
        "propagate_at_launch": because("Machines need the cluster's tag only.", Expression("contains(keys(local.machine_tags), tag.key)")),
    }
    body: dict[str, Tree] = {
        "for_each": _GROUPS,
        "name": Expression(f'"{name}-${{each.key}}"'),
        "min_size": Expression("each.value.min"),
        "max_size": Expression("each.value.max"),
        "vpc_zone_identifier": because("One zone only.", [Expression("data.aws_subnet.nodes[each.value.zone].id")]),
        "suspended_processes": because(
            "AZRebalance ends machines that work, to even out zones. It stays suspended if a zone is added.", ["AZRebalance"]
        ),
        "protect_from_scale_in": because(
            "When the number is lowered, Auto Scaling chooses by itself which machine ends. It spares protected ones, and "
            "gpuscaler names those to end.",
            True,
        ),
        "capacity_rebalance": because("Auto Scaling would replace spot machines at risk by itself, while gpuscaler drains them.", False),
        "wait_for_capacity_timeout": because("Terraform does not wait for machines: GPUs may be sold out for hours.", "0"),
        "mixed_instances_policy": Nested({"instances_distribution": Nested(distribution), "launch_template": template}),
        "dynamic": Nested(
            {
                "for_each": Expression("merge(local.discovery_tags, local.machine_tags, local.node_template_tags[each.key])"),
                "content": Nested(tag),
            },
            labels=("tag",),
        ),
        "lifecycle": because(
            "gpuscaler changes the number of machines all the time. Without this, a `terraform apply` could end machines that work.",
            Nested({"ignore_changes": [Expression("desired_capacity")]}),
        ),
        "depends_on": because(
            "A machine that starts before the cluster admits its role does not become a node.",
            _needs(description, "aws_eks_access_entry.nodes", "aws_iam_role_policy_attachment.nodes", "aws_kms_grant.autoscaling"),
        ),
    }
    yield because("An Auto Scaling group for each entry of local.groups.", Block("resource", ("aws_autoscaling_group", "gpu"), body))
    hook: dict[str, Tree] = {
        "for_each": Expression("aws_autoscaling_group.gpu"),
        "name": HOOK,
        "autoscaling_group_name": Expression("each.value.name"),
        "lifecycle_transition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "heartbeat_timeout": because(
            "In seconds. gpuscaler asks for more while it drains, and ends the wait when the machine is empty.", HEARTBEAT
        ),
        "default_result": because("If nothing answers in time, the machine ends.", "CONTINUE"),
    }
    yield because(
        "Auto Scaling holds a machine that it ends, so that gpuscaler can drain its node first. The rule `lifecycle` of the queue "
        "reports it.",
        Block("resource", ("aws_autoscaling_lifecycle_hook", "terminate"), hook),
    )
