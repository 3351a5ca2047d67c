"""The cloud as the controller knows it: its newest list, what it announced, and the calls that are out."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.protocol import (
    CONFIGURATION,
    INTERRUPTION,
    MAINTENANCE,
    TERMINATION,
    UNAUTHORISED,
    UNKNOWN,
    Bought,
    CloudError,
    LostAnswerError,
    Order,
    Provider,
    Refusal,
    Unfilled,
)
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.lifecycle import scale_in_protection
from gpuscaler.lifecycle.actions import Protect
from gpuscaler.lifecycle.answers import of_answer
from gpuscaler.model.instances import ALIVE, Instance, Inventory
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger

_LOG = structlog.get_logger(__name__)
#: Errors that say that another process leads, or that the API server cannot be used.
STOPPING = (ApiError, Unreachable, NotLeaderError)

#: How often the cloud is asked for its list, its notices and its pools, in seconds, and how long one call may take. A lease of 15 s that is
#: renewed every 2 s always has more than 10 s left, and no call begins that may outlast it. Azure gives some machines 30 s: within three of
#: them their pods are to know.
LIST_SECONDS, NOTICE_SECONDS = 10.0, 2.0
#: How often its list is read while machines are about to enter service that their group may end before they are protected. A group takes
#: some 20 s to start another one before it ends one to even out zones (aws/containers-roadmap#1453).
OFTEN_SECONDS = 2.0
#: How often it is asked what became of orders that it took and has not filled, in seconds, while there are any.
FOLLOW_SECONDS = 3.0
CALL_SECONDS = 10.0
#: After failures it is asked ever more rarely, at most so many seconds apart, and a twelfth as often: notices wait for nobody.
LONGEST_PAUSE = 120.0
#: A machine that was launched so long ago is on every list that is not older than the provider says, in seconds.
SETTLED_SECONDS = 60.0


class Answered(Struct, frozen=True, gc=False):
    """What came of an order: steps for the ledger, fates for breakers."""

    order: ledger.Order
    steps: tuple[ledger.Event, ...]
    fates: tuple[offering_events.Event, ...]
    detail: str = ""


class Ended(Struct, frozen=True, gc=False):
    """What came of ending a machine; ``detail`` is empty where it is ending or gone. It was ``held`` where pods were found on it."""

    instance: str
    node: str
    detail: str = ""
    held: bool = False


class Cloud:
    """Asks ``provider``, keeps its newest list, and collects answers until the loop takes them.

    ``fence`` is called right before every call that changes something, with the seconds that it may take, and raises to stop it. ``now``
    is the wall clock, ``wake`` is called whenever there is something new.
    """

    def __init__(self, provider: Provider, *, now: Callable[[], float], fence: Callable[[float], None], wake: Callable[[], None]) -> None:
        self.provider = provider
        self.inventory: Inventory | None = None
        #: When the cloud takes machines away, and when it works on some, by id; 0 where it did not say.
        self.going: Mapping[str, float] = {}
        self.worked_on: Mapping[str, float] = {}
        #: Why the cloud takes machines away that are no interrupted spot, in words, by id.
        self.why: Mapping[str, str] = {}
        self._listing = asyncio.Lock()
        self._guarded: list[scale_in_protection.ProtectionAnswered] = []
        #: What goes wrong now, by what was asked.
        self._troubles: dict[str, str] = {}
        #: What was announced beside interruptions and is known already, by machine and word.
        self._announced: set[tuple[str, str]] = set()
        self._repeated: frozenset[tuple[str, str]] = frozenset()
        self._news: list[tuple[str, str]] = []
        self._vanished: list[Instance] = []
        self._now = now
        self._fence = fence
        self._wake = wake
        self._answers: list[Answered] = []
        self._ended: list[Ended] = []
        self._withdrawn: list[str] = []
        self._out: set[str] = set()
        #: Orders that machines may still come of, and how many.
        self._unfilled: dict[str, tuple[ledger.Order, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._wanted = asyncio.Event()
        self._often = False

    @property
    def trouble(self) -> str:
        """What goes wrong now, in sentences; empty where nothing does."""
        return "; ".join(dict.fromkeys(self._troubles.values()))

    # Watching

    async def watch(self) -> None:
        """Keep the list and the notices fresh, until cancelled. A list that fails holds no notice up: a machine may have 30 s left."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for ask, every in ((self.refresh, LIST_SECONDS), (self.hear, NOTICE_SECONDS), (self.follow, FOLLOW_SECONDS)):
                    tasks.create_task(self._repeat(ask, every))
        except ExceptionGroup as group:
            # What nobody foresaw, by its own name.
            raise group.exceptions[0] from None

    async def _repeat(self, ask: Callable[[], Coroutine[Any, Any, None]], every: float) -> None:
        """Ask again and again, ever more rarely while it fails."""
        pause = every
        while True:
            try:
                await ask()
                pause = every
                self._troubles.pop(ask.__name__, None)
            except (CloudError, LostAnswerError, TimeoutError) as error:
                self._troubles[ask.__name__] = f"{self.provider.name}: {spoken(error)}"
                pause = max(min(2 * pause, LONGEST_PAUSE, 12 * every), getattr(error, "retry_after", 0.0))
            except STOPPING:
                raise
            except Exception as error:  # noqa: BLE001  # one odd answer must not end the list of all machines
                self._troubles[ask.__name__] = f"{self.provider.name}: {unforeseen(error)}"
                _LOG.exception("the cloud could not be asked", what=ask.__name__)
                pause = min(2 * pause, LONGEST_PAUSE, 12 * every)
            often = self._often and ask == self.refresh and pause == every
            await self._pause(OFTEN_SECONDS if often else pause, cut_short=ask == self.refresh)

    async def _pause(self, seconds: float, *, cut_short: bool) -> None:
        """Wait, or for less where a list is wanted at once."""
        if not cut_short:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        self._wanted.clear()

    def hasten(self) -> None:
        """Read the list at once. What fails goes on to be tried ever more rarely."""
        if not self._troubles:
            self._wanted.set()

    def read_often(self, often: bool) -> None:
        """Read the list every two seconds from now on, or as usual again."""
        if often and not self._often:
            self.hasten()
        self._often = often

    async def refresh(self) -> None:
        """Ask for the list once. Half an answer is none: the old list stays when this raises."""
        async with self._listing:
            await self._refresh()

    async def _refresh(self) -> None:
        asked = self._now()
        async with asyncio.timeout(CALL_SECONDS):
            # By our own clock, as everything that it is compared with: the cloud's may be minutes off.
            inventory = replace(await self.provider.inventory(), at=asked)
        before = self.inventory.instances if self.inventory is not None else None
        if before == inventory.instances:
            # The very same list: what follows from it need not be worked out again.
            inventory = replace(inventory, instances=before)
        if self.inventory is None or before != inventory.instances or self.inventory.deliveries != inventory.deliveries:
            self._wake()
        alive = {one.id for one in inventory.instances if one.state in ALIVE}
        # A machine that has just been bought may come and go in the lists of a cloud that is only consistent in the end.
        settled = inventory.at - self.provider.read_lag - SETTLED_SECONDS
        self._vanished += [one for one in before or () if one.state in ALIVE and one.id not in alive and one.launched < settled]
        self.inventory = inventory
        self.going = {name: at for name, at in self.going.items() if name in alive}
        self.worked_on = {name: at for name, at in self.worked_on.items() if name in alive}
        self.why = {name: why for name, why in self.why.items() if name in alive}
        # Some clouds repeat what they announced of a machine even after it ended.
        self._announced = {one for one in self._announced if one[0] in alive or one in self._repeated}

    async def hear(self) -> None:
        """Ask once what the cloud has announced."""
        async with asyncio.timeout(CALL_SECONDS):
            notices = await self.provider.notices()
        if not notices:
            # Nearly always.
            self._repeated = frozenset()
            return
        going = {**self.going, **{one.instance: one.at for one in notices if one.kind == INTERRUPTION}}
        self.why = {**self.why, **{one.instance: one.why for one in notices if one.why}}
        self.worked_on = {**self.worked_on, **{one.instance: one.at for one in notices if one.kind == MAINTENANCE}}
        words = [(one.instance, one.kind) for one in notices if one.kind not in (INTERRUPTION, TERMINATION)]
        news = [one for one in words if one not in self._announced]
        self._announced.update(news)
        self._repeated = frozenset((one.instance, one.kind) for one in notices)
        self._news += dict.fromkeys(news)
        if going != self.going or news:
            self.going = going
            self._wake()
        if any(one.kind == TERMINATION for one in notices):
            # The list says until when each is held; it is not waited for until its turn comes.
            await self.refresh()

    async def follow(self) -> None:
        """Ask once what became of orders that are not filled; nothing where there are none."""
        if not self._unfilled:
            return
        async with asyncio.timeout(CALL_SECONDS):
            answers = await self.provider.follow([unfilled(*one) for one in self._unfilled.values()])
        for token, bought in answers:
            if (known := self._unfilled.pop(token, None)) is not None:
                self._answers.append(answered(known[0], bought, self._now()))
                self._wake()

    def found(self) -> tuple[tuple[tuple[str, str], ...], tuple[Instance, ...]]:
        """What was announced beside interruptions, by machine and in a word, and the machines that vanished, since the last call."""
        found = tuple(self._news), tuple(self._vanished)
        self._news, self._vanished = [], []
        return found

    def fresh(self, now: float, *, within: float) -> bool:
        return self.inventory is not None and now - self.inventory.at <= within

    # Buying and ending

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def buy(self, order: ledger.Order) -> None:
        """Send an order, once at a time; the answer is kept for :meth:`take`."""
        if order.token not in self._out:
            self._out.add(order.token)
            self._spawn(self._buy(order))

    def end(self, instance: str, node: str, look: Callable[[], Coroutine[Any, Any, str]] | None = None) -> None:
        """End a machine, unless ``look``, right before, finds who is on it, in words."""
        self._spawn(self._end(instance, node, look))

    def extend(self, instance: str) -> None:
        """Ask the cloud to hold a machine that it ends for longer; where that fails it lasts as long as was said."""
        self._spawn(self._extend(instance))

    def protect(self, act: Protect) -> None:
        """Protect machines from their group, or take that off again; what came of it is kept for :meth:`guarded`."""
        self._spawn(self._protect(act))

    def guarded(self) -> tuple[scale_in_protection.ProtectionAnswered, ...]:
        """What came of protecting machines since the last call."""
        found, self._guarded = tuple(self._guarded), []
        return found

    def withdraw(self, one: ledger.Withdrawal) -> None:
        self._spawn(self._withdraw(one))

    def expect(self, book: ledger.Ledger) -> None:
        """Ask from now on what becomes of the orders of ``book`` that lack machines, whichever process sent them."""
        missing = ledger.unnamed(book) if book.orders else {}
        sent = (order for order in book.orders if order.state != ledger.INTENDED)
        self._unfilled = {order.token: (order, missing[order.token]) for order in sent if order.token in missing}

    def take(self) -> tuple[list[Answered], list[Ended], list[str]]:
        """What has been answered since the last call, orders whose withdrawal was confirmed by their tokens.

        Raises what stopped a call before it was sent: leadership that is lost.
        """
        if self._failure is not None:
            raise self._failure
        found = self._answers, self._ended, self._withdrawn
        self._answers, self._ended, self._withdrawn = [], [], []
        return found

    async def close(self) -> None:
        """Wait for what is out, then let go of the provider."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.provider.close()

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        self._wake()

    async def _buy(self, order: ledger.Order) -> None:
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                bought = await self.provider.buy(Order(order.token, order.pool, order.offerings, order.count))
            answer = answered(order, bought, self._now())
        except CloudError as error:
            answer = refused(order, error, self._now())
        except (LostAnswerError, TimeoutError) as error:
            answer = Answered(order, (ledger.Doubted(order.token, self._now()),), (), f"the answer was lost: {spoken(error)}")
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # nothing that a cloud answers ends what serves all pods
            # Whether anything was bought is not known: the order is sent again with the same token.
            _LOG.exception("an order could not be sent", order=order.token)
            answer = Answered(order, (ledger.Doubted(order.token, self._now()),), (), unforeseen(error))
        finally:
            self._out.discard(order.token)
        self._answers.append(answer)

    async def _end(self, instance: str, node: str, look: Callable[[], Coroutine[Any, Any, str]] | None) -> None:
        detail = found = ""
        try:
            if look is not None:
                async with asyncio.timeout(CALL_SECONDS):
                    found = await look()
            if not found:
                self._fence(CALL_SECONDS)
                async with asyncio.timeout(CALL_SECONDS):
                    refusal = (await self.provider.remove((instance,))).get(instance)
                detail = refusal.detail or refusal.cause if refusal is not None else ""
        except (CloudError, LostAnswerError, TimeoutError, ApiError, Unreachable) as error:
            detail = spoken(error)
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # nothing that a cloud answers ends what serves all pods
            _LOG.exception("a machine could not be ended", machine=instance)
            detail = unforeseen(error)
        self._ended.append(Ended(instance, node, found or detail, bool(found)))

    async def _protect(self, act: Protect) -> None:
        problem = ""
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.protect(act.instances, on=act.on)
            # The list confirms it.
            await self.refresh()
        except CloudError as error:
            # A machine that is not in service yet, a throttle or a lost connection says nothing of the group.
            problem = spoken(error) if error.cause in (UNAUTHORISED, CONFIGURATION) else UNKNOWN
        except (LostAnswerError, TimeoutError):
            problem = UNKNOWN
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # nothing that a cloud answers ends what serves all pods
            _LOG.exception("machines could not be protected", machines=act.instances)
            problem = unforeseen(error)
        if problem != UNKNOWN:
            self._guarded += [scale_in_protection.ProtectionAnswered(name, act.pool, act.on, problem) for name in act.instances]

    async def _extend(self, instance: str) -> None:
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.extend((instance,))
        except (CloudError, LostAnswerError, TimeoutError) as error:
            _LOG.warning("a machine could not be held for longer", machine=instance, problem=spoken(error))
        except STOPPING:
            raise
        except Exception:  # noqa: BLE001  # nothing that a cloud answers ends what serves all pods
            _LOG.exception("a machine could not be held for longer", machine=instance)

    async def _withdraw(self, one: ledger.Withdrawal) -> None:
        order = one.order or ledger.Order(one.token, "", (), 0, at=0.0, since=0.0)
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.withdraw(unfilled(order, one.missing))
            self._withdrawn.append(one.token)
            self._troubles.pop(one.token, None)
        except (CloudError, LostAnswerError, TimeoutError) as error:
            self._troubles[one.token] = f"{self.provider.name}: order {one.token} could not be withdrawn: {spoken(error)}"
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # nothing that a cloud answers ends what serves all pods
            _LOG.exception("an order could not be withdrawn", order=one.token)
            self._troubles[one.token] = f"{self.provider.name}: order {one.token} could not be withdrawn: {unforeseen(error)}"


def unfilled(order: ledger.Order, missing: int) -> Unfilled:
    """What a provider is told of an order that lacks machines."""
    asked = Order(order.token, order.pool, order.offerings, order.count)
    return Unfilled(asked, missing, order.at, accepted=order.state == ledger.ACCEPTED)


def refused(order: ledger.Order, error: CloudError, now: float) -> Answered:
    """What it means that a call as a whole came to nothing.

    An order that was sent before may have been granted then: that this call came to nothing says nothing about it.
    """
    if order.state == ledger.DOUBTFUL:
        return Answered(order, (ledger.Doubted(order.token, now + error.retry_after),), (), error.detail)
    refusals = tuple(Refusal(error.cause, key, error.detail, retry_after=error.retry_after) for key in order.offerings)
    return answered(order, Bought(refusals=refusals), now)


def spoken(error: Exception) -> str:
    return f"no answer within {CALL_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)


def unforeseen(error: Exception) -> str:
    return f"saw {type(error).__name__}: {str(error)[:200]}, expected an answer that is understood; it is asked again; please report it"


def answered(order: ledger.Order, bought: Bought, now: float) -> Answered:
    """What an answer means to the ledger and to breakers."""
    granted = tuple((one.id, one.key) for one in bought.instances)
    short = order.count - len(granted) - bought.pending
    refusals = (
        offering_events.Refused(
            one.offering, now, one.cause, one.detail, bucket=one.bucket, every_zone=one.every_zone, retry_after=one.retry_after
        )
        for one in bought.refusals
    )
    fates = of_answer((key for _, key in granted), refusals, now, missing=short)
    launched = {one.id: one.launched for one in bought.instances if one.launched}
    step = ledger.Answered(order.token, now, granted, bought.pending, launched)
    detail = "; ".join(dict.fromkeys(one.detail or one.cause for one in bought.refusals)) if short > 0 else ""
    return Answered(order, (step,), fates, detail)
