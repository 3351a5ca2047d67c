"""What is remembered between plans, as plain data folded from events; a caller without memory passes ``State()``.

What a cloud refused is folded in :mod:`~gpuscaler.planning.state.breakers`; what that means for :class:`State` at a moment is said by
:mod:`~gpuscaler.planning.state.askable_offerings`.
"""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.breakers import Breakers


class Upcoming(Struct, frozen=True, gc=False):
    """A machine that was bought and is not open yet (the ledger's entry).

    ``id`` names it in plans. ``node`` is the name of its Node object once it has registered; such a node is planned as this offering
    promises, not as it shows, until it leaves the ledger. ``choices`` are all the (instance type, market, zone) it may become.
    ``behind`` are what else was asked for in its place, as long as nobody knows what was granted. ``pods`` are the pods it was bought for
    ("namespace/name"). Where it is ``unproven``, no pod is to wait for it: it counts, and nobody is planned onto it.
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
    """A machine of ``offering``, once the node ``node``, that its cloud is ending since that node was not Ready."""

    node: str
    offering: OfferingKey


class State(Struct, frozen=True, gc=False):
    """``idle_seconds``: how long each node has been observed idle; a node that is missing here has an unknown idle time.

    ``blocked_offerings``: keys of offerings whose breaker is open; ``half_open_offerings``: those whose breaker is half-open, each of which
    may be asked once before the answer; ``probed_offerings``: those of them of which one machine may be asked for;
    ``unsettled_offerings``: those that nothing is moved to, since they were refused or reclaimed a short while ago;
    ``paused_offerings``: those that broke their promises to pods, by the digest of the specification of the pods they are not bought for.
    ``refusing``: nodes that did not take pods which fit there by all we know, by the digest of the specification of the pods that avoid
    them. ``hunting``: pods that are unschedulable since this moment or longer take no spot now that would have to be tried first,
    but of ``proven_offerings``: those of spot that were granted lately and not refused since. ``restless``: pools to whose spot nothing
    that runs goes back before a moment, since it was taken back there lately.
    ``bought_last_minute``: machines bought in the last 60 s. ``disrupting``: node names whose removal is under way. ``broken_promises``:
    pods ("namespace/name") that a node was promised to and that the scheduler did not bind there; a nomination no longer holds them.
    ``spared``: nodes whose removal came to nothing a short while ago, and why. ``vanishing``: nodes that leave because their machines are
    taken away, whose pods need room before they have to go. ``unlisted``: nodes whose machines the cloud does not list as this cluster's:
    they are members of no pool, and count for nothing.
    ``progress``: seconds of its work that a waiting pod with a deadline need not do again. ``breakers`` is what the blocked offerings are
    explained by. ``consolidating``: whether to look if pods that run would fit better elsewhere, the dearest part of a plan, which whoever
    plans at every change need not ask for each time; idle machines go all the same. ``buying_held`` and ``removing_held``: why nothing is
    bought, or nothing removed, while a person holds it; empty while it may be. ``ending``: machines that count for limits and dollars until
    they are gone, and whose places under the maximum of their pools are free.
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
