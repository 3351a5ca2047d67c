"""The draft, the working state of one plan: the room, the remaining purchases, and the decisions so far."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import Struct

from gpuscaler.model.accelerators import DIVISIBLE
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import MARKETS, OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.capacity.limits import Remaining
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates, admits_arch
from gpuscaler.planning.capacity.upcoming import undecided_node
from gpuscaler.planning.demand.pending import PodClass, asks_for_device
from gpuscaler.planning.demand.topology import Shape
from gpuscaler.planning.feasibility.min_gpus import MinGpus
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.mix import Problem, Solution
from gpuscaler.planning.scale_up.draft.effort import Effort


@dataclass
class Queue:
    """The unplaced pods of one class, in order."""

    pod_class: PodClass
    shape: Shape
    taken: int = 0

    @property
    def left(self) -> int:
        return self.pod_class.count - self.taken

    def take(self, count: int) -> tuple[str, ...]:
        keys = self.pod_class.keys[self.taken : self.taken + count]
        self.taken += len(keys)
        return keys


@dataclass(frozen=True)
class Solved:
    """A mix and the problem it solves: together they prove a lower bound. First-fit answers have no ``problem`` and prove none."""

    solution: Solution
    problem: Problem | None = None


@dataclass(frozen=True)
class MachineContent:
    """Pods of one class on one machine."""

    pod_class: PodClass
    keys: tuple[str, ...]


@dataclass(frozen=True)
class NewMachine:
    """One machine to buy, and the row that stands for it."""

    kind: MachineKind
    row: int
    contents: tuple[MachineContent, ...]


class ClassPlacement(Struct, frozen=True, gc=False):
    """Pods of one class on a machine that exists, is ordered, or is bought by this plan."""

    pod_class: PodClass
    row: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """The machines that the scheduler sees at some time: ``room`` has the first rows of the draft's room; ``open_rows`` take pods."""

    room: Room
    open_rows: Mask


def no_trouble(key: OfferingKey) -> str:  # noqa: ARG001  # default for messages of breakers
    """Report no trouble with any offering."""
    return ""


def no_price(row: int) -> float:  # noqa: ARG001  # default for prices of idle machines
    """Report no cost for any machine."""
    return 0.0


@dataclass
class PlanDraft:
    """The working state of one plan.

    ``room`` has rows for nodes, for upcoming machines, for ``templates``, and then for the machines bought so far.
    ``open_rows`` are the machines that may take pods. ``work`` is the budget of each mix. ``taken`` are pods placed on rows, ``bought`` the
    machines to buy; a pod on a machine bought here is in one of the two. Only the first ``built`` of the bought machines have rows yet:
    most plans never use these rows, and building thousands of rows takes time. ``relaxed`` flags, by ``id`` of a class bought for, the
    kinds that serve it when topology is ignored. ``undecided`` are machines whose type or zone the cloud chooses, by row, with the
    templates that they may turn out to be. ``reach`` caches kinds, by the bytes of a mask of templates and the ``id`` of another.
    ``stages`` are the nodes alone and, if machines are ordered, the nodes with these, all without pods of this plan. ``trouble`` returns
    why an offering may not be requested; empty if unknown. ``unsettled`` are offerings that were refused or reclaimed a short while ago.
    ``idle_price`` returns the hourly price of an idle or ordered machine, by its row; 0 for any other. ``effort`` is the work of the plan
    so far, including discarded attempts.
    """

    cluster: Cluster
    templates: Templates
    room: Room
    open_rows: Mask
    first_template: int
    remaining: Remaining
    work: int
    stages: tuple[Stage, ...]
    should_stop: Callable[[], bool] | None = None
    trouble: Callable[[OfferingKey], str] = no_trouble
    unsettled: frozenset[OfferingKey] = frozenset()
    idle_price: Callable[[int], float] = no_price
    taken: list[ClassPlacement] = field(default_factory=list)
    bought: list[NewMachine] = field(default_factory=list)
    built: int = 0
    solved: list[Solved] = field(default_factory=list)
    relaxed: dict[int, Mask] = field(default_factory=dict)
    undecided: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ranks: dict[tuple[int, bool], Array] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    reach: dict[bytes, dict[int, Mask]] = field(default_factory=dict)

    def copy(self) -> "PlanDraft":
        """A copy for a trial."""
        return replace(
            self,
            room=self.room.copy(),
            remaining=self.remaining.copy(),
            taken=list(self.taken),
            bought=list(self.bought),
            solved=list(self.solved),
            relaxed=dict(self.relaxed),
            undecided=dict(self.undecided),
            ranks={},
        )

    def set_any_size(self, *, allowed: bool) -> None:
        """Set whether machines of closed pools take pods that smaller ones would hold."""
        for room in (self.room, *(stage.room for stage in self.stages)):
            room.any_size = allowed

    def build(self) -> None:
        """Create a row for every machine bought so far, with its pods on it."""
        fresh = self.bought[self.built :]
        if not fresh:
            return
        nodes = [new_node(self.templates, machine) for machine in fresh]
        kinds = [machine.kind for machine in fresh]
        least = [self.templates.minimums.on(kind.pool.name, kind.offering.instance_type, kind.gpus) for kind in kinds]
        self.room = self.room.extended(nodes, MinGpus.of(least, self.templates.size_of))
        self.open_rows = np.concatenate([self.open_rows, np.ones(len(fresh), dtype=np.bool_)])
        for machine in fresh:
            for part in machine.contents:
                self.room.place(part.pod_class.spec, part.pod_class.labels, machine.row, len(part.keys))
        self.undecided.update((machine.row, machine.kind.rows) for machine in fresh if len(machine.kind.rows) > 1)
        self.built = len(self.bought)

    @property
    def next_row(self) -> int:
        """The row of the next machine to be bought."""
        return len(self.room) + len(self.bought) - self.built

    @property
    def template_rows(self) -> slice:
        return slice(self.first_template, self.first_template + len(self.templates.nodes))

    @property
    def template_mask(self) -> Mask:
        mask = np.zeros(len(self.room), dtype=np.bool_)
        mask[self.template_rows] = True
        return mask

    @property
    def cost(self) -> float:
        return sum(machine.kind.price for machine in self.bought)


def new_node(templates: Templates, machine: NewMachine) -> Node:
    """A machine to buy as a node, whichever member of its kind it turns out to be."""
    return undecided_node(f"machine-{machine.row}", [templates.nodes[member] for member in machine.kind.rows])


def usable_templates(templates: Templates, pod_class: PodClass) -> Mask:
    """Templates that may serve a class by architecture, market and size; the scheduler's filters apply in addition."""
    return templates.holds_one(pod_class.spec) & wanted_templates(templates, pod_class)


def wanted_templates(templates: Templates, pod_class: PodClass) -> Mask:
    """Templates whose architecture and market a class admits, and that are bought for such pods."""
    usable = open_to_pods(templates, pod_class)
    if not admits_arch(pod_class.spec, pod_class.wishes):
        usable = usable & ~templates.foreign_arch
    return usable & in_market(templates, pod_class)


def open_to_pods(templates: Templates, pod_class: PodClass) -> Mask:
    """Templates that are bought for pods of a class, depending on whether they request accelerators."""
    closed = templates.for_gpus
    if closed is None or pod_class.beside_gpus or asks_for_device(pod_class):
        return np.ones(len(templates.nodes), dtype=np.bool_)
    return ~closed


def in_market(templates: Templates, pod_class: PodClass) -> Mask:
    """Templates of a market that a class admits, except those that are paused for it."""
    wanted = set(pod_class.options.market)
    if (not wanted or "any" in wanted) and not pod_class.paused:
        return np.ones(len(templates.nodes), dtype=np.bool_)
    markets = wanted if wanted and "any" not in wanted else set(MARKETS)
    return np.array(
        [offering.market in markets and offering.key not in pod_class.paused for offering in templates.offerings], dtype=np.bool_
    )


def row_ranks(draft: PlanDraft, spec: PodSpec) -> Array:
    """The rank of each row: for pods that need no accelerators, rows without them come first. The caller must not change the result.

    Machines bought by this plan come after existing and ordered machines; templates come last, sorted by price.
    """
    needs = any(map(spec.requests.get, DIVISIBLE))
    order = draft.ranks.get((len(draft.room), needs))
    if order is None:
        order = np.zeros(len(draft.room), dtype=np.int64)
        if not needs:
            for name in DIVISIBLE:
                order[draft.room.table.allocatable(name) > 0] = 1
        order[draft.template_rows.stop :] += 2
        order[draft.template_rows] = 10 + draft.templates.price_rank
        draft.ranks[len(draft.room), needs] = order
    return order
