"""Whose turn it is: work for strangers is begun at an even pace, and whose is next does not depend on who asks most.

A connection that is to go on to TLS or HTTP takes a turn, and each further request over it takes another. Who floods a server with either
uses up turns and no more of the processor than they stand for. Of all who wait every second turn goes to the peer that was answered first
of those who still are, so that old acquaintances wait behind no newcomers; the turns between go to the peer that has had least of them
lately, and of several the one that came last, so that no newcomer waits behind a crowd. Neither sockets nor HTTP are known here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

#: Seconds for which a peer that was answered is an acquaintance, and how many peers are remembered.
KNOWN, MOST = 3600.0, 2048
#: Seconds between two looks for peers that need not be remembered any more.
SWEEP = 1.0
_NEVER = float("inf")

#: Uses the turn; False where nobody wants it any more, so that the next one gets it.
Go = Callable[[], bool]


@dataclass(slots=True)
class Pace:
    """``rate`` turns a second, ``at_once`` in a row. ``due`` is when the last one would have been taken at the even pace."""

    rate: float
    at_once: int
    due: float = 0.0

    def free_at(self) -> float:
        """From when on there is one."""
        return self.due - (self.at_once - 1) / self.rate

    def take(self, now: float) -> None:
        self.due = max(self.due, now) + 1 / self.rate


@dataclass(slots=True, eq=False)
class _Peer:
    pace: Pace
    #: When it was answered first, and last.
    since: float = _NEVER
    seen: float = -_NEVER
    waiting: dict[Go, None] = field(default_factory=dict)
    #: Since when it has waited.
    asked: float = 0.0


@dataclass(slots=True)
class Turns:
    """``all`` is the pace of all peers together, ``one`` makes that of each; ``wake`` is told when :meth:`give` is to be called."""

    clock: Callable[[], float]
    all: Pace
    one: Callable[[], Pace]
    wake: Callable[[float], object] = field(default=lambda _at: None, init=False)
    _peers: dict[str, _Peer] = field(default_factory=dict, init=False)
    _waiting: dict[str, _Peer] = field(default_factory=dict, init=False)
    _woken_at: float = field(default=_NEVER, init=False)
    _swept_at: float = field(default=-_NEVER, init=False)
    _given: int = field(default=0, init=False)

    def ask(self, peer: str, go: Go) -> None:
        """A turn for ``peer``: ``go`` is called now or later, unless :meth:`withdraw` takes it back."""
        found = self._waiting.get(peer) or self._peers.get(peer)
        if found is None:
            found = _Peer(self.one())
            self._remember(peer, found)
        if peer not in self._waiting:
            self._waiting[peer], found.asked = found, self.clock()
        found.waiting[go] = None
        self.give()

    def withdraw(self, peer: str, go: Go) -> None:
        found = self._waiting.get(peer)
        if found is not None:
            found.waiting.pop(go, None)
            if not found.waiting:
                del self._waiting[peer]

    def give(self) -> None:
        """Give what turns there are, and ask to be woken for the next."""
        now = self.clock()
        # Less than a microsecond is the rounding of sums.
        soon = now + 1e-6
        if self._woken_at <= soon:
            self._woken_at = _NEVER
        while self._waiting and self.all.free_at() <= soon and self._give_one(now, soon):
            pass
        if self._waiting and self._woken_at > soon:
            at = self.all.free_at()
            if at <= soon:
                at = min(found.pace.free_at() for found in self._waiting.values())
            if at < self._woken_at:
                self._woken_at = at
                self.wake(at)

    def answered(self, peer: str) -> None:
        """``peer`` got an answer, and is an acquaintance from now on."""
        found, now = self._peers.get(peer), self.clock()
        if found is not None:
            if not _is_known(found, now):
                found.since = now
            found.seen = now

    def knows(self, peer: str) -> bool:
        """Whether it was answered within the hour."""
        found = self._peers.get(peer)
        return found is not None and _is_known(found, self.clock())

    def _give_one(self, now: float, soon: float) -> bool:
        """Give the next turn; False where nobody takes it. A flood leaves many behind that are over: all are passed by at once."""
        for peer in self._order(now, soon):
            found = self._waiting[peer]
            while found.waiting:
                go = next(iter(found.waiting))
                self.withdraw(peer, go)
                if go():
                    found.pace.take(now)
                    self.all.take(now)
                    self._given += 1
                    return True
        return False

    def _order(self, now: float, soon: float) -> list[str]:
        """Those that are within their own pace, whose turn it is first."""
        by_age = self._given % 2 == 0

        def key(peer: str) -> tuple[float, float]:
            found = self._waiting[peer]
            since = found.since if _is_known(found, now) else _NEVER
            return (since, found.pace.due) if by_age else (found.pace.due, -found.asked)

        return sorted((peer for peer, found in self._waiting.items() if found.pace.free_at() <= soon), key=key)

    def _remember(self, peer: str, found: _Peer) -> None:
        now = self.clock()
        if len(self._peers) >= MOST and now >= self._swept_at + SWEEP:
            self._swept_at = now
            self._peers = {name: one for name, one in self._peers.items() if one.waiting or one.pace.due > now or _is_known(one, now)}
        # Where all of them matter, the newest goes by the pace of all alone.
        if len(self._peers) < MOST:
            self._peers[peer] = found


def _is_known(found: _Peer, now: float) -> bool:
    return found.seen + KNOWN > now
