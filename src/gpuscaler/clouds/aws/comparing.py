"""What a group's own nodes say against its node template: they are right, and every difference is told.

Tags promise what the next node will be; the nodes that are there show what it is. A label in the tags that no node carries is the usual
reason why a pod, for which a machine was bought, never runs on it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuscaler.clouds.aws.groups import HERE
from gpuscaler.clouds.aws.pools import FoundPool
from gpuscaler.model.accelerators import ACCELERATORS
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
#: Labels of one node or one place; the offering has its own.
_PLACE = ("kubernetes.io/hostname", "topology.", "failure-domain.beta.", "gpuscaler.io/")
#: Nodes that have so much less of a resource than was expected are worth a word.
_LESS = 0.01


def compared(found: FoundPool, nodes: Mapping[str, Node]) -> FoundPool:
    """The pool as its nodes, by EC2's ids of their machines, show it; nodes that are not ready or lack their devices show nothing yet."""
    live: dict[str, list[Node]] = {}
    for machine in found.group.machines:
        node = nodes.get(machine.id)
        if node is not None and node.ready and machine.state in HERE:
            live.setdefault(machine.instance_type, []).append(node)
    offerings, said = [], dict[str, None]()
    for offering in found.pool.offerings:
        shown = [node for node in live.get(offering.instance_type, ()) if _complete(node, offering.allocatable)]
        if shown:
            offering, differences = _as_shown(offering, shown)
            said |= dict.fromkeys(differences)
        offerings.append(offering)
    shared = set(offerings[0].labels.items()).intersection(*(one.labels.items() for one in offerings[1:]))
    # A pool's nodes are told by these: what they do not carry would lose them.
    matching = {key: value for key, value in shared if key in found.pool.match_labels}
    pool = msgspec.structs.replace(found.pool, offerings=tuple(offerings), match_labels=matching)
    return msgspec.structs.replace(found, pool=pool, warnings=(*found.warnings, *said))


def _complete(node: Node, expected: Resources) -> bool:
    """Whether device plugins, and with them discovery, have spoken."""
    return all(node.allocatable.get(name) for name in ACCELERATORS if expected.get(name))


def _as_shown(offering: Offering, nodes: Sequence[Node]) -> tuple[Offering, list[str]]:
    labels, told = _labels(offering, nodes)
    taints, more = _taints(offering, nodes)
    return msgspec.structs.replace(offering, labels=labels, taints=taints), [*told, *more, *_resources(offering, nodes)]


def _labels(offering: Offering, nodes: Sequence[Node]) -> tuple[dict[str, str], list[str]]:
    labels, said, many = dict(offering.labels), [], _nodes(nodes)
    for key, value in offering.labels.items():
        values = {node.labels.get(key) for node in nodes}
        if key.startswith(_PLACE) or value in values:
            continue
        if values == {None}:
            del labels[key]
            said.append(f"the label {key}={value} is on none of its {many}, which are right: remove its tag, or set it on nodes")
        elif len(values) == 1:
            labels[key] = str(values.pop())
            said.append(f"the label {key} is {labels[key]} on its {many}, expected {value}; the nodes are right")
    shared = set(nodes[0].labels.items()).intersection(*(node.labels.items() for node in nodes[1:]))
    new = {key: value for key, value in sorted(shared) if key not in offering.labels and not key.startswith(_PLACE)}
    return labels | {key: value for key, value in new.items() if not _personal(value, nodes)}, said


def _personal(value: str, nodes: Iterable[Node]) -> bool:
    """Whether a label's value names the one machine."""
    return any(value and (value in node.name or value in node.provider_id.split("/")) for node in nodes)


def _taints(offering: Offering, nodes: Sequence[Node]) -> tuple[tuple[Taint, ...], list[str]]:
    """Only taints that every node, or no node, has: what one has may be a person's, for a while."""
    everywhere = set(nodes[0].taints).intersection(*(node.taints for node in nodes[1:]))
    somewhere = {taint for node in nodes for taint in node.taints}
    missing = [taint for taint in offering.taints if taint not in somewhere]
    new = [
        taint
        for taint in sorted(everywhere - set(offering.taints), key=str)
        if taint.effect in HARD_EFFECTS and not taint.key.startswith(_PASSING)
    ]
    many = _nodes(nodes)
    said = [f"the taint {taint} is on none of its {many}, which are right: remove its tag, or set it on nodes" for taint in missing]
    said += [f"the taint {taint} is on its {many} and in no tag; the nodes are right" for taint in new]
    return (*(taint for taint in offering.taints if taint not in missing), *new), said


def _resources(offering: Offering, nodes: Sequence[Node]) -> list[str]:
    """What nodes offer less of; plans learn that by themselves."""
    said = []
    for name, expected in offering.allocatable.items():
        least = min(node.allocatable.get(name, 0) for node in nodes)
        if least < expected * (1 - _LESS):
            said.append(f"{offering.instance_type} offers {least} of {name} on its {_nodes(nodes)}, expected {expected}")
    return said


def _nodes(nodes: Sequence[Node]) -> str:
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
