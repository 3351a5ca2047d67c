"""Learning about the next machines of a kind from live nodes (see :mod:`gpuscaler.planning.state.learned_templates`)."""

from collections.abc import Mapping, Sequence

from gpuscaler.lifecycle.observed.live_nodes import LiveNodes
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.live_templates import TemplateDifferences, is_broken, is_complete
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.state import learned_templates
from gpuscaler.planning.state.ledger.ledger import Ledger

#: Seconds after which a node has all its labels: since the creation of an open node, and since a closed machine became ready.
SETTLED_SECONDS, LABELS_SECONDS = 60.0, 20.0
#: The maximum number of nodes of one type to learn from, the newest first.
ASKED = 20


def learn_from_nodes(
    learned: learned_templates.Learned, ledger: Ledger, policy: Policy, now: float, *, index: MachineIndex, live_nodes: LiveNodes
) -> learned_templates.Learned:
    """Return ``learned``, updated from live nodes of the pools; ``policy`` describes nodes as tags and rules promise them."""
    nodes_of = live_nodes.of(index.nodes, None if index.listed.instances is None else index.listed.alive, now)
    arriving = {machine.node: machine.ready for machine in ledger.coming if machine.node}
    lessons = {(lesson.pool, lesson.instance_type): lesson for lesson in learned.lessons}
    templates = live_nodes.templates(policy)
    # Most types have neither a node nor a lesson.
    for kind in sorted((nodes_of.keys() | lessons.keys()) & templates.keys()):
        (offering, revision), lesson = templates[kind], lessons.get(kind)
        since = lesson.revised if lesson is not None and lesson.revision == revision else 0.0
        nodes = settled_nodes(nodes_of.get(kind, ()), offering, arriving, since=since, now=now)
        shown = live_nodes.shown(kind, offering, nodes) if nodes else None
        learned = learned_templates.step(
            learned, learned_templates.NodeObservation(*kind, now, revision, without_lone_taints(shown, nodes))
        )
    return learned


def settled_nodes(
    nodes: Sequence[Node], offering: Offering, arriving: Mapping[str, float], *, since: float, now: float
) -> tuple[Node, ...]:
    """Return the ``nodes`` to learn from: created after ``since``, with all labels and devices."""
    fresh = (node for node in nodes if node.created >= since and is_complete(node, offering.allocatable) and not is_broken(node, offering))
    ready = (node for node in fresh if is_settled(node, arriving.get(node.name), now))
    return tuple(node for node, _ in zip(ready, range(ASKED), strict=False))


def is_settled(node: Node, ready: float | None, now: float) -> bool:
    """Whether a node has all its labels: it is open and old enough, or its closed machine became ``ready`` long enough ago."""
    if ready is None:
        return now >= node.created + SETTLED_SECONDS
    return 0.0 < ready <= now - LABELS_SECONDS


def without_lone_taints(shown: TemplateDifferences | None, nodes: Sequence[Node]) -> TemplateDifferences | None:
    """Return ``shown`` without taints that only one node shows: a person may have set them temporarily, on that node only."""
    if shown is None or len(nodes) > 1 or not shown.taints:
        return shown
    return TemplateDifferences(
        shown.labels, (), shown.untainted, shown.resources, tuple(word for word in shown.words if "in no tag" not in word)
    )
