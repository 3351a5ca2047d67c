"""A model of Karpenter on AWS, as a policy of a replay.

Sources: sigs.k8s.io/karpenter v1.15.0 (``pkg/controllers/provisioning``, ``disruption``, ``nodeclaim/lifecycle``) and its AWS provider
(``pkg/providers/instance``, ``pkg/cache``). What is modelled: batches of pending pods; packing into NodeClaims (see
:mod:`~gpuscaler.simulation.peers.claims`); one CreateFleet request a NodeClaim, answered at once; offerings that gave a capacity error are
left out for a while; machines that do not register are given up; empty nodes are removed within the disruption budget after their
validation; interrupted spot machines are drained at the notice. Pods of traces count as annotated ``karpenter.sh/do-not-disrupt``, as
users of batch jobs are told to do, so that no running pod is consolidated away and no work is lost that way: the peer at its best.

Not modelled: reserved capacity, drift, expiry (default 30 days), and that the fleet may pick a dearer spot pool because it is deeper.
"""

import math
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.clouds.machines import NO_CAPACITY, Answer
from gpuscaler.clouds.markets import Key
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.plans import Removal
from gpuscaler.simulation.autoscaler import Decisions, Intent, Moment, Purchase, Seen, View
from gpuscaler.simulation.peers.books import expect
from gpuscaler.simulation.peers.claims import Claim, Shelf, keys, pack

NEVER = math.inf


class KarpenterSettings(Struct, frozen=True, gc=False):
    """Karpenter's own settings, in seconds, with its defaults.

    ``batch_idle`` and ``batch_max`` are BATCH_IDLE_DURATION and BATCH_MAX_DURATION; pending pods trigger again every ``retry``.
    A node that a round promised to pods counts as in use for ``nomination`` after it, and as long as pods wait.
    ``consolidate_after`` and ``budget`` (a share of the pool's nodes, rounded up) are a NodePool's; nodes are looked at every ``poll`` and
    removed ``validation`` later. An offering without capacity is left out for ``unavailable``; a NodeClaim has ``registration`` to
    register.
    """

    batch_idle: float = 1.0
    batch_max: float = 10.0
    retry: float = 10.0
    nomination: float = 20.0
    consolidate_after: float = 0.0
    budget: float = 0.10
    poll: float = 10.0
    validation: float = 15.0
    unavailable: float = 180.0
    registration: float = 900.0


class Karpenter:
    """See the module. Pools are NodePools, their priority the weight, their ``max`` a limit on nodes."""

    name = "karpenter"
    steers = False

    def __init__(self, policy: Policy, settings: KarpenterSettings | None = None) -> None:
        self._settings = settings or KarpenterSettings()
        self._pools = sorted(policy.pools, key=lambda pool: (-pool.priority, pool.name))
        self._shelves = [Shelf(pool) for pool in self._pools]
        self._claims = 0
        #: Requests that have not been answered: the next round waits for them, as Karpenter waits for its cluster state.
        self._asked: set[str] = set()
        self._unavailable: dict[tuple[str, str, str], float] = {}
        self._nominated: set[str] = set()
        self._batch_began: float | None = None
        self._batch_at = NEVER
        self._last_round = -NEVER
        #: Nodes that are validated before they go, and when that is over: one disruption at a time.
        self._validating: tuple[str, ...] = ()
        self._validated_at = NEVER
        self._poll_at = NEVER
        self._interrupted: list[str] = []
        self._interrupted_at = NEVER
        #: Machines that have not registered, and until when they may.
        self._unregistered: dict[str, float] = {}
        #: Nodes by their pools, and those of them that may be empty.
        self._nodes: dict[str, str] = {}
        self._idle: dict[str, None] = {}

    def start(self) -> tuple[tuple[Key, int], ...]:
        """A NodePool has no minimum: Karpenter begins with nothing."""
        return ()

    @property
    def ask_at(self) -> float | None:
        batch = NEVER if self._asked else self._batch_at
        late = min(self._unregistered.values(), default=NEVER)
        at = min(batch, self._validated_at, self._poll_at, late, self._interrupted_at)
        return None if at == NEVER else at

    def noticed(self, moment: Moment, view: View) -> None:
        now, rules = moment.now, self._settings
        for answer in moment.answers:
            self._answered(answer, now)
        if moment.notices:
            self._interrupted += [notice.machine.id for notice in moment.notices]
            self._interrupted_at = now
        self._follow(moment, view)
        if moment.arrived or moment.evicted:
            self._trigger(now)
        elif moment.answers or moment.lost or moment.given_back or moment.registered:
            # Pods that wait trigger a round again and again; one that finds what the last one found changes nothing.
            self._trigger(max(now, self._last_round + rules.retry))
        if moment.opened or moment.idled or moment.given_back or (moment.finished and self._nominated):
            self._poll_at = min(self._poll_at, now + rules.poll)

    def decide(self, view: View, now: float) -> Decisions:
        removals = [Removal(name, "interrupted: drained at the notice") for name in self._interrupted if view.node(name) is not None]
        self._interrupted.clear()
        self._interrupted_at = NEVER
        removals += self._give_up(now)
        purchases = self._provision(view, now) if now >= self._batch_at and not self._asked else ()
        if now >= self._validated_at:
            removals += self._execute(view)
        if now >= self._poll_at:
            self._disrupt(view, now)
        return Decisions(purchases=tuple(purchases), removals=tuple(removals))

    def _follow(self, moment: Moment, view: View) -> None:
        """Keep track of which nodes there are, and which of them may be empty."""
        for name in (*moment.given_back, *(lost.machine.id for lost in moment.lost)):
            for known in (self._unregistered, self._nodes, self._idle):
                known.pop(name, None)
        for name in moment.registered:
            self._unregistered.pop(name, None)
            seen = view.node(name)
            if seen is not None:
                self._nodes[name] = seen.offering.pool
        self._idle.update(dict.fromkeys((*moment.opened, *moment.idled)))

    def _trigger(self, now: float) -> None:
        """A pending pod opens a batch, or keeps it open a little longer."""
        rules = self._settings
        if self._batch_began is None or self._batch_began > now:
            self._batch_began = now
        self._batch_at = min(self._batch_began + rules.batch_max, max(now, self._batch_began) + rules.batch_idle)

    def _answered(self, answer: Answer, now: float) -> None:
        self._asked.discard(answer.purchase)
        for machine in answer.machines:
            self._unregistered[machine.id] = now + self._settings.registration
        for refusal in answer.refusals:
            if refusal.kind == NO_CAPACITY:
                self._unavailable[refusal.offering[1:]] = now + self._settings.unavailable

    def _give_up(self, now: float) -> list[Removal]:
        """Machines that should have registered by now are deleted; their pods are packed anew."""
        late = [name for name, until in self._unregistered.items() if until <= now]
        for name in late:
            del self._unregistered[name]
        return [Removal(name, f"did not register within {self._settings.registration:g} s") for name in late]

    # Provisioning

    def _provision(self, view: View, now: float) -> list[Purchase]:
        self._batch_began, self._batch_at, self._last_round = None, NEVER, now
        room, machines = view.room(), list(view.seen())
        for seen in machines:
            if seen.ready is None and not seen.closed:
                expect(room, seen)
        left = {pool.name: pool.max for pool in self._pools}
        for seen in machines:
            limit = left[seen.offering.pool]
            left[seen.offering.pool] = None if limit is None else limit - 1
        packed = pack(view.pending(), room, self._shelves, available=lambda offering: self._available(offering, now), left_in_pool=left)
        self._nominated = packed.nominated
        self._retry_when_available(packed.unplaced, now)
        return [self._launch(claim) for claim in packed.claims]

    def _launch(self, claim: Claim) -> Purchase:
        self._claims += 1
        name = f"nodeclaim-{self._claims}"
        self._asked.add(name)
        pods = tuple(claim.pods)
        return Purchase(name, keys(claim.options()), intents=(Intent(name, pods),), why=f"{len(pods)} pending pods fit no node")

    def _available(self, offering: Offering, now: float) -> bool:
        return self._unavailable.get(offering.key[1:], -NEVER) <= now

    def _retry_when_available(self, unplaced: list[str], now: float) -> None:
        """Pods without a place are tried again when an offering may be asked again."""
        coming = [until for until in self._unavailable.values() if until > now]
        if unplaced and coming:
            self._batch_began, self._batch_at = min(coming), min(coming)

    # Disruption

    def _disrupt(self, view: View, now: float) -> None:
        """Pick the empty nodes to remove next, as many as the budgets allow."""
        self._poll_at = NEVER
        if self._validating:
            return
        rules = self._settings
        waiting = bool(view.pending())
        nominated = self._nominated if waiting or now < self._last_round + rules.nomination else set()
        ripe: list[Seen] = []
        later = NEVER
        for name in list(self._idle):
            seen = view.node(name)
            if seen is None or seen.pods or seen.idle_since is None:
                del self._idle[name]
            elif seen.ready is None or seen.closed:
                continue
            elif name in nominated:
                # While pods wait for it, only news can make it superfluous.
                later = later if waiting else min(later, self._last_round + rules.nomination)
            elif seen.idle_since + rules.consolidate_after <= now + 0.001:
                # A moment more: sums of times are rounded, and a node asked for a microsecond too early would be asked for ever.
                ripe.append(seen)
            else:
                later = min(later, seen.idle_since + rules.consolidate_after)
        chosen = self._within_budgets(ripe)
        if chosen:
            self._validating, self._validated_at = tuple(chosen), now + rules.validation
        self._poll_at = later

    def _within_budgets(self, ripe: Iterable[Seen]) -> list[str]:
        left = {pool: math.ceil(count * self._settings.budget - 1e-9) for pool, count in Counter(self._nodes.values()).items()}
        chosen = []
        for seen in ripe:
            if left[seen.offering.pool] > 0:
                left[seen.offering.pool] -= 1
                chosen.append(seen.node)
        return chosen

    def _execute(self, view: View) -> list[Removal]:
        """Remove what is still empty after its validation, and look for more at the next poll."""
        names, self._validating = self._validating, ()
        self._poll_at = min(self._poll_at, self._validated_at + self._settings.poll)
        self._validated_at = NEVER
        still = [view.node(name) for name in names]
        return [Removal(seen.node, "empty") for seen in still if seen is not None and not seen.pods]
