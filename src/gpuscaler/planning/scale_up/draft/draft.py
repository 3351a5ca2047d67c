"""The desk on which one plan is worked out: the room, what may still be bought, and what was decided so far."""

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
from gpuscaler.planning.capacity.node_templates import Kind, Templates, admits_arch
from gpuscaler.planning.capacity.upcoming import undecided_node
from gpuscaler.planning.demand.pending import PodClass, asks_for_device
from gpuscaler.planning.demand.topology import Shape
from gpuscaler.planning.feasibility.min_gpus import least_gpus
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.mix import Problem, Solution
from gpuscaler.planning.scale_up.draft.effort import Effort


@dataclass
class Queue:
    """The pods of one class that have no place yet, in order."""

    one: PodClass
    shape: Shape
    taken: int = 0

    @property
    def left(self) -> int:
        return self.one.count - self.taken

    def take(self, count: int) -> tuple[str, ...]:
        keys = self.one.keys[self.taken : self.taken + count]
        self.taken += len(keys)
        return keys


@dataclass(frozen=True)
class Solved:
    """A mix and the problem it answers: together they prove a lower bound. First-fit answers without a ``problem`` prove none."""

    solution: Solution
    problem: Problem | None = None


@dataclass(frozen=True)
class Content:
    """Pods of one class on one machine."""

    one: PodClass
    keys: tuple[str, ...]


@dataclass(frozen=True)
class NewMachine:
    """One machine to buy, and the row that stands for it."""

    kind: Kind
    row: int
    contents: tuple[Content, ...]


class Placed(Struct, frozen=True, gc=False):
    """Pods of one class on a machine that exists, is coming, or is bought by this plan."""

    one: PodClass
    row: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """What the scheduler sees at some time: ``room`` has the first rows of a desk's, of which ``open_rows`` may take pods."""

    room: Room
    open_rows: Mask


def nothing_known(key: OfferingKey) -> str:  # noqa: ARG001  # stands in for what breakers say of an offering
    """No trouble with any offering."""
    return ""


def free_of_charge(row: int) -> float:  # noqa: ARG001  # stands in for what machines cost
    """Nothing is known of what any machine costs."""
    return 0.0


@dataclass
class Desk:
    """``room`` has rows for nodes, for upcoming machines, for ``templates``, and then for the machines bought so far.

    ``open_rows`` are the machines that may take pods. ``work`` is the budget of each mix. ``taken`` are pods that found room on rows,
    ``bought`` what is to be bought; a pod on a machine bought here is in one of the two. Only the first ``built`` of the machines bought
    have their rows yet: most plans never look at them again, and thousands of rows take time. ``relaxed`` flags, by ``id`` of a
    class bought for, the kinds that serve it when topology is left out. ``undecided`` are machines of which the cloud chooses the type or
    the zone, by row, with the templates that they may turn out to be. ``reach`` are kinds that were looked up, by the bytes of a mask of
    templates and the ``id`` of another. ``stages`` are the nodes alone and, where machines are on their way, those with them, all without
    pods of this plan. ``trouble`` says why an offering may not be asked; empty when nobody knows. ``unsettled`` are those that were refused
    or reclaimed a short while ago. ``idle_price`` says what a machine costs by the hour that stands or comes for nobody, by its row; 0 for
    any other. ``effort`` is what the plan has cost so far, with all that was tried.
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
    trouble: Callable[[OfferingKey], str] = nothing_known
    unsettled: frozenset[OfferingKey] = frozenset()
    idle_price: Callable[[int], float] = free_of_charge
    taken: list[Placed] = field(default_factory=list)
    bought: list[NewMachine] = field(default_factory=list)
    built: int = 0
    solved: list[Solved] = field(default_factory=list)
    relaxed: dict[int, Mask] = field(default_factory=dict)
    undecided: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ranks: dict[tuple[int, bool], Array] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    reach: dict[bytes, dict[int, Mask]] = field(default_factory=dict)

    def copy(self) -> "Desk":
        """A desk to try something on."""
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

    def build(self) -> None:
        """Give every machine bought so far its row, with its pods on it."""
        fresh = self.bought[self.built :]
        if not fresh:
            return
        nodes = [new_node(self.templates, machine) for machine in fresh]
        self.room = self.room.extended(nodes, least_gpus(machine.kind.pool for machine in fresh))
        self.open_rows = np.concatenate([self.open_rows, np.ones(len(fresh), dtype=np.bool_)])
        for machine in fresh:
            for part in machine.contents:
                self.room.place(part.one.spec, part.one.labels, machine.row, len(part.keys))
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


def usable_templates(templates: Templates, one: PodClass) -> Mask:
    """Templates that may serve a class as far as architecture, market and size go; the scheduler's filters come on top."""
    return templates.holds_one(one.spec) & wanted_templates(templates, one)


def wanted_templates(templates: Templates, one: PodClass) -> Mask:
    """Templates of an architecture and a market that a class admits, and that are bought for pods like it."""
    usable = open_to(templates, one)
    if not admits_arch(one.spec, one.wishes):
        usable = usable & ~templates.foreign_arch
    return usable & of_market(templates, one)


def open_to(templates: Templates, one: PodClass) -> Mask:
    """Templates that are bought for pods that ask for as many accelerators as a class, or for none."""
    closed = templates.for_gpus
    if closed is None or one.beside_gpus or asks_for_device(one):
        return np.ones(len(templates.nodes), dtype=np.bool_)
    return ~closed


def of_market(templates: Templates, one: PodClass) -> Mask:
    """Templates of a market that a class admits, but for those that are paused for it."""
    wanted = set(one.options.market)
    if (not wanted or "any" in wanted) and not one.paused:
        return np.ones(len(templates.nodes), dtype=np.bool_)
    markets = wanted if wanted and "any" not in wanted else set(MARKETS)
    return np.array([offering.market in markets and offering.key not in one.paused for offering in templates.offerings], dtype=np.bool_)


def rank(desk: Desk, spec: PodSpec) -> Array:
    """Rows without accelerators before rows with them for pods that need none; not to be changed.

    Machines that this plan buys come after those that are there or on their way, and templates last and by price.
    """
    needs = any(map(spec.requests.get, DIVISIBLE))
    order = desk.ranks.get((len(desk.room), needs))
    if order is None:
        order = np.zeros(len(desk.room), dtype=np.int64)
        if not needs:
            for name in DIVISIBLE:
                order[desk.room.table.allocatable(name) > 0] = 1
        order[desk.template_rows.stop :] += 2
        order[desk.template_rows] = 10 + desk.templates.price_rank
        desk.ranks[len(desk.room), needs] = order
    return order
