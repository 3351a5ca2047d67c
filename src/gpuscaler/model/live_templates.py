"""What live nodes of a group show against the template of its machines: they are right, and every difference is said.

Tags and rules promise what the next node will be; the nodes that are there show what it is. A label of the template that no node carries
is the usual reason why a pod, for which a machine was bought, never runs on it; memory, disk, huge pages and places for pods that nodes
have and the template lacks are the reason why nothing is bought at all. Of several nodes the lowest amounts count.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import ACCELERATORS, are_divided, is_device
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.taints import HARD_EFFECTS, Taint

#: Taints that come and go by themselves begin so.
_PASSING = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "gpuscaler.io/",
    "karpenter.sh/",
    "aws-node-termination-handler/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
)
#: Labels of one node, of one place, of one market, or of the type that is bought; the offering has its own.
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
#: A difference of so much of a resource is worth a word.
WORTH_A_WORD = 0.01
_BYTES = ("memory", "ephemeral-storage", "hugepages-")


class Shown(Struct, frozen=True, gc=False):
    """How nodes differ from a template.

    ``labels`` has the values that they agree on, None for a label of the template that none of them has. ``taints`` are on all of them and
    not in the template, ``untainted`` the other way round. ``resources`` is the least that any of them offers of each resource that all of
    them offer, accelerators and what is made of them excepted. ``devices`` are these, all of them, where nodes agree that they are divided
    or shared otherwise than the template says. ``words`` say all that for people.
    """

    labels: Mapping[str, str | None] = {}
    taints: tuple[Taint, ...] = ()
    untainted: tuple[Taint, ...] = ()
    resources: Resources = {}
    words: tuple[str, ...] = ()
    devices: Resources = {}


def is_complete(node: Node, expected: Resources) -> bool:
    """Whether device plugins, and with them discovery, have spoken."""
    return all(node.allocatable.get(name) for name in ACCELERATORS if expected.get(name)) or are_divided(node.allocatable, expected)


def is_broken(node: Node, offering: Offering) -> bool:
    """Whether ``node`` has lost one of the accelerators that it was sold with: the next has all, and discovery counts them on it."""
    sold = {name: amount for name, amount in offering.allocatable.items() if amount and name in ACCELERATORS}
    return any(node.allocatable.get(name, 0) < amount for name, amount in sold.items()) and not are_divided(node.allocatable, sold)


def shown_by(offering: Offering, nodes: Sequence[Node]) -> Shown:
    """What ``nodes``, one at least, show of the template of ``offering``. They are complete, and machines of its type and pool."""
    labels, said = _labels(offering, nodes)
    taints, untainted, more = _taints(offering, nodes)
    resources = _resources(nodes)
    devices = _devices(offering, nodes)
    return Shown(labels, taints, untainted, resources, (*said, *more, *_amounts(offering, nodes, {**resources, **devices})), devices)


def with_labels(offering: Offering, shown: Shown) -> Offering:
    """``offering`` with the labels and taints that its nodes have; the place and the market are its own."""
    labels = {key: value for key, value in {**offering.labels, **shown.labels}.items() if value is not None}
    kept = tuple(taint for taint in offering.taints if taint not in shown.untainted)
    taints = (*kept, *(taint for taint in shown.taints if taint not in kept))
    if labels == offering.labels and taints == offering.taints:
        return offering
    return replace(offering, labels=labels, taints=taints)


def with_resources(offering: Offering, resources: Resources) -> Offering:
    """``offering`` with what its nodes offer, more or less; of accelerators with those that it was sold with."""
    room = {name: amount if is_device(name) else resources.get(name) or amount for name, amount in offering.allocatable.items()}
    room |= {name: amount for name, amount in resources.items() if amount and name not in room and not is_device(name)}
    return offering if room == offering.allocatable else replace(offering, allocatable=room)


def with_devices(offering: Offering, devices: Resources) -> Offering:
    """``offering`` with accelerators as its nodes divide or share them; as they were sold where ``devices`` is empty."""
    room = {name: amount for name, amount in offering.allocatable.items() if not is_device(name)} | {**devices}
    return offering if not devices or room == offering.allocatable else replace(offering, allocatable=room)


def _devices(offering: Offering, nodes: Sequence[Node]) -> dict[str, int]:
    """The accelerators, and parts of them, that nodes show otherwise than they were sold: empty where they do not, or do not agree.

    A node with fewer than it was sold with, and no parts of them, is broken, and says nothing of the next. One with more shares them.
    """
    sold = {name: amount for name, amount in offering.allocatable.items() if amount and is_device(name)}
    seen = [
        {name: amount for name, amount in node.allocatable.items() if amount and is_device(name)}
        for node in nodes
        if are_divided(node.allocatable, sold) or all(node.allocatable.get(name, 0) >= sold.get(name, 0) for name in ACCELERATORS)
    ]
    agreed = seen[0] if seen and all(one == seen[0] for one in seen) else sold
    return {} if agreed == sold else agreed


def _labels(offering: Offering, nodes: Sequence[Node]) -> tuple[dict[str, str | None], list[str]]:
    found: dict[str, str | None] = {}
    said, many = [], _nodes(nodes)
    for key, value in offering.labels.items():
        values = {node.labels.get(key) for node in nodes}
        if key.startswith(_PLACE) or value in values or len(values) > 1:
            continue
        (found[key],) = values
        if found[key] is None:
            said.append(f"the label {key}={value} is on none of its {many}, and nodes count: remove its tag, or set it on nodes")
        else:
            said.append(f"the label {key} is {found[key]} on its {many}, expected {value}; the nodes are right")
    shared = set(nodes[0].labels.items()).intersection(*(node.labels.items() for node in nodes[1:]))
    new = {key: value for key, value in sorted(shared) if key not in offering.labels and not key.startswith(_PLACE)}
    return found | {key: value for key, value in new.items() if not _personal(value, nodes)}, said


def _personal(value: str, nodes: Iterable[Node]) -> bool:
    """Whether a label's value names the one machine."""
    return any(value and (value in node.name or value in node.provider_id.split("/")) for node in nodes)


def _taints(offering: Offering, nodes: Sequence[Node]) -> tuple[tuple[Taint, ...], tuple[Taint, ...], list[str]]:
    """Only taints that every node, or no node, has: what one has may be a person's, for a while."""
    everywhere = set(nodes[0].taints).intersection(*(node.taints for node in nodes[1:]))
    somewhere = {taint for node in nodes for taint in node.taints}
    missing = tuple(taint for taint in offering.taints if taint not in somewhere)
    new = tuple(
        taint
        for taint in sorted(everywhere - set(offering.taints), key=str)
        if taint.effect in HARD_EFFECTS and not taint.key.startswith(_PASSING)
    )
    many = _nodes(nodes)
    said = [f"the taint {taint} is on none of its {many}, and nodes count: remove its tag, or set it on nodes" for taint in missing]
    said += [f"the taint {taint} is on its {many} and in no tag; the nodes are right" for taint in new]
    return new, missing, said


def _resources(nodes: Sequence[Node]) -> dict[str, int]:
    everywhere = set(nodes[0].allocatable).intersection(*(node.allocatable for node in nodes[1:]))
    least = {name: min(node.allocatable[name] for node in nodes) for name in sorted(everywhere)}
    return {name: amount for name, amount in least.items() if amount > 0 and not is_device(name)}


def _amounts(offering: Offering, nodes: Sequence[Node], resources: Resources) -> list[str]:
    """What nodes offer less of, accelerators among it, and what more."""
    said = []
    for name, expected in offering.allocatable.items():
        least = min(node.allocatable.get(name, 0) for node in nodes)
        if least < expected * (1 - WORTH_A_WORD):
            said.append(f"{offering.instance_type} offers {least} of {name} on its {_nodes(nodes)}, expected {expected}")
    for name, amount in resources.items():
        expected = offering.allocatable.get(name, 0)
        if amount > expected * (1 + WORTH_A_WORD):
            more = f"a node of this group offers {spoken(name, amount)} of {name}, the template {spoken(name, expected)}"
            said.append(f"{offering.instance_type}: {more}; the nodes are right")
    return said


def spoken(resource: str, amount: int) -> str:
    """``amount`` for people: cores, Gi, or a plain number."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:,.4g}Gi" if resource.startswith(_BYTES) else str(amount)


def _nodes(nodes: Sequence[Node]) -> str:
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
