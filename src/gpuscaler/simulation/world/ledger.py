"""Machines of a run: asked for, granted, waiting to open, open, being removed."""

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.nodes import Node
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, HOSTNAME, POOL_LABEL
from gpuscaler.planning.state import Upcoming
from gpuscaler.simulation.cloud.machines import CloudMachine, before_device_plugin
from gpuscaler.simulation.world.autoscaler import Intent, Purchase

ARRIVING = Taint(ARRIVING_TAINT)
#: Only in simulations: this node had no room where a policy saw some.
PROMISE_BROKEN = Taint("gpuscaler.io/promise-broken")


class LedgerEntry(Struct, gc=False):
    """A machine that is wanted and not open yet: its purpose, and the machine itself once the cloud has granted it."""

    purchase: Purchase
    intent: Intent
    upcoming: Upcoming
    machine: CloudMachine | None = None
    ready: bool = False

    @property
    def id(self) -> str:
        return self.intent.id

    def grant(self, machine: CloudMachine) -> None:
        """Record the granted machine, which fixes its offering."""
        self.machine = machine
        offering = machine.offering
        self.upcoming = replace(
            self.upcoming,
            pool=offering.pool,
            instance_type=offering.instance_type,
            market=offering.market,
            zone=offering.zone,
            choices=((offering.instance_type, offering.market, offering.zone),),
            behind=(),
        )

    def name_node(self) -> None:
        """Record that the machine has registered: its Node has the machine's id as its name."""
        assert self.machine is not None, "only machines that were granted register"
        self.upcoming = replace(self.upcoming, node=self.machine.id)

    def add_pod(self, key: str) -> None:
        """Add a pod that waits for this machine."""
        self.upcoming = replace(self.upcoming, pods=(*self.upcoming.pods, key))

    def drop_pod(self, key: str) -> None:
        """Remove a pod that no longer waits for this machine."""
        self.upcoming = replace(self.upcoming, pods=tuple(pod for pod in self.upcoming.pods if pod != key))

    def replace_pod(self, old: str, new: str) -> None:
        """Replace a pod that waits for this machine by another."""
        self.upcoming = replace(self.upcoming, pods=tuple(new if key == old else key for key in self.upcoming.pods))


class Drain(Struct, frozen=True, gc=False):
    """A node to remove once the machines it ``needs`` (by their intents) are open; ``moves`` says where its pods go."""

    node: str
    reason: str
    moves: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


def entry_of(purchase: Purchase, intent: Intent, now: float) -> LedgerEntry:
    """The ledger's entry for one machine of a purchase, written at ``now``, before the cloud is asked."""
    pool, market, instance_type, zone = purchase.offerings[0]
    choices = tuple((kind, market, zone) for _, market, kind, zone in purchase.offerings)
    planned_offerings = purchase.planned_offerings or len(choices)
    upcoming = Upcoming(
        id=intent.id,
        pool=pool,
        instance_type=instance_type,
        market=market,
        zone=zone,
        since=now,
        choices=choices[:planned_offerings],
        behind=choices[planned_offerings:],
        pods=intent.pods,
    )
    return LedgerEntry(purchase, intent, upcoming)


def node_of(machine: CloudMachine, *, gpus: bool, taints: tuple[Taint, ...] = ()) -> Node:
    """The Node object of a machine, named by the machine's id; without ``gpus`` the device plugin has not registered yet."""
    offering = machine.offering
    return Node(
        name=machine.id,
        labels={**offering.labels, HOSTNAME: machine.id, POOL_LABEL: offering.pool},
        allocatable=offering.allocatable if gpus else before_device_plugin(offering.allocatable),
        capacity=offering.allocatable,
        taints=(*offering.taints, *taints),
        provider_id=f"simulated:///{offering.zone}/{machine.id}",
        uid=machine.id,
        created=machine.registered_at,
    )
