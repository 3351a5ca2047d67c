"""A model of Karpenter on AWS, as a policy of a replay.

Sources: sigs.k8s.io/karpenter v1.15.0 (``pkg/controllers/provisioning``, ``disruption``, ``nodeclaim/lifecycle``) and its AWS provider
(``pkg/providers/instance``, ``pkg/cache``). The model has:

- batches of pending pods;
- packing into NodeClaims (see :mod:`~gpuscaler.simulation.policies.peers.claims`);
- one CreateFleet request per NodeClaim, answered at once;
- offerings with a capacity error are left out for a while;
- machines that do not register are deleted;
- empty nodes are removed within the disruption budget after their validation;
- interrupted spot machines are drained at the notice.

Pods of traces count as annotated ``karpenter.sh/do-not-disrupt``, as recommended to users of batch jobs, so that no running pod is
consolidated away and no work is lost that way: the peer at its best.

Not modelled: reserved capacity, drift, expiry (default 30 days), and that the fleet may pick a more expensive spot pool because it is
deeper.
"""

import math
from collections.abc import Sequence

import numpy as np

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.table import Mask
from gpuscaler.planning.plans import PlannedRemoval
from gpuscaler.simulation.cloud.machines import NO_CAPACITY, PurchaseAnswer
from gpuscaler.simulation.policies.peers.books import add_upcoming
from gpuscaler.simulation.policies.peers.claims import Claim, OfferingTable, offering_keys, pack
from gpuscaler.simulation.policies.peers.disruption import Disruption
from gpuscaler.simulation.policies.peers.settings import KarpenterSettings
from gpuscaler.simulation.policies.peers.trials import as_pending
from gpuscaler.simulation.world.autoscaler import Decisions, Intent, Moment, Purchase, View

NEVER = math.inf


class Karpenter:
    """See the module. Pools are NodePools, their priority the weight, their ``max`` a limit on nodes."""

    name = "karpenter"
    steers = False
    soft_taint_shares = ()

    def __init__(self, policy: Policy, settings: KarpenterSettings | None = None) -> None:
        self._settings = settings or KarpenterSettings()
        self._pools = sorted(policy.pools, key=lambda pool: (-pool.priority, pool.name))
        self._tables = [OfferingTable(pool) for pool in self._pools]
        self._claims = 0
        #: Requests that have not been answered: the next round waits for them, as Karpenter waits for its cluster state.
        self._asked: set[str] = set()
        self._unavailable: dict[tuple[str, str, str], float] = {}
        self._disruption = Disruption(self._tables, self._settings, self._available)
        self._batch_began: float | None = None
        self._batch_at = NEVER
        self._last_round = -NEVER
        self._interrupted: list[str] = []
        self._interrupted_at = NEVER
        #: Machines that have not registered, and until when they may.
        self._unregistered: dict[str, float] = {}

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        """A NodePool has no minimum: Karpenter begins with nothing."""
        return ()

    @property
    def decide_at(self) -> float | None:
        batch = NEVER if self._asked else self._batch_at
        deadline = min(self._unregistered.values(), default=NEVER)
        at = min(batch, self._disruption.at, deadline, self._interrupted_at)
        return None if at == NEVER else at

    def observe(self, moment: Moment, view: View) -> None:
        now, rules = moment.now, self._settings
        for answer in moment.answers:
            self._process_answer(answer, now)
        if moment.notices:
            self._interrupted += [notice.machine.id for notice in moment.notices]
            self._interrupted_at = now
        for name in (*moment.registered, *moment.removed, *(lost.machine.id for lost in moment.lost)):
            self._unregistered.pop(name, None)
        self._disruption.observe(moment, view)
        if moment.arrived or moment.evicted:
            self._schedule_batch(now)
        elif moment.answers or moment.lost or moment.removed or moment.registered:
            # Pending pods trigger rounds repeatedly; a round with the same result as the last one changes nothing.
            self._schedule_batch(max(now, self._last_round + rules.retry))

    def decide(self, view: View, now: float) -> Decisions:
        removals = [PlannedRemoval(name, "interrupted: drained at the notice") for name in self._interrupted if view.node(name) is not None]
        self._interrupted.clear()
        self._interrupted_at = NEVER
        removals += self._delete_unregistered(now)
        purchases = self._provision(view, now) if now >= self._batch_at and not self._asked else []
        command = self._disruption.decide(view, now, synced=not self._asked)
        if command is not None:
            needs: tuple[str, ...] = ()
            if command.options:
                purchases.append(self._request_claim(command.options, command.pods, why=f"cheaper than {', '.join(command.nodes)}"))
                needs = tuple(intent.id for intent in purchases[-1].intents)
            removals += [PlannedRemoval(node, command.why, needs=needs) for node in command.nodes]
        return Decisions(purchases=tuple(purchases), removals=tuple(removals))

    def _schedule_batch(self, now: float) -> None:
        """A pending pod opens a batch, or keeps it open a little longer."""
        rules = self._settings
        if self._batch_began is None or self._batch_began > now:
            self._batch_began = now
        self._batch_at = min(self._batch_began + rules.batch_max, max(now, self._batch_began) + rules.batch_idle)

    def _process_answer(self, answer: PurchaseAnswer, now: float) -> None:
        self._asked.discard(answer.purchase)
        for machine in answer.machines:
            self._unregistered[machine.id] = now + self._settings.registration
        for refusal in answer.refusals:
            if refusal.kind == NO_CAPACITY:
                self._unavailable[refusal.offering[1:]] = now + self._settings.unavailable

    def _delete_unregistered(self, now: float) -> list[PlannedRemoval]:
        """Delete machines that should have registered by now; their pods are packed again."""
        overdue = [name for name, until in self._unregistered.items() if until <= now]
        for name in overdue:
            del self._unregistered[name]
        return [PlannedRemoval(name, f"did not register within {self._settings.registration:g} s") for name in overdue]

    # Provisioning

    def _provision(self, view: View, now: float) -> list[Purchase]:
        self._batch_began, self._batch_at, self._last_round = None, NEVER, now
        room, machines = view.room(), list(view.machines())
        going: dict[str, PodSpec] = {}
        for observed in machines:
            if observed.closed:
                going.update(observed.pods)
            elif observed.ready is None:
                add_upcoming(room, observed)
        left_in_pool = {pool.name: pool.max for pool in self._pools}
        for observed in machines:
            limit = left_in_pool[observed.offering.pool]
            left_in_pool[observed.offering.pool] = None if limit is None else limit - 1
        # The pods of nodes that wait for their replacement take room on it; otherwise the next round would give it to others.
        waiting = [*view.pending(), *as_pending(going)]
        packed = pack(waiting, room, self._tables, available=self._available(now), left_in_pool=left_in_pool)
        self._disruption.provisioned(set(packed.placed.values()), now)
        self._retry_when_available(packed.unplaced, now)
        return [self._launch(claim) for claim in packed.claims]

    def _launch(self, claim: Claim) -> Purchase:
        return self._request_claim(claim.options(), claim.pods, why=f"{len(claim.pods)} pending pods fit no node")

    def _request_claim(self, options: Sequence[Offering], pods: Sequence[str], *, why: str) -> Purchase:
        """Return the purchase of a NodeClaim."""
        self._claims += 1
        name = f"nodeclaim-{self._claims}"
        self._asked.add(name)
        return Purchase(name, offering_keys(options), intents=(Intent(name, tuple(pods)),), why=why)

    def _available(self, now: float) -> list[Mask]:
        """Which offerings of each table may be asked."""
        unavailable = {offering for offering, until in self._unavailable.items() if until > now}
        if not unavailable:
            return [np.ones(len(table.offerings), dtype=np.bool_) for table in self._tables]
        return [table.available(lambda offering: offering.key[1:] not in unavailable) for table in self._tables]

    def _retry_when_available(self, unplaced: list[str], now: float) -> None:
        """Retry pods without a place when an offering may be asked again."""
        available_at = [until for until in self._unavailable.values() if until > now]
        if unplaced and available_at:
            self._batch_began, self._batch_at = min(available_at), min(available_at)
