"""Karpenter's disruption controller: one command at a time, validated for a while before it is carried out.

Source: sigs.k8s.io/karpenter v1.15.0, ``pkg/controllers/disruption`` (controller.go, emptiness.go, validation.go, helpers.go) and
``pkg/controllers/state`` (``MarkUnconsolidated``, nominations). Empty nodes come first, then several nodes at once, then one. Nodes that
wait for their replacement count against disruption budgets. After a search without result, the next one waits until something changes.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from gpuscaler.model.table import Mask
from gpuscaler.simulation.policies.peers.claims import OfferingTable
from gpuscaler.simulation.policies.peers.consolidation import Candidate, Command, Consolidation, candidate_of, totals_of
from gpuscaler.simulation.policies.peers.settings import KarpenterSettings
from gpuscaler.simulation.policies.peers.trials import Trial
from gpuscaler.simulation.world.autoscaler import Moment, ObservedMachine, View

NEVER = math.inf
EMPTY = "empty"


class Disruption:
    """Decides which nodes to remove. ``available`` says which offerings of each table may be asked at a time."""

    def __init__(self, tables: Sequence[OfferingTable], rules: KarpenterSettings, available: Callable[[float], Sequence[Mask]]) -> None:
        self._tables = tables
        self._rules = rules
        self._available = available
        #: The command being validated, and when its validation ends.
        self._command: Command | None = None
        self._validated_at = NEVER
        self._poll_at = NEVER
        #: Nodes by their pools, those of them that may be empty, and those that wait for their replacement.
        self._nodes: dict[str, str] = {}
        self._idle: dict[str, None] = {}
        self._going: set[str] = set()
        #: Nodes that a round of provisioning promised to pods, with the time; nodes that a command sends pods to, and until when.
        self._nominated: Collection[str] = ()
        self._last_round = -NEVER
        self._targets: dict[str, float] = {}
        #: The pods of a node when it was last observed, and when that set had changed.
        self._pods: dict[str, tuple[frozenset[str], float]] = {}
        #: Whether anything has changed since a search without result, and when to search again if nothing does.
        self._changed = True
        self._search_again_at = -NEVER

    @property
    def at(self) -> float:
        """Return when to decide next."""
        return min(self._validated_at, self._poll_at)

    def provisioned(self, nominated: Collection[str], now: float) -> None:
        """Record that a round of provisioning has promised these nodes to pods."""
        self._nominated, self._last_round = nominated, now

    def observe(self, moment: Moment, view: View) -> None:
        """Track which nodes exist, and when to search."""
        for name in (*moment.removed, *(lost.machine.id for lost in moment.lost)):
            for index in (self._nodes, self._idle, self._pods):
                index.pop(name, None)
        for name in moment.registered:
            observed = view.node(name)
            if observed is not None:
                self._nodes[name] = observed.offering.pool
        self._idle.update(dict.fromkeys((*moment.opened, *moment.idled)))
        emptied = moment.opened or moment.idled or moment.removed or (moment.finished and self._nominated)
        changed = emptied or moment.arrived or moment.finished or moment.evicted or moment.registered or moment.lost
        self._changed |= bool(changed)
        if emptied or (changed and self._may_consolidate(view)):
            self._poll_at = min(self._poll_at, moment.now + self._rules.poll)

    def decide(self, view: View, now: float, *, synced: bool) -> Command | None:
        """Return a command to carry out now. While NodeClaims are launching (not ``synced``), only empty nodes are considered."""
        command = None
        if now >= self._validated_at:
            command = self._validate(view, now)
        if now >= self._poll_at:
            self._select_nodes(view, now, synced=synced)
        return command

    def _may_consolidate(self, view: View) -> bool:
        return self._rules.consolidation_policy != "WhenEmpty" and next(iter(view.movable()), None) is not None

    def _select_nodes(self, view: View, now: float, *, synced: bool) -> None:
        """Pick the nodes to remove next, as many as the budgets allow."""
        self._poll_at = NEVER
        if self._command is not None:
            return
        long_empty, later = self._long_empty(view, now)
        chosen = self._within_budgets(long_empty, view)
        if chosen:
            self._start_validation(Command(tuple(chosen), EMPTY), now)
        elif self._may_consolidate(view):
            later = min(later, self._consolidate(view, now) if synced else now + self._rules.poll)
        self._poll_at = later

    def _start_validation(self, command: Command, now: float) -> None:
        self._command, self._validated_at = command, now + self._rules.validation

    def _validate(self, view: View, now: float) -> Command | None:
        """Return the still valid part of the command after its validation; the next poll searches for more."""
        command, self._command = self._command, None
        self._poll_at = min(self._poll_at, self._validated_at + self._rules.poll)
        self._validated_at = NEVER
        assert command is not None, "a command is being validated"
        if command.why == EMPTY:
            current = [view.node(name) for name in command.nodes]
            return Command(tuple(observed.node for observed in current if observed is not None and not observed.pods), EMPTY)
        recently_changed = self._recently_changed(view, now)
        candidates = {candidate.name: candidate for candidate in self._candidates(view, now, recently_changed)}
        if any(name not in candidates for name in command.nodes):
            return None
        chosen = [candidates[name] for name in command.nodes]
        if len(self._within_budgets((candidate.observed for candidate in chosen), view)) < len(chosen):
            return None
        if not self._consolidation(view, now, recently_changed).is_still_valid(command, chosen):
            return None
        self._targets.update(dict.fromkeys(command.targets, now + self._rules.nomination))
        if command.options:
            self._going.update(command.nodes)
        return command

    # Empty nodes

    def _long_empty(self, view: View, now: float) -> tuple[list[ObservedMachine], float]:
        """Nodes that were empty for long enough, and when the next may be."""
        rules = self._rules
        waiting = bool(view.pending())
        nominated = self._nominated_now(now, waiting=waiting)
        long_empty: list[ObservedMachine] = []
        later = NEVER
        for name in list(self._idle):
            observed = view.node(name)
            if observed is None or observed.pods or observed.idle_since is None:
                del self._idle[name]
            elif observed.ready is None or observed.closed:
                continue
            elif name in nominated:
                # While pods wait for the node, only an event can make it superfluous.
                later = later if waiting else min(later, max(self._last_round + rules.nomination, self._targets.get(name, now)))
            elif observed.idle_since + rules.consolidate_after <= now + 0.001:
                # A moment more: sums of times are rounded, and a node that is checked a microsecond too early would be checked for ever.
                long_empty.append(observed)
            else:
                later = min(later, observed.idle_since + rules.consolidate_after)
        return long_empty, later

    def _nominated_now(self, now: float, *, waiting: bool) -> set[str]:
        """Nodes that count as in use because they were promised to pods."""
        promised = set(self._nominated) if waiting or now < self._last_round + self._rules.nomination else set()
        self._targets = {name: until for name, until in self._targets.items() if until > now}
        return promised | self._targets.keys()

    def _within_budgets(self, machines: Iterable[ObservedMachine], view: View) -> list[str]:
        budgets = self._budgets(view)
        chosen = []
        for observed in machines:
            if budgets[observed.offering.pool] > 0:
                budgets[observed.offering.pool] -= 1
                chosen.append(observed.node)
        return chosen

    def _budgets(self, view: View) -> dict[str, int]:
        """Return how many nodes of each pool may be removed now. Nodes that wait for their replacement count as removed."""
        self._going = {name for name in self._going if (observed := view.node(name)) is not None and observed.closed}
        going = Counter(self._nodes.get(name, "") for name in self._going)
        sizes = Counter(self._nodes.values())
        return {pool: math.ceil(count * self._rules.budget - 1e-9) - going[pool] for pool, count in sizes.items()}

    # Nodes with pods

    def _consolidate(self, view: View, now: float) -> float:
        """Search for a command, and return when to search again if nothing changes."""
        rules = self._rules
        if not self._changed and now < self._search_again_at:
            return self._search_again_at
        recently_changed = self._recently_changed(view, now)
        budgets = self._budgets(view)
        candidates = [
            candidate for candidate in self._candidates(view, now, recently_changed) if budgets[candidate.observed.offering.pool] > 0
        ]
        command = self._consolidation(view, now, recently_changed).find(candidates, budgets) if candidates else None
        if command is not None:
            self._start_validation(command, now)
            return NEVER
        ripens = [at + rules.consolidate_after for name, (_, at) in self._pods.items() if name in recently_changed]
        freed = [until for until in (self._last_round + rules.nomination, *self._targets.values()) if until > now]
        # Karpenter searches again now and then in any case; only the availability of offerings can have changed.
        recheck = NEVER if all(mask.all() for mask in self._available(now)) else now + rules.recheck
        self._changed, self._search_again_at = False, min([recheck, *ripens, *freed])
        return self._search_again_at

    def _consolidation(self, view: View, now: float, recently_changed: Collection[str]) -> Consolidation:
        trial = Trial(view, self._tables, available=self._available(now), closed=recently_changed)
        totals = totals_of(view.machines()) if self._rules.consolidation_policy == "Balanced" else {}
        return Consolidation(trial, self._rules, totals)

    def _candidates(self, view: View, now: float, recently_changed: Collection[str]) -> Iterable[Candidate]:
        """Initialised nodes with movable pods only, without promised pods and without recent changes."""
        nominated = self._nominated_now(now, waiting=bool(view.pending()))
        for name in view.movable():
            observed = view.node(name)
            if observed is not None and observed.ready is not None and name not in nominated and name not in recently_changed:
                yield candidate_of(observed)

    def _recently_changed(self, view: View, now: float) -> set[str]:
        """Nodes that gained or lost a pod less than ``consolidateAfter`` ago, as far as observed."""
        rules = self._rules
        if not rules.consolidate_after:
            return set()
        changed = set()
        for name in self._nodes:
            observed = view.node(name)
            if observed is None or observed.ready is None:
                continue
            pods = frozenset(observed.pods)
            before, at = self._pods.get(name, (frozenset(), observed.ready))
            self._pods[name] = (pods, at if before == pods else now)
            if self._pods[name][1] + rules.consolidate_after > now + 0.001:
                changed.add(name)
        return changed
