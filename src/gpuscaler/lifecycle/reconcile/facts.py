"""Input and result of a reconcile pass, and the view that its stages share: plain data."""

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
from gpuscaler.model.scheduled_events import ScheduledEvent
from gpuscaler.planning.state import Upcoming, node_refusals, promises
from gpuscaler.planning.state.ledger.ledger import Order


class Facts(Struct, frozen=True, gc=False):
    """All facts of a pass besides the cluster. ``inventory`` is the cloud's list; nothing is removed unless all facts are ``fresh``.

    ``attempts`` is when kube-scheduler last failed to place each pod, by pod, and ``messages`` its messages about that. ``taken_away_at``
    is when the cloud will take machines away, and ``maintenance_at`` when it will work on machines, as announced, by id; 0 if the time is
    unknown. ``why`` is the announced reason, where it is not the cloud's usual one. All other announcements are in ``announced``, as pairs
    of an id and one word, in the first pass after their arrival only. ``vanished`` are machines that the cloud no longer lists.
    ``protection_answers`` are the results of requests to protect machines from scale-in. ``page_events`` are scheduled events of nodes, by
    name, from pages of exporters that cannot write them on their nodes.

    ``refused_evictions`` are the evictions that failed since the last pass, ``refused_bindings`` the bindings that were refused for good.
    ``late_pods_by_node`` are nodes where the final API read found pods missing from the watch, with a description. ``end_answers`` are
    the cloud's answers to calls to end machines, by node. ``holds`` are the holds that people have set. ``changing`` are nodes whose
    closing taint is being written, so that the node may soon differ from the cluster.
    """

    inventory: Inventory | None = None
    attempts: Mapping[str, float] = {}
    messages: Mapping[str, str] = {}
    taken_away_at: Mapping[str, float] = {}
    maintenance_at: Mapping[str, float] = {}
    why: Mapping[str, str] = {}
    protection_answers: tuple[scale_in_protection.ProtectionAnswered, ...] = ()
    announced: tuple[tuple[str, str], ...] = ()
    page_events: Mapping[str, ScheduledEvent] = {}
    vanished: tuple[Instance, ...] = ()
    refused_evictions: tuple[termination.EvictionRefused, ...] = ()
    refused_bindings: tuple[BindingRefused, ...] = ()
    late_pods_by_node: Mapping[str, str] = {}
    end_answers: Mapping[str, termination.EndAnswered] = {}
    holds: Holds = Holds()
    changing: frozenset[str] = frozenset()
    fresh: bool = True
    waits: Waits = Waits()


class View(Struct, frozen=True, gc=False):
    """The data that all stages of one pass read; it does not change during the pass.

    ``before`` is the memory at the start of the pass. ``waits`` are the waits of the facts, but nothing times out while removals are on
    hold; ``removing_held`` is the reason for the hold as text, empty without one.
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

    ``outcomes`` are promises that were kept or broken, ``stray`` pods that were bound to another node than promised, ``unfit`` nodes that
    differ from their node template, ``kept`` nodes whose removal was given up, with the reason. ``refused`` are pods that a node with room
    for them does not take, ``turned_away`` pods that were bound but not admitted by the kubelet, ``crowded`` ordered machines whose pods
    no longer have room there. ``doubtful`` are orders to send again, ``withdrawals`` the tokens of orders to withdraw.

    ``remarks`` and ``unpooled``, the machines of pools that are not configured, are reported; no action is taken on them. ``unlisted`` are
    nodes that belong to no pool, because the cloud's list does not have their machines, or, if there is no list yet (``listed`` is False),
    because nothing else shows that they do. ``uncounted`` is why nothing is bought before the first list, empty without a reason.
    ``unordered`` are machines on their way without an order of ours, ``released_pools`` pools that are no longer managed but still have
    machines in progress or taints of ours. ``protection`` are the findings about groups that balance their zones, ``announced`` the
    announcements about machines that the cloud takes away or works on.
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
    listed: bool = True
    uncounted: str = ""
    unordered: tuple[Upcoming, ...] = ()
    released_pools: tuple[ReleasedPool, ...] = ()
    protection: scale_in_protection.ProtectionFindings = scale_in_protection.ProtectionFindings(scale_in_protection.Guarding())
    announced: interruptions.Announcements = interruptions.Announcements()
