"""Groups that launch machine after machine by themselves, of which none becomes a node.

A group launches up to its desired capacity. Where a machine of ours ends before it is a node, because its disks cannot be made, or because
its own user data shut it down, the group launches another in its place, and again: once a minute, each paid for, for as long as its desired
capacity says so, whatever we have bought elsewhere meanwhile. One such relaunch is welcome, since most failures pass. Of a group that goes
on, the next machine is ended by its name as soon as it is listed, and its desired capacity with it (I1).
"""

from collections import Counter

from gpuscaler.lifecycle.observed.machine_index import Roll
from gpuscaler.model.instances import Instance
from gpuscaler.planning.state.breakers import Breakers, counts, paused_pools
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import ABSENT, FAILED, FRUITLESS

#: So many machines of a pool, within so many seconds, that ended without our doing: whatever replaces them ends as they did.
MOST_ENDED, WITHIN_SECONDS = 4, 1800.0
#: What breakers say of machines that do not come up.
_CAUSES = frozenset({ABSENT, FAILED, FRUITLESS})


class Relaunching:
    """Tells which machines their group launched in place of others that came to nothing, and that come to nothing as well."""

    def __init__(self, book: Ledger, roll: Roll, breakers: Breakers, now: float) -> None:
        self._paused = paused_pools(breakers, now)
        self._failing = tuple(one.target for one in breakers.open if one.cause in _CAUSES and counts(one))
        self._ended: Counter[str] = Counter()
        if self._failing:
            over = (one for one in roll.listed.over.values() if one.launched > now - WITHIN_SECONDS and one.id not in book.past)
            self._ended.update(one.pool for one in over)

    def covers(self, one: Instance) -> bool:
        """Whether ``one``, a machine that was not ordered here and is no node, need not be waited for."""
        if one.doubt and one.pool in self._paused:
            return True
        return self._ended[one.pool] >= MOST_ENDED and any(target.covers(one.key) for target in self._failing)
