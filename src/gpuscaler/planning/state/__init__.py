"""The state that is kept between plans, as plain data folded from events; a caller without memory passes ``State()``.

Refusals of the cloud are folded in :mod:`~gpuscaler.planning.state.breakers`;
:mod:`~gpuscaler.planning.state.askable_offerings` derives the fields of :class:`State` from them at a given time.
"""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.breakers import Breakers


class Upcoming(Struct, frozen=True, gc=False):
    """A machine that was bought and is not open yet (an entry of the ledger).

    ``id`` identifies it in plans. ``node`` is the name of its Node object once it has registered; until the machine leaves the ledger, this
    node is planned with the resources that its offering promises, not with those that it shows. ``choices`` are the (instance type, market,
    zone) that the plan chose, any of which the machine may turn out to be; ``behind`` are the fallbacks of its order. Both are empty once
    its offering is known. ``pods`` are the pods it was bought for ("namespace/name"). No pods are planned onto an ``unproven`` machine, but
    it counts for limits.
    """

    id: str
    pool: str
    instance_type: str
    market: str
    zone: str
    node: str = ""
    since: float = 0.0
    choices: tuple[tuple[str, str, str], ...] = ()
    behind: tuple[tuple[str, str, str], ...] = ()
    pods: tuple[str, ...] = ()
    unproven: bool = False

    @property
    def key(self) -> OfferingKey:
        return OfferingKey(self.pool, self.market, self.instance_type, self.zone)

    @property
    def keys(self) -> list[OfferingKey]:
        """The chosen offerings that the machine may turn out to be."""
        return [OfferingKey(self.pool, market, kind, zone) for kind, market, zone in self.choices] or [self.key]


class Ending(Struct, frozen=True, gc=False):
    """A machine of ``offering`` that the cloud is ending because its node ``node`` was not Ready."""

    node: str
    offering: OfferingKey


#: The names under which fields of :class:`State` are stored, where they differ.
_STORED_NAMES = {"skip_untried_spot_since": "hunting", "spot_return_blocked_until": "restless", "no_moves_to": "unsettled_offerings"}


class State(Struct, frozen=True, gc=False, rename=_STORED_NAMES):
    """The memory of the planner between plans.

    ``idle_seconds``: how long each node has been observed idle, by node; a missing node has an unknown idle time.

    ``blocked_offerings``: keys of offerings whose breaker is open. ``half_open_offerings``: those whose breaker is half-open; each may be
    requested once before the answer. ``probed_offerings``: the half-open ones of which only one machine may be requested.
    ``no_moves_to``: offerings that running pods are not moved to, because they were refused or reclaimed recently.
    ``paused_offerings``: offerings whose machines did not take the pods they were bought for; they are not bought for pods of that
    specification, whose digest is the key. ``refusing``: nodes that did not take pods which should fit there, by the digest of the
    specification of the pods that avoid them. ``skip_untried_spot_since``: pods pending since before this time buy only spot offerings
    granted recently, ``proven_offerings``, and no untried ones; None if there is no such time. ``spot_return_blocked_until``: pools in
    which spot was reclaimed recently, with the time before which no running pods are moved back to their spot machines.

    ``bought_last_minute``: machines bought in the last 60 s. ``disrupting``: names of nodes whose removal is in progress.
    ``broken_promises``: pods ("namespace/name") that were promised a node and that the scheduler did not bind there; their nomination no
    longer counts. ``promised``: nodes that were opened, or open soon, for pods that are not bound yet, each with one of these pods.
    ``spared``: nodes that are not removed now because a recent removal failed, and why it failed. ``vanishing``: nodes
    whose machines the cloud is taking away; their pods must get a place on other nodes first. ``unlisted``: nodes whose machines the cloud
    does not list for this cluster: they belong to no pool and count for no limit. ``listed``: whether the cloud has listed its machines at
    all; otherwise the ``unlisted`` nodes are those that nothing else shows to be machines of a pool.

    ``progress``: how many seconds of its work a pending pod with a deadline need not repeat. ``breakers`` explain why offerings are
    blocked. ``consolidating``: whether to plan consolidation. This is the most expensive part of a plan, so a caller that plans at every
    change need not request it each time. Idle machines are removed in any case. ``buying_held``
    and ``removing_held``: why a hold stops buying or removing; empty without a hold. ``ending``: machines that count for limits and
    dollars until they are gone, but no longer for the maximum of their pools. ``unbalancing``: offerings that are not bought, and why:
    their group would end a busy machine to balance its zones.
    """

    upcoming: tuple[Upcoming, ...] = ()
    idle_seconds: Mapping[str, float] = {}
    blocked_offerings: frozenset[OfferingKey] = frozenset()
    half_open_offerings: frozenset[OfferingKey] = frozenset()
    probed_offerings: frozenset[OfferingKey] = frozenset()
    no_moves_to: frozenset[OfferingKey] = frozenset()
    paused_offerings: Mapping[str, frozenset[OfferingKey]] = {}
    refusing: Mapping[str, frozenset[str]] = {}
    skip_untried_spot_since: float | None = None
    proven_offerings: frozenset[OfferingKey] = frozenset()
    spot_return_blocked_until: Mapping[str, float] = {}
    bought_last_minute: int = 0
    disrupting: frozenset[str] = frozenset()
    spared: Mapping[str, str] = {}
    vanishing: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    listed: bool = True
    broken_promises: frozenset[str] = frozenset()
    promised: Mapping[str, str] = {}
    progress: Mapping[str, float] = {}
    breakers: Breakers = Breakers()
    consolidating: bool = True
    buying_held: str = ""
    removing_held: str = ""
    ending: tuple[Ending, ...] = ()
    unbalancing: Mapping[OfferingKey, str] = {}
