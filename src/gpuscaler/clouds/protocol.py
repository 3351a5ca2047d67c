"""The interface of cloud providers for the controller: list machines, buy, end by id, report announcements.

A provider holds no state that a restart may not lose, and makes no decisions: it passes requests to its cloud and reports the results in
the few types below. Retries are up to the caller, which has breakers; a provider never retries a write.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.aside import Skipped
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Pool

#: Why a cloud did not fulfil a request: the causes that breakers know.
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

#: What a cloud announces about a machine: it will be taken away, pods should move away soon, maintenance is scheduled, its group ends it.
#: For the last one, the list of machines has the details.
INTERRUPTION, REBALANCE, MAINTENANCE, TERMINATION = "interruption", "rebalance", "maintenance", "termination"
#: A notice about no machine: a message that ``gpuscaler doctor --send-test-message`` sent to see whether notices arrive.
TEST = "test"


class Refusal(Struct, frozen=True, gc=False):
    """Why machines of ``offering`` were not granted; ``detail`` is the cloud's message.

    ``bucket`` holds all instance types that the answer covers (those of a quota), ``every_zone`` means that it covers all zones, and
    ``retry_after`` is the minimum wait in seconds that the cloud asks for. Where pools of several accounts buy in one region,
    ``account_pools`` are those of the account that answered; empty, the answer covers all pools.
    """

    cause: str
    offering: OfferingKey
    detail: str = ""
    bucket: tuple[str, ...] = ()
    every_zone: bool = False
    retry_after: float = 0.0
    account_pools: tuple[str, ...] = ()


class Order(Struct, frozen=True, gc=False):
    """``count`` machines of any of ``offerings``, all of one pool, the preferred offering first.

    A provider that keeps tokens answers a repeated order with the same ``token`` as it answered the first one, and buys nothing.
    """

    token: str
    pool: str
    offerings: tuple[OfferingKey, ...]
    count: int


class UnfilledOrder(Struct, frozen=True, gc=False):
    """An order that was sent at ``at``, in seconds since the epoch, and of which ``missing`` machines have not come.

    ``accepted`` means that the cloud is known to have taken it, and ``operation`` is what it answered in :attr:`BuyResult.operation`. All
    of this is passed with every question, since the caller may not be the process that sent the order.
    """

    order: Order
    missing: int
    at: float
    accepted: bool = True
    operation: str = ""


class BuyResult(Struct, frozen=True, gc=False):
    """The answer to an order: ``instances`` are granted; ``pending`` more were accepted, have no ids yet and will appear in the inventory.

    The rest was refused, for the reasons in ``refusals``. ``operation`` is by what the cloud tells the progress of what is pending, such as
    the URL of an operation; it is kept with the order.
    """

    instances: tuple[Instance, ...] = ()
    pending: int = 0
    refusals: tuple[Refusal, ...] = ()
    operation: str = ""


class UnreadPart(Struct, frozen=True, gc=False):
    """A part of an account that could not be read now: its name, the reason for people, and one of :data:`CAUSES`."""

    object: str
    reason: str
    cause: str = UNKNOWN

    @property
    def text(self) -> str:
        return f"{self.object}: {self.reason}"


class AccountReport(Struct, frozen=True):
    """The result of reading an account: its pools, and what is to be reported about them.

    ``ways`` describes how machines of a pool are bought, ``taint_advice`` what to do about nodes of a pool that register without
    gpuscaler's taint. ``failed`` lists the parts of the account that could not be read, and why; their
    pools are those of an earlier pass. ``complete`` means that every part has answered at least once.
    """

    pools: tuple[Pool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    ways: Mapping[str, str] = {}
    taint_advice: Mapping[str, str] = {}
    failed: tuple[UnreadPart, ...] = ()
    complete: bool = True


class Notice(Struct, frozen=True, gc=False):
    """What the cloud will do to a machine at ``at``, in seconds since the epoch (0 if unknown). ``why`` is the reason as text.

    ``instance`` is the machine's id; of a :data:`TEST` it is the id of the test message.
    """

    kind: str
    instance: str
    at: float = 0.0
    why: str = ""


class CloudError(Exception):
    """A whole call failed, for one of :data:`CAUSES`; nothing was changed.

    ``retry_after`` is the minimum wait in seconds.
    """

    def __init__(self, cause: str, detail: str, *, retry_after: float = 0.0) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after


class LostAnswerError(Exception):
    """It is unknown whether a call took effect: it timed out or the connection broke after it was sent."""


class Provider(Protocol):
    """One cloud. Every call may raise :class:`CloudError`; writes may also raise :class:`LostAnswerError`.

    ``keeps_tokens`` means that repeating an order with the same token is safe; ``read_lag`` is by how many seconds the inventory may be
    behind. A machine that the cloud tags as another cluster's, or that has no owner, is never listed and never ended. An ended machine is
    listed as ``terminated`` for as long as the cloud reports it: its absence from the list does not prove that it is gone.
    """

    name: str
    read_lag: float

    @property
    def keeps_tokens(self) -> bool: ...

    async def pools(self) -> Sequence[Pool]:
        """The pools with their offerings and current prices; a provider that reads none returns the pools that it was given."""
        ...

    async def inventory(self) -> Inventory: ...

    async def buy(self, order: Order) -> BuyResult: ...

    async def follow(self, orders: Sequence[UnfilledOrder], /) -> Sequence[tuple[str, BuyResult]]:
        """Final answers, by token, to ``orders`` that were accepted or whose answer was lost, if the cloud reports what became of them.

        What is refused here is no longer being tried.
        """
        ...

    async def withdraw(self, rest: UnfilledOrder, /) -> None:
        """Cancel what an order still lacks; existing machines are left alone. Raises CloudError if that is not possible yet."""
        ...

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        """End machines by id: for each, None if it is ending, gone or never existed, else the refusal."""
        ...

    async def extend(self, ids: Sequence[str]) -> None:
        """Ask the cloud to delay the end of machines that are still being drained by another period, if the cloud supports that."""
        ...

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """Keep the groups of these machines from ending them, or allow it again if ``on`` is False."""
        ...

    async def notices(self) -> Sequence[Notice]:
        """The announcements since the last call."""
        ...

    async def close(self) -> None: ...
