"""The desk on which one plan is worked out: the room, what may still be bought, and what was decided so far."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.limits import ACCELERATORS, Remaining
from gpuscaler.planning.mix import Solution
from gpuscaler.planning.placing import Ground
from gpuscaler.planning.room import GPU_MILLI, Room
from gpuscaler.planning.templates import Kind, Templates, admits_arch
from gpuscaler.planning.topology import Shape


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
class Content:
    """Pods of one class on one machine."""

    one: PodClass
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Bought:
    """One machine to buy, and the row that stands for it."""

    kind: Kind
    row: int
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class Taken:
    """Pods of one class on a machine that exists, is coming, or is bought by this plan."""

    one: PodClass
    row: int
    keys: tuple[str, ...]


@dataclass
class Desk:
    """``room`` has rows for nodes, for upcoming machines, for ``templates``, and then for the machines bought so far.

    ``open_rows`` are the machines that may take pods. ``work`` is the budget of each mix. ``taken`` are pods that found room on rows,
    ``bought`` what is to be bought; a pod on a machine bought here is in one of the two.
    """

    cluster: Cluster
    templates: Templates
    room: Room
    open_rows: Mask
    first_template: int
    remaining: Remaining
    work: int
    should_stop: Callable[[], bool] | None = None
    taken: list[Taken] = field(default_factory=list)
    bought: list[Bought] = field(default_factory=list)
    solutions: list[Solution] = field(default_factory=list)

    def copy(self) -> "Desk":
        """A desk to try something on."""
        return replace(
            self,
            room=self.room.copy(),
            remaining=replace(self.remaining, pools=dict(self.remaining.pools)),
            taken=list(self.taken),
            bought=list(self.bought),
            solutions=list(self.solutions),
        )

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


def usable_templates(templates: Templates, one: PodClass) -> Mask:
    """Templates that may serve a class as far as architecture, market and size go; the scheduler's filters come on top."""
    usable = templates.holds_one(one.spec)
    if not admits_arch(one.spec):
        usable = usable & ~templates.foreign_arch
    wanted = set(one.options.market)
    if wanted and "any" not in wanted:
        usable = usable & np.array([offering.market in wanted for offering in templates.offerings], dtype=np.bool_)
    return usable


def ground_for(desk: Desk, one: PodClass, only: Mask | None = None) -> Ground:
    """The rows that are open to ``one``, cheapest use first. ``only``, one flag per row of the room, restricts them (a gang's zone)."""
    usable = desk.open_rows.copy()
    usable[desk.template_rows] = usable_templates(desk.templates, one)
    if only is not None:
        usable[: len(only)] &= only
    return Ground(desk.cluster, desk.room, desk.template_mask, usable, rank(desk, one.spec))


def rank(desk: Desk, spec: PodSpec) -> Array:
    """Rows without accelerators before rows with them for pods that need none; templates last and by price."""
    order = np.zeros(len(desk.room), dtype=np.int64)
    if not any(map(spec.requests.get, divisible())):
        for name in divisible():
            order[desk.room.table.allocatable(name) > 0] = 1
    order[desk.template_rows] = 10 + desk.templates.price_rank
    return order


def divisible() -> Iterable[str]:
    return (*ACCELERATORS, GPU_MILLI)
