"""What every cloud provider does for the controller: list machines, buy, remove by id, warn.

A provider holds no state that a restart may lose, and decides nothing: it carries requests to its cloud and says what came of them in the
few words below. Retries belong to the caller, who has breakers; a provider retries nothing that changes something.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.aside import SetAside
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Pool

#: Why a cloud did not do what it was asked: the words that breakers know.
CAPACITY, QUOTA, PRICE, CONFIGURATION, THROTTLED, UNAUTHORISED, UNKNOWN = (
    "capacity",
    "quota",
    "price",
    "configuration",
    "throttled",
    "unauthorised",
    "unknown",
)
CAUSES = (CAPACITY, QUOTA, PRICE, CONFIGURATION, THROTTLED, UNAUTHORISED, UNKNOWN)

#: What a cloud announces about a machine: it will take it away, it asks to move away soon, it will work on it, its group ends it, which the
#: list of machines says in full.
INTERRUPTION, REBALANCE, MAINTENANCE, TERMINATION = "interruption", "rebalance", "maintenance", "termination"


class Refusal(Struct, frozen=True, gc=False):
    """Why machines of ``offering`` were not granted; ``detail`` is what the cloud said.

    ``bucket`` are all instance types that the answer speaks of (a quota's), ``every_zone`` says that it speaks of all zones, and
    ``retry_after`` are seconds that the cloud asks to wait at least.
    """

    cause: str
    offering: OfferingKey
    detail: str = ""
    bucket: tuple[str, ...] = ()
    every_zone: bool = False
    retry_after: float = 0.0


class Order(Struct, frozen=True, gc=False):
    """``count`` machines of any of ``offerings``, all of one pool, the most wanted first.

    A provider that keeps tokens answers a second order with the same ``token`` as it answered the first and buys nothing.
    """

    token: str
    pool: str
    offerings: tuple[OfferingKey, ...]
    count: int


class Unfilled(Struct, frozen=True, gc=False):
    """An order that was sent at ``at``, in seconds since the epoch, and of which ``missing`` machines have not come.

    ``accepted`` says that the cloud is known to have taken it. It is told with every question, since whoever asks may be another process
    than the one that sent it.
    """

    order: Order
    missing: int
    at: float
    accepted: bool = True


class Bought(Struct, frozen=True, gc=False):
    """The answer to an order: ``instances`` are granted, ``pending`` more were accepted and will show in the inventory without a name yet.

    What is in neither was refused, for the reasons in ``refusals``.
    """

    instances: tuple[Instance, ...] = ()
    pending: int = 0
    refusals: tuple[Refusal, ...] = ()


class Looked(Struct, frozen=True):
    """What a look at an account found: its pools, and what is to be told of them.

    ``ways`` says how machines of a pool are bought, in words. ``failed`` are parts of the account that did not answer, and why; pools
    there are those of an earlier look. ``complete`` says that every part has answered at least once.
    """

    pools: tuple[Pool, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    warnings: tuple[str, ...] = ()
    ways: Mapping[str, str] = {}
    failed: tuple[str, ...] = ()
    complete: bool = True


class Notice(Struct, frozen=True, gc=False):
    """What the cloud will do to a machine at ``at``, in seconds since the epoch; 0 when it does not say. ``why`` says it in words."""

    kind: str
    instance: str
    at: float = 0.0
    why: str = ""


class CloudError(Exception):
    """A call as a whole came to nothing, for one of :data:`CAUSES`; nothing was changed.

    ``retry_after`` are seconds to wait at least.
    """

    def __init__(self, cause: str, detail: str, *, retry_after: float = 0.0) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after


class LostAnswerError(Exception):
    """Nobody knows whether a call took effect: time ran out or the connection broke after it was sent."""


class Provider(Protocol):
    """One cloud. Every call may raise :class:`CloudError`; those that change something may raise :class:`LostAnswerError`.

    ``keeps_tokens`` says that a repeated order with the same token is safe; ``read_lag`` is by how many seconds the inventory may be
    behind. A machine that the cloud tags as another cluster's, or nobody's, is never listed, and never removed. One that ended is listed as
    ``terminated`` for as long as the cloud tells of it: that it is not listed any more does not say that it is gone.
    """

    name: str
    read_lag: float

    @property
    def keeps_tokens(self) -> bool: ...

    async def pools(self) -> Sequence[Pool]:
        """The pools with their offerings and what these cost now; a provider that reads none from its cloud returns those it was given."""
        ...

    async def inventory(self) -> Inventory: ...

    async def buy(self, order: Order) -> Bought: ...

    async def follow(self, orders: Sequence[Unfilled], /) -> Sequence[tuple[str, Bought]]:
        """Final answers, by token, to ``orders`` that were accepted or whose answer was lost, where the cloud tells what became of them.

        What is refused here is not tried any longer.
        """
        ...

    async def withdraw(self, rest: Unfilled, /) -> None:
        """Want no more of what an order still lacks; machines that exist are left alone. Raises CloudError where it cannot be yet."""
        ...

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        """End machines by their ids: for each None when it is ending, gone, or was never there, else why not."""
        ...

    async def extend(self, ids: Sequence[str]) -> None:
        """Ask the cloud to hold machines that it ends for as long again, since they are still being emptied, where it offers that."""
        ...

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """Have the groups of these machines end none of them by themselves, or let them again where ``on`` is False."""
        ...

    async def notices(self) -> Sequence[Notice]:
        """What has been announced since the last call."""
        ...

    async def close(self) -> None: ...
