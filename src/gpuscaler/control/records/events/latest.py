"""What the controller has last seen and decided: the one place that status, metrics, pages and answers read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuscaler.control.process.expander import Standing
from gpuscaler.control.process.pools import FoundPools
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.observed.machine_index import Unpooled
from gpuscaler.lifecycle.released_pools import LetGo
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import BlockedNode, Plan
from gpuscaler.planning.state.boot_times import Arrived, Boots, Forecast, forecast, step

#: A machine that became a node so long after its launch, in seconds, had been stopped meanwhile, or its Node was deleted.
STOPPED_SECONDS = 1800.0
#: So many of the machines that were launched last are looked at.
NEWEST = 500


@dataclass(slots=True)
class Latest:
    """Times are seconds since the epoch, 0 before the first. ``forecasts`` are those that were made when machines were granted.

    ``found`` knows the pools of the account, where there is one. ``unpooled`` are machines of pools that nobody here knows, ``unlisted``
    nodes that belong to no pool, since the cloud's list does not have their machines. ``let_go`` are pools that are ours no longer.
    ``weighed`` is why nodes stay, as the last plan has found that asked whether their pods fit elsewhere, at ``weighed_at``.
    ``simulated`` is what the settings of the simulated cloud say of the time that machines take, ``inventory`` the cloud's newest list.
    ``priorities`` tells which priorities of pools hold.
    """

    cluster: Cluster = field(default_factory=Cluster)
    memory: Memory = field(default_factory=Memory)
    plan: Plan = field(default_factory=Plan)
    policy: Policy | None = None
    looked_at: float = 0.0
    planned_at: float = 0.0
    decision: str = ""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    found: FoundPools | None = None
    unpooled: tuple[Unpooled, ...] = ()
    unlisted: frozenset[str] = frozenset()
    let_go: tuple[LetGo, ...] = ()
    weighed: Mapping[str, BlockedNode] = field(default_factory=dict)
    weighed_at: float = 0.0
    simulated: Forecast | None = None
    inventory: Callable[[], Inventory | None] = lambda: None
    priorities: Callable[[], Standing] = Standing
    _known: tuple[Inventory, Boots] | None = None

    def outlook(self, key: OfferingKey) -> Forecast:
        """What to expect of the next machine of the offering ``key``.

        Machines that were bought say it best; then nodes of its kind that are there already, other kinds, and what the cloud is set to.
        """
        bought = forecast(self.memory.boots, key, self.simulated)
        if bought.seen:
            return bought
        there = forecast(self._joined(), key)
        if not there.seen:
            return bought
        basis = f"as {there.seen} of its kind took to become nodes, without device plugins; none was bought here yet"
        return Forecast(there.typical, there.late, basis=basis)

    def _joined(self) -> Boots:
        """How long machines that are nodes now took for that, as far as the cloud says when they were launched."""
        inventory = self.inventory()
        if inventory is None:
            return Boots()
        if self._known is None or self._known[0] is not inventory:
            self._known = (inventory, joined(inventory, self.cluster.nodes.values()))
        return self._known[1]


def joined(inventory: Inventory, nodes: Iterable[Node]) -> Boots:
    """What :meth:`Latest.outlook` takes of a cloud's list and of nodes. A machine that registered long after its launch was stopped."""
    created = {node.provider_id: node.created for node in nodes if node.provider_id}
    found = Boots()
    for one in sorted(inventory.instances, key=lambda one: one.launched)[-NEWEST:]:
        boot = created.get(one.id, 0.0) - one.launched
        if one.launched and 0.0 < boot < STOPPED_SECONDS:
            found = step(found, Arrived(one.key, boot, 0.0))
    return found
