"""Machines of a run: bought, waiting to open, open, being given back."""

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.simulated import CloudMachine, before_device_plugin
from gpuscaler.model.nodes import Node
from gpuscaler.model.taints import Taint
from gpuscaler.planning.plans import Machine
from gpuscaler.planning.state import Upcoming

ARRIVING = Taint("gpuscaler.io/arriving")
#: Only in pictures of a simulation: this node had no room where a policy saw some.
PROMISE_BROKEN = Taint("gpuscaler.io/promise-broken")
POOL_LABEL = "gpuscaler.io/pool"
HOSTNAME = "kubernetes.io/hostname"


class Entry(Struct, gc=False):
    """A machine that is not open yet, and what it was bought for."""

    machine: CloudMachine
    upcoming: Upcoming
    opens_after: tuple[str, ...] = ()
    ready: bool = False

    def name_node(self) -> None:
        """The machine has registered: its Node bears its id."""
        self.upcoming = replace(self.upcoming, node=self.machine.id)

    def add_pod(self, key: str) -> None:
        """One more pod waits for this machine."""
        self.upcoming = replace(self.upcoming, pods=(*self.upcoming.pods, key))


class Drain(Struct, frozen=True, gc=False):
    """A node to give back once the machines it ``needs`` are open; ``moves`` says where its pods go."""

    node: str
    reason: str
    moves: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


def entry_of(machine: CloudMachine, planned: Machine, *, now: float, opens_after: tuple[str, ...]) -> Entry:
    """The ledger's entry for a machine bought at ``now`` because a plan says so."""
    offering = machine.offering
    chosen = (offering.instance_type, offering.market, offering.zone)
    choices = tuple((choice.instance_type, choice.market, choice.zone) for choice in planned.choices) or (chosen,)
    upcoming = Upcoming(
        id=machine.id,
        pool=offering.pool,
        instance_type=offering.instance_type,
        market=offering.market,
        zone=offering.zone,
        since=now,
        choices=choices,
        pods=planned.pods,
    )
    return Entry(machine, upcoming, opens_after)


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
