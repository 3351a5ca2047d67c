"""Scale-down: chooses candidates, removals and replacements, and gives the blocker of every node that stays."""

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace

from gpuscaler.planning.scale_down.blockers import Blocker, is_arriving, promised_nodes
from gpuscaler.planning.scale_down.budgets import IDLE, Allowances
from gpuscaler.planning.scale_down.candidates import Candidate, CandidateCache, Survey, survey
from gpuscaler.planning.scale_down.consolidation.back_to_spot import SpotReturns
from gpuscaler.planning.scale_down.consolidation.delete import Deletion, delete
from gpuscaler.planning.scale_down.consolidation.no_room import in_use_blockers
from gpuscaler.planning.scale_down.consolidation.replace import replace_machines
from gpuscaler.planning.scale_down.contract import ScaleDownResult, Situation
from gpuscaler.planning.scale_down.decided import RemovalDecisions
from gpuscaler.planning.scale_down.disruption import Disruption
from gpuscaler.planning.scale_down.headroom import headroom_nodes
from gpuscaler.planning.scale_down.idle_timeout import clock_blocker, idle_reason
from gpuscaler.planning.scale_down.moves.bulk_affinity import displaced, first_rows, split_by_domain
from gpuscaler.planning.scale_down.moves.destinations import Destinations
from gpuscaler.planning.scale_down.moves.possible_rooms import PossibleRooms
from gpuscaler.planning.scale_down.moves.rules import PeerRuleIndex, move_rules
from gpuscaler.planning.scale_down.pod_classes import RunningClass, first_key, pods_of
from gpuscaler.planning.scale_down.reserved_room import reserve_room
from gpuscaler.planning.scale_down.savings import value_blocker


def scale_down(situation: Situation, memory: CandidateCache | None = None) -> ScaleDownResult:
    """Decide what may be removed in ``situation``. Pure; the order of objects in the cluster does not matter.

    ``memory`` comes from earlier calls for the same policy: it saves work and does not change the result.
    """
    memory = memory or CandidateCache()
    memory.inspect(situation)
    leaving = memory.leaving | (situation.state.disrupting & memory.inspections.keys())
    situation = reserve_room(situation, leaving)
    first = survey(situation, memory)
    decisions = RemovalDecisions(Allowances(situation, leaving), blocked=dict(first.blocked))
    due = []
    for candidate in first.idle:
        blocker = clock_blocker(situation, candidate)
        if blocker is None:
            due.append(candidate)
        else:
            decisions.blocked[candidate.name] = blocker
    kept = headroom_nodes(situation, frozenset(decisions.blocked), leaving)
    remove_idle(situation, decisions, due, kept)
    consolidate(situation, decisions, first, kept, leaving)
    return decisions.result()


def remove_idle(situation: Situation, decisions: RemovalDecisions, due: Sequence[Candidate], kept: Mapping[str, Blocker]) -> None:
    """Remove the idle machines that have been idle for long enough, most expensive first."""
    for candidate in sorted(due, key=lambda c: (-c.price, c.name)):
        blocker = kept.get(candidate.name) or decisions.allowances.refusal(candidate.member.pool, IDLE)
        if blocker is not None:
            decisions.blocked[candidate.name] = blocker
            continue
        decisions.allowances.take(candidate.member.pool)
        decisions.remove(candidate, idle_reason(situation, candidate), saving=candidate.price)


def consolidate(situation: Situation, decisions: RemovalDecisions, first: Survey, kept: Mapping[str, Blocker], leaving: Set[str]) -> None:
    """Remove machines if their pods fit elsewhere, or on cheaper machines that are bought for them."""
    if not situation.state.consolidating:
        decisions.blocked.update({candidate.name: NOT_NOW for candidate in first.busy if candidate.name not in decisions.blocked})
        return
    if not first.busy:
        return
    classes = [running_class for running_class in first.classes if running_class.spec.priority >= situation.policy.priority_cutoff]
    rules = move_rules(classes, PeerRuleIndex(situation.cluster, first.classes), displaced(first.busy, classes, situation.room))
    needed = frozenset(running_class for running_class in classes if rules[running_class].needed)
    disruption = decisions.allowances.disruption
    movable: list[Candidate] = []
    for candidate in first.busy:
        blocker = kept.get(candidate.name) or value_blocker(situation, candidate) or anchor_blocker(candidate, needed)
        blocker = blocker or disruption.blocker(pods_of(candidate.load))
        if blocker is None:
            movable.append(with_replicas(candidate, disruption))
        else:
            decisions.blocked[candidate.name] = blocker
    if not movable:
        return
    destinations = Destinations.on_nodes(situation, open_nodes(situation, first, decisions, kept.keys() | leaving))
    movable, local = split_by_domain(movable, rules)
    class_rows = first_rows(movable)
    moving = sorted(class_rows.keys() & local.keys(), key=lambda running_class: running_class.order)
    rooms = PossibleRooms.of(
        situation, moving, {candidate.name for candidate in movable} | {removal.node for removal in decisions.removals}
    )
    work = Deletion(situation, decisions, destinations, moving, local, class_rows, rooms)
    fleet, emptied = delete(work, movable)
    replace_machines(work, fleet, emptied)
    for name, blocker in in_use_blockers(fleet, emptied, destinations.targets).items():
        decisions.blocked.setdefault(name, blocker)
    for name, note in SpotReturns(situation).notes(movable).items():
        if name in decisions.blocked:
            blocker = decisions.blocked[name]
            decisions.blocked[name] = Blocker(blocker.word, f"{blocker.detail}; {note}")


def with_replicas(candidate: Candidate, disruption: Disruption) -> Candidate:
    """``candidate`` with its ready replicas added to its evictions, so that two replicas of one owner are not both moved."""
    replicas = disruption.evictions(pods_of(candidate.load))
    return replace(candidate, evictions={**candidate.evictions, **replicas}) if replicas else candidate


def anchor_blocker(candidate: Candidate, anchors: frozenset[RunningClass]) -> Blocker | None:
    """The blocker of a candidate with pods that affinity or spread rules of pending pods refer to: the plan relies on their place."""
    if anchors.isdisjoint(candidate.load):
        return None
    pods = [pod for running_class, pods in candidate.load.items() if running_class in anchors for pod in pods]
    return Blocker("needed", f"pending pods have affinity or spread rules that select pod {first_key(pods)}")


def open_nodes(situation: Situation, first: Survey, decisions: RemovalDecisions, closed: Set[str]) -> list[str]:
    """Nodes that moved pods may go to: ready, not arriving, not refusing pods, and not ``closed`` because they leave or are headroom.

    An idle machine whose clock still runs is not among them: filling it again would only swap one machine for another and disrupt pods.
    """
    promised = promised_nodes(situation)
    refusing = frozenset[str]().union(*situation.state.refusing.values())
    fading = {candidate.name for candidate in first.idle if decisions.blocked.get(candidate.name, LEAVES).word != "minimum-size"}
    return [
        node.name
        for node in situation.cluster.nodes.values()
        if node.ready
        and not node.unschedulable
        and not is_arriving(node, situation.members.get(node.name))
        and node.name not in promised
        and node.name not in closed
        and node.name not in fading
        and node.name not in refusing
    ]


#: Stands for "no blocker".
LEAVES = Blocker("", "")
#: For a machine with pods that may be moved, in a plan that does not consolidate.
NOT_NOW = Blocker("in-use", "pods run on it; whether they fit elsewhere was checked a short while ago")
