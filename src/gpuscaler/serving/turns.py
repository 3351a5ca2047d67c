"""Fair turns among peers: work for unauthenticated peers starts at an even rate, and the order does not depend on who sends most.

A connection takes a turn before TLS or HTTP starts, and each further request takes another. A flood of either uses up turns, and only as
much processor time as these turns allow. Every second turn goes to the waiting peer that has been answered for longest (a known peer), so
that known peers do not wait behind new ones. The other turns go to the peer with the fewest recent turns, and among several to the one
that came last, so that a new peer does not wait behind a crowd. Independent of sockets and HTTP.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

#: Seconds for which a peer that was answered stays known, and the maximum number of peers that are remembered.
KNOWN, MOST = 3600.0, 2048
#: Seconds between two sweeps that forget peers.
SWEEP = 1.0
_NEVER = float("inf")

#: Uses the turn; returns False if it is no longer wanted, so that the next one gets it.
Go = Callable[[], bool]


@dataclass(slots=True)
class TurnRate:
    """A rate limit of ``rate`` turns per second, ``at_once`` in a row. ``due`` is when the last turn was due at an even rate."""

    rate: float
    at_once: int
    due: float = 0.0

    def free_at(self) -> float:
        """Return the time from which a turn is available."""
        return self.due - (self.at_once - 1) / self.rate

    def take(self, now: float) -> None:
        self.due = max(self.due, now) + 1 / self.rate


@dataclass(slots=True, eq=False)
class _Peer:
    pace: TurnRate
    #: When it was first and last answered.
    since: float = _NEVER
    seen: float = -_NEVER
    #: When it last took a turn.
    took: float = -_NEVER
    waiting: dict[Go, None] = field(default_factory=dict)
    #: When it started to wait.
    asked: float = 0.0


@dataclass(slots=True)
class Turns:
    """Gives turns to peers. ``total`` limits their sum, ``make_limit`` makes a peer's limit.

    ``wake`` gets the time of the next :meth:`give`.
    """

    clock: Callable[[], float]
    total: TurnRate
    make_limit: Callable[[], TurnRate]
    wake: Callable[[float], object] = field(default=lambda _at: None, init=False)
    _peers: dict[str, _Peer] = field(default_factory=dict, init=False)
    _waiting: dict[str, _Peer] = field(default_factory=dict, init=False)
    _woken_at: float = field(default=_NEVER, init=False)
    _swept_at: float = field(default=-_NEVER, init=False)
    _given: int = field(default=0, init=False)

    def ask(self, peer: str, go: Go) -> None:
        """Request a turn for ``peer``: ``go`` is called now or later, unless :meth:`withdraw` cancels it."""
        state = self._waiting.get(peer) or self._peers.get(peer)
        if state is None:
            state = _Peer(self.make_limit())
            self._remember(peer, state)
        if peer not in self._waiting:
            self._waiting[peer], state.asked = state, self.clock()
        state.waiting[go] = None
        self.give()

    def withdraw(self, peer: str, go: Go) -> None:
        state = self._waiting.get(peer)
        if state is not None:
            state.waiting.pop(go, None)
            if not state.waiting:
                del self._waiting[peer]

    def give(self) -> None:
        """Give all available turns, and request a wake-up for the next."""
        now = self.clock()
        # Differences below a microsecond are rounding errors.
        soon = now + 1e-6
        if self._woken_at <= soon:
            self._woken_at = _NEVER
        while self._waiting and self.total.free_at() <= soon and self._give_one(now, soon):
            pass
        if self._waiting and self._woken_at > soon:
            at = self.total.free_at()
            if at <= soon:
                at = min(peer.pace.free_at() for peer in self._waiting.values())
            if at < self._woken_at:
                self._woken_at = at
                self.wake(at)

    def answered(self, peer: str) -> None:
        """Record that ``peer`` got an answer; it is a known peer from now on."""
        state, now = self._peers.get(peer), self.clock()
        if state is not None:
            if not _is_known(state, now):
                state.since = now
            state.seen = now

    def knows(self, peer: str) -> bool:
        """Whether ``peer`` was answered within the hour."""
        state = self._peers.get(peer)
        return state is not None and _is_known(state, self.clock())

    def has_had_turn(self, peer: str) -> bool:
        """Whether ``peer`` took a turn within the hour."""
        state = self._peers.get(peer)
        return state is not None and state.took + KNOWN > self.clock()

    def _give_one(self, now: float, soon: float) -> bool:
        """Give the next turn; False if there is no taker. Requests of closed connections, which a flood leaves behind, are skipped."""
        for peer in self._order(now, soon):
            state = self._waiting[peer]
            while state.waiting:
                go = next(iter(state.waiting))
                self.withdraw(peer, go)
                if go():
                    state.pace.take(now)
                    state.took = now
                    self.total.take(now)
                    self._given += 1
                    return True
        return False

    def _order(self, now: float, soon: float) -> list[str]:
        """Return the peers within their rate limit, in the order of their turns."""
        by_age = self._given % 2 == 0

        def key(peer: str) -> tuple[float, float]:
            state = self._waiting[peer]
            since = state.since if _is_known(state, now) else _NEVER
            return (since, state.pace.due) if by_age else (state.pace.due, -state.asked)

        return sorted((peer for peer, state in self._waiting.items() if state.pace.free_at() <= soon), key=key)

    def _remember(self, peer: str, state: _Peer) -> None:
        now = self.clock()
        if len(self._peers) >= MOST and now >= self._swept_at + SWEEP:
            self._swept_at = now
            self._peers = {
                name: known for name, known in self._peers.items() if known.waiting or known.pace.due > now or _is_known(known, now)
            }
        # If all remembered peers matter, the newest is not remembered and only the common rate limit applies to it.
        if len(self._peers) < MOST:
            self._peers[peer] = state


def _is_known(peer: _Peer, now: float) -> bool:
    return peer.seen + KNOWN > now
