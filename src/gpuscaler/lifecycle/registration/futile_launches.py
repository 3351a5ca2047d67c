"""Groups that keep launching machines by themselves, none of which becomes a node.

A group launches machines up to its desired capacity. If a machine of ours ends before it is a node, because its disks cannot be created or
its own user data shut it down, the group launches another in its place. This may happen once a minute and costs money each time, even if
the pods have found places on other nodes. One such relaunch is useful, since most failures are temporary. If a group keeps relaunching, the
next machine is ended by its id as soon as it is listed, which also lowers the desired capacity (I1).
"""

from collections import Counter

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.instances import Instance
from gpuscaler.planning.state.breakers import Breakers, has_enough_strikes, paused_pools
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import ABSENT, FAILED, FRUITLESS

#: If this many machines of a pool ended within this many seconds, and gpuscaler ended none of them, their replacements are expected to
#: fail as well.
MOST_ENDED, WITHIN_SECONDS = 4, 1800.0
#: Causes of breakers for machines that do not come up.
_CAUSES = frozenset({ABSENT, FAILED, FRUITLESS})


class FailingRelaunches:
    """The machines that groups launch in place of failed ones, and that are expected to fail as well."""

    def __init__(self, ledger: Ledger, index: MachineIndex, breakers: Breakers, now: float) -> None:
        self._paused = paused_pools(breakers, now)
        self._failing = tuple(breaker.target for breaker in breakers.open if breaker.cause in _CAUSES and has_enough_strikes(breaker))
        self._ended: Counter[str] = Counter()
        if self._failing:
            over = (
                instance
                for instance in index.listed.over.values()
                if instance.launched > now - WITHIN_SECONDS and instance.id not in ledger.departed_ids
            )
            self._ended.update(instance.pool for instance in over)

    def contains(self, instance: Instance) -> bool:
        """Whether ``instance``, a machine without a node that was not ordered here, is expected to fail."""
        if instance.doubt and instance.pool in self._paused:
            return True
        return self._ended[instance.pool] >= MOST_ENDED and any(target.covers(instance.key) for target in self._failing)
