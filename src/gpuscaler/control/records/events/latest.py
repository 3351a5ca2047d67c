"""The latest observations and decisions of the controller: status, metrics, pages and answers read only these."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuscaler.clouds.protocol import AccountReport
from gpuscaler.control.loop.cloud import MessageReceipt
from gpuscaler.control.process.expander import PrioritiesInForce
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.records.status.doctor_status import DoctorStatus
from gpuscaler.doctor.findings import Finding
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.observed.machine_index import Unpooled
from gpuscaler.lifecycle.released_pools import ReleasedPool
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import BlockedNode, Plan
from gpuscaler.planning.state.boot_times import Arrived, Boots, Forecast, forecast, step

#: A machine that became a node later than this after its launch, in seconds, had been stopped, or its Node had been deleted.
STOPPED_SECONDS = 1800.0
#: How many of the machines that were launched last are considered.
NEWEST = 500


@dataclass(slots=True)
class Latest:
    """The latest state. Times are seconds since the epoch, 0 before the first. ``forecasts`` were made when machines were granted.

    ``unpooled`` are machines of unknown pools, ``unlisted`` nodes that belong to no pool because the cloud does not list their machines.
    ``lacks`` says, by machine, why an ordered machine whose node is there is not ready yet, ``faults`` what the cloud reports about one
    without a node.
    ``released_pools`` are pools that are no longer managed. ``consolidation_blockers`` says why nodes stay, according to the last plan that
    considered consolidation, made at ``consolidation_planned_at``. ``simulated`` is the forecast from the settings of the simulated cloud,
    ``inventory`` returns the cloud's newest list, ``test_receipt`` the last test message among its notices, and ``priorities`` the
    priorities of pools that are in force. ``doctor`` is the result of the last checks, and ``findings`` all that they found.
    """

    cluster: Cluster = field(default_factory=Cluster)
    memory: Memory = field(default_factory=Memory)
    plan: Plan = field(default_factory=Plan)
    policy: Policy | None = None
    observed_at: float = 0.0
    planned_at: float = 0.0
    decision: str = ""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    discovered_pools: DiscoveredPools | None = None
    unpooled: tuple[Unpooled, ...] = ()
    unlisted: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    released_pools: tuple[ReleasedPool, ...] = ()
    consolidation_blockers: Mapping[str, BlockedNode] = field(default_factory=dict)
    consolidation_planned_at: float = 0.0
    simulated: Forecast | None = None
    inventory: Callable[[], Inventory | None] = lambda: None
    test_receipt: Callable[[], MessageReceipt] = MessageReceipt
    priorities: Callable[[], PrioritiesInForce] = PrioritiesInForce
    doctor: DoctorStatus = field(default_factory=DoctorStatus)
    findings: tuple[Finding, ...] = ()
    _cached_times: tuple[Inventory, Boots] | None = None

    @property
    def account(self) -> AccountReport:
        """The newest report of the cloud account; empty if all pools are those of the file."""
        return self.discovered_pools.newest if self.discovered_pools is not None else AccountReport()

    def forecast_for(self, key: OfferingKey) -> Forecast:
        """The forecast for the next machine of the offering ``key``.

        The forecast is based on bought machines of its kind, else on existing nodes of the kind, else on other kinds and the cloud's
        settings.
        """
        bought = forecast(self.memory.boots, key, self.simulated)
        if bought.seen:
            return bought
        registered = forecast(self._registration_times(), key)
        if not registered.seen:
            return bought
        basis = f"from {registered.seen} of its kind that became nodes, without device plugins; none was bought by gpuscaler yet"
        return Forecast(registered.typical, registered.late, basis=basis)

    def _registration_times(self) -> Boots:
        """How long the machines of existing nodes took to become nodes, if the cloud says when they were launched."""
        inventory = self.inventory()
        if inventory is None:
            return Boots()
        if self._cached_times is None or self._cached_times[0] is not inventory:
            self._cached_times = (inventory, registration_times(inventory, self.cluster.nodes.values()))
        return self._cached_times[1]


def registration_times(inventory: Inventory, nodes: Iterable[Node]) -> Boots:
    """Boot times from a cloud's list and nodes. A machine that registered long after its launch was stopped, and is ignored."""
    created = {node.provider_id: node.created for node in nodes if node.provider_id}
    boots = Boots()
    for instance in sorted(inventory.instances, key=lambda instance: instance.launched)[-NEWEST:]:
        boot = created.get(instance.id, 0.0) - instance.launched
        if instance.launched and 0.0 < boot < STOPPED_SECONDS:
            boots = step(boots, Arrived(instance.key, boot, 0.0))
    return boots
