"""Delays plans until there is a list of the cloud that is new enough to show replacements of nodes that have just gone.

Without a list, starting machines that this controller did not order are unknown, and it would buy them a second time.

A group replaces a machine that ended. A list from before the node went does not show the replacement, so a plan made from it buys the
machine a second time, and from the same offering that has just been reclaimed.
"""

from collections.abc import Mapping

from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node

#: The longest time that plans wait for a list that is new enough, in seconds: a cloud that does not answer does not delay pods for longer
#: than this.
LONGEST_WAIT = 10.0
#: How long a group that replaces machines early takes to launch one after the announcement, in seconds.
EARLY_SECONDS = 3.0


class InventoryWait:
    """Decides whether plans wait for the next list. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, Node] = {}
        self._going: frozenset[str] = frozenset()
        #: The time after which a list is new enough, and the time since which plans wait.
        self._wanted = self._since = 0.0

    def observe(self, nodes: Mapping[str, Node], going: Mapping[str, float], inventory: Inventory | None, now: float) -> bool:
        """Note nodes that went since the last call, and machines newly in ``going``; True if the list should be read at once."""
        before, self._nodes = self._nodes, nodes
        announced, self._going = frozenset(going) - self._going, frozenset(going)
        if inventory is None:
            self._since = self._since or now
            return False
        if not inventory.deliveries or (before is nodes and not announced):
            return False
        early = {delivery.pool: delivery.early for delivery in inventory.deliveries}
        wanted = 0.0
        if any((key := before[name].bought) is not None and key.pool in early for name in before.keys() - nodes.keys()):
            wanted = now
        if any(early.get(instance.pool) for instance in inventory.instances if instance.id in announced):
            wanted = now + EARLY_SECONDS
        if not wanted:
            return False
        if inventory.at > self._wanted:
            self._since = now
        self._wanted = max(self._wanted, wanted)
        return True

    def is_due(self, inventory: Inventory | None, now: float) -> bool:
        """Whether plans wait, and a list that is read now would be new enough."""
        return now > self._wanted and self.must_wait(inventory, now)

    def must_wait(self, inventory: Inventory | None, now: float) -> bool:
        """Whether a plan made now would miss machines that are starting, or replacements that groups launch for machines that ended."""
        return (inventory is None or inventory.at <= self._wanted) and now < self._since + LONGEST_WAIT
