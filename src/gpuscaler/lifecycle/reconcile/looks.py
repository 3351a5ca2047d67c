"""What a look is given, what its stages see, and what they find: plain data."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.lifecycle import interruptions, scale_in_protection, termination
from gpuscaler.lifecycle.actions import Act
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.observed.machine_index import Roll, Rolls, Unpooled
from gpuscaler.lifecycle.registration.registering import Arrivals, Waits
from gpuscaler.lifecycle.released_pools import LetGo
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
    """What is known beside the cluster: the cloud's list, when the scheduler last failed each pod, whether all of it is fresh.

    ``said`` are the scheduler's words then, by pod. ``going`` are machines that the cloud has announced to take away, and
    ``worked_on`` those that it will work on, by id and with the moment, 0 where that is not known; ``why`` says why some are taken away,
    where that is not the cloud's usual reason; ``guarded`` is what came of protecting machines; ``announced`` is all that it has
    announced beside taking away, by id and in a word, told once. ``vanished`` are machines that it listed before and does
    not list any more. ``unevicted`` is what evictions have come to nothing by since the last look, ``unbound`` bindings that were refused
    for good, ``unseen`` are nodes on which a last look has found pods that no watch has shown, in words. ``holds`` are what people have
    stopped. Without ``fresh`` nothing is removed.
    """

    inventory: Inventory | None = None
    attempts: Mapping[str, float] = {}
    said: Mapping[str, str] = {}
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
    """What all stages of one look see: nothing of it changes while they go on.

    ``before`` is what was remembered as it began. ``waits`` are those of the facts, but that nobody's time is over while removals are held,
    which ``removing_held`` says in words.
    """

    before: Memory
    cluster: Cluster
    policy: Policy
    facts: Facts
    now: float
    rolls: Rolls
    roll: Roll
    waits: Waits
    removing_held: str

    @property
    def inventory(self) -> Inventory | None:
        return self.facts.inventory


class Look(Struct, frozen=True, gc=False):
    """``memory`` after the look; what to do now, what was found out, and what changed its mind.

    ``refused`` are pods that nodes with room for them do not take, ``doubtful`` orders to be sent again, ``withdrawals`` tokens of orders
    that the cloud is to be told to fill no more. ``remarks`` are worth telling, and so are machines of pools that nobody here knows,
    ``unpooled``; nothing is done about them. ``unlisted`` are nodes that belong to no pool, since the cloud's list does not have their
    machines. ``owed`` are machines that come without an order, ``let_go`` pools that are ours no longer and have something of ours.
    ``crowded`` are machines on their way whose pods have no room there any more. ``turned_away`` are pods that were bound and that kubelets
    did not admit. ``guarded`` is what was found of groups that balance zones, ``announced`` what the cloud has said of machines that go.
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
    let_go: tuple[LetGo, ...] = ()
    guarded: scale_in_protection.ProtectionFindings = scale_in_protection.ProtectionFindings(scale_in_protection.Guarding())
    announced: interruptions.Announced = interruptions.Announced()
