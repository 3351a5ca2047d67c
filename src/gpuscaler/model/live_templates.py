"""Comparison of a group's node template with its live nodes: the nodes take precedence, and every difference is reported.

Tags and rules promise the properties of the next node; existing nodes show the real ones. A label of the template that no node has is the
usual reason why a pod never runs on the machine that was bought for it. Memory, disk, huge pages and pod slots that nodes have and the
template lacks are the usual reason why nothing is bought at all. Of several nodes the lowest amounts count.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import ACCELERATORS, are_divided, is_device
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.taints import HARD_EFFECTS, Taint

#: Prefixes of taints that are set and removed automatically.
_PASSING = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "gpuscaler.io/",
    "karpenter.sh/",
    "aws-node-termination-handler/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
)
#: Labels that are specific to a node, a place, a market, or an instance type; the offering has its own.
_PLACE = (
    "kubernetes.io/hostname",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.",
    "failure-domain.beta.",
    "gpuscaler.io/",
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "kubernetes.azure.com/scalesetpriority",
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-provisioning",
)
#: Relative differences of a resource from which they are reported.
WORTH_A_WORD = 0.01
_BYTES = ("memory", "ephemeral-storage", "hugepages-")


class TemplateDifferences(Struct, frozen=True, gc=False):
    """Differences between nodes and a template.

    ``labels`` has the values that all nodes agree on, None for a label of the template that none of them has. ``taints`` are on all nodes
    and not in the template, ``untainted`` in the template and on no node. ``resources`` is the minimum over nodes of each resource that all
    of them offer, without accelerators and their parts. ``devices`` are all accelerators and parts, if the nodes agree that these are
    divided or shared differently from the template. ``words`` are messages about the differences.
    """

    labels: Mapping[str, str | None] = {}
    taints: tuple[Taint, ...] = ()
    untainted: tuple[Taint, ...] = ()
    resources: Resources = {}
    words: tuple[str, ...] = ()
    devices: Resources = {}


def is_complete(node: Node, expected: Resources) -> bool:
    """Whether device plugins, and with them GPU feature discovery, have registered."""
    return all(node.allocatable.get(name) for name in ACCELERATORS if expected.get(name)) or are_divided(node.allocatable, expected)


def is_broken(node: Node, offering: Offering) -> bool:
    """Whether ``node`` has lost an accelerator that its type is sold with.

    New nodes start with all of them: GPU feature discovery has counted them.
    """
    sold = {name: amount for name, amount in offering.allocatable.items() if amount and name in ACCELERATORS}
    return any(node.allocatable.get(name, 0) < amount for name, amount in sold.items()) and not are_divided(node.allocatable, sold)


def template_differences(offering: Offering, nodes: Sequence[Node]) -> TemplateDifferences:
    """Compare ``nodes`` (at least one) with the template of ``offering``. They are complete, and machines of its type and pool."""
    labels, messages = _labels(offering, nodes)
    taints, untainted, taint_messages = _taints(offering, nodes)
    resources = _resources(nodes)
    devices = _devices(offering, nodes)
    return TemplateDifferences(
        labels,
        taints,
        untainted,
        resources,
        (*messages, *taint_messages, *_amount_messages(offering, nodes, {**resources, **devices})),
        devices,
    )


def with_labels(offering: Offering, differences: TemplateDifferences) -> Offering:
    """Return ``offering`` with the labels and taints of its nodes; place and market stay its own."""
    labels = {key: value for key, value in {**offering.labels, **differences.labels}.items() if value is not None}
    kept = tuple(taint for taint in offering.taints if taint not in differences.untainted)
    taints = (*kept, *(taint for taint in differences.taints if taint not in kept))
    if labels == offering.labels and taints == offering.taints:
        return offering
    return replace(offering, labels=labels, taints=taints)


def with_resources(offering: Offering, resources: Resources) -> Offering:
    """Return ``offering`` with the resources of its nodes, except accelerators, which stay those that it is sold with."""
    allocatable = {name: amount if is_device(name) else resources.get(name) or amount for name, amount in offering.allocatable.items()}
    allocatable |= {name: amount for name, amount in resources.items() if amount and name not in allocatable and not is_device(name)}
    return offering if allocatable == offering.allocatable else replace(offering, allocatable=allocatable)


def with_devices(offering: Offering, devices: Resources) -> Offering:
    """Return ``offering`` with accelerators divided or shared as on its nodes; as sold if ``devices`` is empty."""
    allocatable = {name: amount for name, amount in offering.allocatable.items() if not is_device(name)} | {**devices}
    return offering if not devices or allocatable == offering.allocatable else replace(offering, allocatable=allocatable)


def _devices(offering: Offering, nodes: Sequence[Node]) -> dict[str, int]:
    """Return the accelerators and parts on the nodes if they differ from those sold; empty if they do not, or if nodes disagree.

    A node with fewer than sold, and no parts, is broken, and is no evidence for the next node. A node with more shares them.
    """
    sold = {name: amount for name, amount in offering.allocatable.items() if amount and is_device(name)}
    by_node = [
        {name: amount for name, amount in node.allocatable.items() if amount and is_device(name)}
        for node in nodes
        if are_divided(node.allocatable, sold) or all(node.allocatable.get(name, 0) >= sold.get(name, 0) for name in ACCELERATORS)
    ]
    agreed = by_node[0] if by_node and all(amount == by_node[0] for amount in by_node) else sold
    return {} if agreed == sold else agreed


def _labels(offering: Offering, nodes: Sequence[Node]) -> tuple[dict[str, str | None], list[str]]:
    changed: dict[str, str | None] = {}
    messages, nodes_text = [], _describe_nodes(nodes)
    for key, value in offering.labels.items():
        values = {node.labels.get(key) for node in nodes}
        if key.startswith(_PLACE) or value in values or len(values) > 1:
            continue
        (changed[key],) = values
        if changed[key] is None:
            messages.append(
                f"the label {key}={value} is on none of its {nodes_text}, and nodes take precedence: remove its tag, or set it on nodes"
            )
        else:
            messages.append(f"the label {key} is {changed[key]} on its {nodes_text}, expected {value}; the nodes take precedence")
    shared = set(nodes[0].labels.items()).intersection(*(node.labels.items() for node in nodes[1:]))
    new = {key: value for key, value in sorted(shared) if key not in offering.labels and not key.startswith(_PLACE)}
    return changed | {key: value for key, value in new.items() if not _identifies_machine(value, nodes)}, messages


def _identifies_machine(value: str, nodes: Iterable[Node]) -> bool:
    """Whether a label's value identifies a single machine."""
    return any(value and (value in node.name or value in node.provider_id.split("/")) for node in nodes)


def _taints(offering: Offering, nodes: Sequence[Node]) -> tuple[tuple[Taint, ...], tuple[Taint, ...], list[str]]:
    """Compare only taints that are on all nodes or on no node: a taint on one node may be a user's temporary one."""
    everywhere = set(nodes[0].taints).intersection(*(node.taints for node in nodes[1:]))
    somewhere = {taint for node in nodes for taint in node.taints}
    missing = tuple(taint for taint in offering.taints if taint not in somewhere)
    new = tuple(
        taint
        for taint in sorted(everywhere - set(offering.taints), key=str)
        if taint.effect in HARD_EFFECTS and not taint.key.startswith(_PASSING)
    )
    nodes_text = _describe_nodes(nodes)
    messages = [
        f"the taint {taint} is on none of its {nodes_text}, and nodes take precedence: remove its tag, or set it on nodes"
        for taint in missing
    ]
    messages += [f"the taint {taint} is on its {nodes_text} and in no tag; the nodes take precedence" for taint in new]
    return new, missing, messages


def _resources(nodes: Sequence[Node]) -> dict[str, int]:
    everywhere = set(nodes[0].allocatable).intersection(*(node.allocatable for node in nodes[1:]))
    least = {name: min(node.allocatable[name] for node in nodes) for name in sorted(everywhere)}
    return {name: amount for name, amount in least.items() if amount > 0 and not is_device(name)}


def _amount_messages(offering: Offering, nodes: Sequence[Node], resources: Resources) -> list[str]:
    """Return messages about resources of which nodes offer less (including accelerators) or more."""
    messages = []
    for name, expected in offering.allocatable.items():
        least = min(node.allocatable.get(name, 0) for node in nodes)
        if least < expected * (1 - WORTH_A_WORD):
            messages.append(f"{offering.instance_type} offers {least} of {name} on its {_describe_nodes(nodes)}, expected {expected}")
    for name, amount in resources.items():
        expected = offering.allocatable.get(name, 0)
        if amount > expected * (1 + WORTH_A_WORD):
            comparison = f"a node of this pool offers {format_amount(name, amount)} of {name}, the template {format_amount(name, expected)}"
            messages.append(f"{offering.instance_type}: {comparison}; the nodes take precedence")
    return messages


def format_amount(resource: str, amount: int) -> str:
    """Format ``amount``: cores, Gi, or a plain number."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:,.4g}Gi" if resource.startswith(_BYTES) else str(amount)


def _describe_nodes(nodes: Sequence[Node]) -> str:
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
