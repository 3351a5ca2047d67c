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

    ``id`` names it in plans. ``node`` is the name of its Node object once it has registered; until it leaves the ledger, such a node is
    planned with the resources that its offering promises, not those that it shows. ``choices`` are all the (instance type, market, zone)
    it may become. ``behind`` are the fallbacks that were requested in its place, as long as it is unknown what was granted. ``pods`` are
    the pods it was bought for ("namespace/name"). An ``unproven`` machine counts for limits, but no pods are planned onto it.
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
        """All offerings that it may turn out to be."""
        return [OfferingKey(self.pool, market, kind, zone) for kind, market, zone in self.choices] or [self.key]


class Ending(Struct, frozen=True, gc=False):
    """A machine of ``offering`` that the cloud is ending because its node ``node`` was not Ready."""

    node: str
    offering: OfferingKey


class State(Struct, frozen=True, gc=False):
    """The memory of the planner between plans.

    ``idle_seconds``: how long each node has been observed idle; the idle time of a node that is missing here is unknown.

    ``blocked_offerings``: keys of offerings whose breaker is open. ``half_open_offerings``: those whose breaker is half-open; each may be
    requested once before the answer. ``probed_offerings``: those of them of which only one machine may be requested.
    ``unsettled_offerings``: those that running pods are not moved to, because they were refused or reclaimed a short while ago.
    ``paused_offerings``: those that broke their promises to pods, by the digest of the specification of the pods they are not bought for.
    ``refusing``: nodes that did not take pods which should fit there, by the digest of the specification of the pods that avoid them.
    ``hunting``: pods that have been unschedulable since this moment or longer take no spot now that would have to be tried first; they may
    use ``proven_offerings``: spot offerings that were granted recently and not refused since. ``restless``: pools in which spot was
    reclaimed recently, with the time before which no running pods are moved back to their spot.

    ``bought_last_minute``: machines bought in the last 60 s. ``disrupting``: names of nodes whose removal is in progress.
    ``broken_promises``: pods ("namespace/name") that were promised a node and that the scheduler did not bind there; their nomination no
    longer counts. ``spared``: nodes whose removal failed a short while ago, and why. ``vanishing``: nodes whose machines are being taken
    away; their pods need room elsewhere before that. ``unlisted``: nodes whose machines the cloud does not list for this cluster: they
    belong to no pool and count for nothing.

    ``progress``: the part of its work, in seconds, that a pending pod with a deadline does not have to repeat. ``breakers`` explain the
    blocked offerings. ``consolidating``: whether to check if running pods would fit better elsewhere; this is the most expensive part of
    a plan, so a caller that plans at every change need not request it each time. Idle machines are removed regardless. ``buying_held``
    and ``removing_held``: why a hold stops buying or removing; empty without a hold. ``ending``: machines that count for limits and
    dollars until they are gone, but no longer for the maximum of their pools.
    """

    upcoming: tuple[Upcoming, ...] = ()
    idle_seconds: Mapping[str, float] = {}
    blocked_offerings: frozenset[OfferingKey] = frozenset()
    half_open_offerings: frozenset[OfferingKey] = frozenset()
    probed_offerings: frozenset[OfferingKey] = frozenset()
    unsettled_offerings: frozenset[OfferingKey] = frozenset()
    paused_offerings: Mapping[str, frozenset[OfferingKey]] = {}
    refusing: Mapping[str, frozenset[str]] = {}
    hunting: float | None = None
    proven_offerings: frozenset[OfferingKey] = frozenset()
    restless: Mapping[str, float] = {}
    bought_last_minute: int = 0
    disrupting: frozenset[str] = frozenset()
    spared: Mapping[str, str] = {}
    vanishing: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    broken_promises: frozenset[str] = frozenset()
    progress: Mapping[str, float] = {}
    breakers: Breakers = Breakers()
    consolidating: bool = True
    buying_held: str = ""
    removing_held: str = ""
    ending: tuple[Ending, ...] = ()
    unbalancing: Mapping[OfferingKey, str] = {}
