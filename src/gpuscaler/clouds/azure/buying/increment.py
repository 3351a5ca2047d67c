"""An order that raises a capacity, as this process knows it, and how refusals of it are made."""

from dataclasses import dataclass, field
from typing import Protocol

from gpuscaler.clouds.azure.api.causes import ArmFailure
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.protocol import BuyResult, Order, Refusal


class Refuse(Protocol):
    """Turns a ``failure`` (None: no reason is known, but ``detail`` says what happened) into refusals; ``partial``: some machines came."""

    def __call__(
        self, azure_pool: AzurePool, order: Order, failure: ArmFailure | None, detail: str, *, partial: bool = False
    ) -> tuple[Refusal, ...]: ...


@dataclass(slots=True, eq=False)
class Increment:
    """A raise of a capacity for an order. ``before`` are the folded ids of machines that were there before; ``at`` is when it was made.

    ``url`` is that of the operation, empty if there is none. A ``queued`` order waits since ``queued_at``, at least until ``not_before``.
    An ``awaited`` one is settled by the call that made it. The operation, or the group while the order is queued, is not read before
    ``read_at``; ``ended_at`` is when the operation's end was seen, 0 before. ``resumed`` marks the order of another process, ``doubtful``
    one of which it is not known whether it was sent.
    """

    order: Order
    azure_pool: AzurePool
    group: Group
    before: frozenset[str]
    at: float
    url: str = ""
    queued: bool = False
    awaited: bool = False
    not_before: float = 0.0
    resumed: bool = False
    doubtful: bool = False
    queued_at: float = 0.0
    read_at: float = 0.0
    ended_at: float = 0.0
    failure: ArmFailure | None = None
    machines: dict[str, VirtualMachine] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        return max(0, self.order.count - len(self.machines))


def refused(order: Order, cause: str, detail: str, retry_after: float = 0.0) -> BuyResult:
    """The answer to an order of which nothing is bought, for ``cause``."""
    return BuyResult(refusals=tuple(Refusal(cause, key, detail, retry_after=retry_after) for key in order.offerings))
