"""Events that clouds schedule for machines, as agents on the nodes report them: the same as the cloud's own announcements, but per node.

An annotation concerns only the node that has it, and an agent's page only the node that the agent runs on. Either counts as long as it is
there: an agent removes the event once the cloud cancels it.
"""

from collections.abc import Iterator, Mapping, Set

from msgspec import Struct

from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.nodes import Node
from gpuscaler.model.scheduled_events import INTERRUPTIONS, RESTARTS, TERMINATE, ScheduledEvent

#: How long an event counts after its time, in seconds. Azure's take ten minutes, and an agent that no longer runs removes nothing.
STALE_SECONDS = 3600.0
#: The reason for a removal before an event of kind Terminate.
TERMINATED = "the cloud is about to terminate it"


class NodeEvents(Struct, frozen=True, gc=False):
    """What nodes announce: times by machine id, 0 if unknown, and reasons. ``reported`` are the ids of reported events, by machine id."""

    taken_away_at: Mapping[str, float] = {}
    maintenance_at: Mapping[str, float] = {}
    why: Mapping[str, str] = {}
    remarks: tuple[Remark, ...] = ()
    reported: Mapping[str, str] = {}


def observe(
    reported: Mapping[str, str], index: MachineIndex, foreign: Set[str], now: float, *, pages: Mapping[str, ScheduledEvent] | None = None
) -> NodeEvents:
    """Return what the nodes of machines that are not ``foreign`` announce at ``now``; ``reported`` were reported before.

    ``pages`` are events of nodes, by name, that stand on an agent's page and not on the node.

    A machine that only pauses is left alone: that costs its pods less than a restart elsewhere.
    """
    if not (index.announcing or pages):
        return NodeEvents()
    taken_away_at: dict[str, float] = {}
    maintenance_at: dict[str, float] = {}
    why: dict[str, str] = {}
    remarks: list[Remark] = []
    now_reported: dict[str, str] = {}
    for node, event in _announced(index, pages or {}):
        machine = node.provider_id
        if machine in foreign and reported.get(machine) == event.id:
            # A machine of ours, after a restart and before the cloud has listed it again: the event is not reported twice.
            now_reported[machine] = event.id
        if machine in foreign or (event.at and now > event.at + STALE_SECONDS):
            continue
        shared = len(index.by_machine[machine]) > 1
        if shared or event.kind not in INTERRUPTIONS:
            now_reported[machine] = event.id
            if reported.get(machine) != event.id:
                remarks.append(_remark(node, event, shared=shared, now=now))
        if shared:
            continue
        if event.kind in INTERRUPTIONS:
            taken_away_at[machine] = event.at
            if event.kind == TERMINATE:
                why[machine] = TERMINATED
        elif event.kind in RESTARTS:
            maintenance_at[machine] = event.at
    return NodeEvents(taken_away_at, maintenance_at, why, tuple(remarks), now_reported)


def _announced(index: MachineIndex, pages: Mapping[str, ScheduledEvent]) -> Iterator[tuple[Node, ScheduledEvent]]:
    for node in index.announcing:
        if node.scheduled_event is not None:
            yield node, node.scheduled_event
    for name, event in pages.items():
        node_of_page = index.nodes.get(name)
        if node_of_page is not None and node_of_page.provider_id and node_of_page.scheduled_event is None:
            yield node_of_page, event


def _remark(node: Node, event: ScheduledEvent, *, shared: bool, now: float) -> Remark:
    if shared:
        outcome = "another node has the same spec.providerID, so it is ignored"
    else:
        outcome = "it is drained before that" if event.kind in RESTARTS and event.at > now else "no action is taken"
    word = f"the {event.kind}" if event.kind in INTERRUPTIONS else f"maintenance ({event.kind})"
    return Remark(node.provider_id, node.name, f"the cloud announces {word} of machine {node.provider_id}; {outcome}")
