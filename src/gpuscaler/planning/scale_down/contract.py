"""Input and result of scale-down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.mix.problem import Limits
from gpuscaler.planning.plans import BlockedNode, PlannedMachine, PlannedRemoval
from gpuscaler.planning.state import State


@dataclass(frozen=True)
class Situation:
    """The input of scale-down.

    ``room`` holds existing nodes, then upcoming machines, with every placement of this plan made; it is copied, never changed.
    ``present`` is the room without these placements and without anything else in progress; None if it is the same as ``room``.
    ``members`` gives each node's pool and offering. ``taken`` are nodes that pending, nominated or promised pods need.
    ``untried`` are pods that the scheduler has not tried yet, among them pods recreated after leaving a machine that is being removed.
    ``templates`` are the machines that could replace others, ``limits`` how many of them may still be bought after this plan's
    purchases. ``now`` is in seconds since the epoch.
    """

    cluster: Cluster
    state: State
    policy: Policy
    now: float
    room: Room
    members: Mapping[str, Member]
    taken: frozenset[str]
    templates: Templates
    limits: Limits
    present: Room | None = None
    untried: tuple[Pod, ...] = ()
    should_stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class ScaleDownResult:
    """The result of scale-down. Every node of the cluster is in ``removals`` or in ``blocked``.

    ``machines`` have the purpose "replacement" and the ids ``replacement-1``, …, which ``removals`` name in ``needs`` and ``moves``.
    ``stopped_early`` is true if ``should_stop`` ended the search early.
    """

    removals: tuple[PlannedRemoval, ...] = ()
    machines: tuple[PlannedMachine, ...] = ()
    blocked: tuple[BlockedNode, ...] = ()
    stopped_early: bool = False
