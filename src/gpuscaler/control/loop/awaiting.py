"""What a plan must have seen of the cloud's list: that there is one, and what groups put in the place of nodes that have just gone.

Without a list nothing is known of machines that are on their way and that nobody here has ordered: they would be bought a second time.

A group puts another machine in the place of one that ended. A list from before the node went does not show that, and a plan that is made by
it buys the machine a second time, and from the very offering that has just been reclaimed.
"""

from collections.abc import Mapping

from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node

#: So long at most plans wait for a list that is new enough, in seconds: a cloud that does not answer keeps no pod waiting for longer.
LONGEST_WAIT = 10.0
#: So long a group that replaces machines early takes to launch one after the announcement, in seconds.
EARLY_SECONDS = 3.0


class Awaiting:
    """Tells whether plans wait for the next list. Moments are seconds since the epoch."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, Node] = {}
        self._going: frozenset[str] = frozenset()
        #: From when on a list is new enough, and since when plans wait.
        self._wanted = self._since = 0.0

    def observe(self, nodes: Mapping[str, Node], going: Mapping[str, float], inventory: Inventory | None, now: float) -> bool:
        """Note nodes that went since the last call, and machines that are newly ``going``; whether a list should be read at once."""
        before, self._nodes = self._nodes, nodes
        announced, self._going = frozenset(going) - self._going, frozenset(going)
        if inventory is None:
            self._since = self._since or now
            return False
        if not inventory.deliveries or (before is nodes and not announced):
            return False
        early = {one.pool: one.early for one in inventory.deliveries}
        wanted = 0.0
        if any((key := before[name].bought) is not None and key.pool in early for name in before.keys() - nodes.keys()):
            wanted = now
        if any(early.get(one.pool) for one in inventory.instances if one.id in announced):
            wanted = now + EARLY_SECONDS
        if not wanted:
            return False
        if inventory.at > self._wanted:
            self._since = now
        self._wanted = max(self._wanted, wanted)
        return True

    def is_due(self, inventory: Inventory | None, now: float) -> bool:
        """Whether a list that is read now will be new enough."""
        return now > self._wanted and self.waits(inventory, now)

    def waits(self, inventory: Inventory | None, now: float) -> bool:
        """Whether a plan made now would not know what is on its way, or what groups put in the place of machines that are gone."""
        return (inventory is None or inventory.at <= self._wanted) and now < self._since + LONGEST_WAIT
