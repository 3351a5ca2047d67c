"""Input and result of a reconcile pass, and the view its stages share: plain data."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.lifecycle import interruptions, scale_in_protection, termination
from gpuscaler.lifecycle.actions import Act
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.observed.machine_index import MachineIndex, MachineIndexes, Unpooled
from gpuscaler.lifecycle.registration.registering import Arrivals, Waits
from gpuscaler.lifecycle.released_pools import ReleasedPool
from gpuscaler.lifecycle.steering import opening
from gpuscaler.lifecycle.steering.binding import BindingRefused
from gpuscaler.lifecycle.steering.rejected_pods import TurnedAway
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import Holds
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import Upcoming, node_refusals, promises
from gpuscaler.planning.state.ledger.ledger import Order


class Facts(Struct, frozen=True, gc=False):
    """The facts besides the cluster: the cloud's list, when kube-scheduler last failed each pod, whether all of it is fresh.

    ``messages`` are kube-scheduler's messages for these failures, by pod. ``going`` are machines that the cloud has announced to take away,
    and ``worked_on`` those that it will work on, by id, with the time, or 0 if it is unknown. ``why`` is why some are taken away, where it
    is not the cloud's usual reason. ``guarded`` are the results of protecting machines. ``announced`` are all other announcements, by id
    and as one word, passed on once. ``vanished`` are machines that were listed before and are not listed any more. ``unevicted`` are the
    evictions that failed since the last pass, ``unbound`` the bindings that were refused for good. ``unseen`` are nodes on which a last
    check found pods that no watch has shown, with that as text. ``holds`` are the holds that people have set. Without ``fresh`` nothing is
    removed.
    """

    inventory: Inventory | None = None
    attempts: Mapping[str, float] = {}
    messages: Mapping[str, str] = {}
    going: Mapping[str, float] = {}
    worked_on: Mapping[str, float] = {}
    why: Mapping[str, str] = {}
    guarded: tuple[scale_in_protection.ProtectionAnswered, ...] = ()
    announced: tuple[tuple[str, str], ...] = ()
    vanished: tuple[Instance, ...] = ()
    unevicted: tuple[termination.EvictionRefused, ...] = ()
    unbound: tuple[BindingRefused, ...] = ()
    unseen: Mapping[str, str] = {}
    holds: Holds = Holds()
    fresh: bool = True
    waits: Waits = Waits()


class View(Struct, frozen=True, gc=False):
    """The view that all stages of one pass share; it does not change during the pass.

    ``before`` is the memory at the start. ``waits`` are those of the facts, but no time runs out while removals are held;
    ``removing_held`` gives the reason as text.
    """

    before: Memory
    cluster: Cluster
    policy: Policy
    facts: Facts
    now: float
    indexes: MachineIndexes
    index: MachineIndex
    waits: Waits
    removing_held: str

    @property
    def inventory(self) -> Inventory | None:
        return self.facts.inventory


class Reconciliation(Struct, frozen=True, gc=False):
    """The result of a pass: the new ``memory``, the actions to take now, and the findings.

    ``refused`` are pods that nodes with room for them do not take, ``doubtful`` orders to be sent again, ``withdrawals`` tokens of orders
    that the cloud must not fill any further. ``remarks`` are worth reporting, and so are machines of pools that are not configured,
    ``unpooled``; no action is taken on them. ``unlisted`` are nodes that belong to no pool, because the cloud's list does not have their
    machines. ``owed`` are machines that come without an order, ``let_go`` pools that are no longer managed but still have something of
    ours. ``crowded`` are machines on their way whose pods no longer have room there. ``turned_away`` are pods that were bound but not
    admitted by the kubelet. ``guarded`` are the findings about groups that balance zones, ``announced`` the announcements about machines
    that go.
    """

    memory: Memory
    acts: tuple[Act, ...] = ()
    arrivals: Arrivals = Arrivals()
    outcomes: tuple[promises.Kept | promises.Broken, ...] = ()
    stray: tuple[str, ...] = ()
    unfit: tuple[opening.UnfitNode, ...] = ()
    turned_away: tuple[TurnedAway, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    refused: tuple[node_refusals.NodeRefused, ...] = ()
    doubtful: tuple[Order, ...] = ()
    withdrawals: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unpooled: tuple[Unpooled, ...] = ()
    crowded: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    owed: tuple[Upcoming, ...] = ()
    let_go: tuple[ReleasedPool, ...] = ()
    guarded: scale_in_protection.ProtectionFindings = scale_in_protection.ProtectionFindings(scale_in_protection.Guarding())
    announced: interruptions.Announcements = interruptions.Announcements()
