"""The cloud as the controller sees it: the newest list of machines, announcements, and calls in progress."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.call_errors import MACHINES, NOTICES, ORDERS, WITHDRAWALS, CallError, CallErrors, cause_of
from gpuscaler.clouds.protocol import (
    CONFIGURATION,
    INTERRUPTION,
    MAINTENANCE,
    TERMINATION,
    TEST,
    UNAUTHORISED,
    UNKNOWN,
    BuyResult,
    CloudError,
    LostAnswerError,
    Order,
    Provider,
    Refusal,
    UnfilledOrder,
)
from gpuscaler.control.loop.ending import EndCall, EndResult, end_machines
from gpuscaler.control.loop.failing import CALL_SECONDS, STOPPING, describe_call_error, describe_unexpected_error
from gpuscaler.lifecycle import scale_in_protection
from gpuscaler.lifecycle.actions import Protect
from gpuscaler.lifecycle.answers import events_of_answer
from gpuscaler.model.instances import ALIVE, Instance, Inventory
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger

_LOG = structlog.get_logger(__name__)

#: How often the list and the notices are read from the cloud, in seconds. Azure gives some machines a notice of 30 s: pods there should be
#: warned within 3 s.
LIST_SECONDS, NOTICE_SECONDS = 10.0, 2.0
#: How often the list is read while machines are about to enter service that their group may end before they are protected, in seconds.
#: To rebalance zones, a group takes about 20 s to start another machine before it ends one (aws/containers-roadmap#1453).
OFTEN_SECONDS = 2.0
#: How often the cloud is asked about orders that it accepted and has not filled, in seconds, while there are any.
FOLLOW_SECONDS = 3.0
#: After failures the interval grows to at most this many seconds, and to at most 12 times the usual one: notices must not wait long.
LONGEST_PAUSE = 120.0
#: How long ago a machine must have been launched to be on every list, in seconds, in addition to the lag that the provider states.
SETTLED_SECONDS = 60.0


class OrderAnswer(Struct, frozen=True, gc=False):
    """The result of an order: steps for the ledger, and what became of each offering, for the breakers."""

    order: ledger.Order
    steps: tuple[ledger.Event, ...]
    fates: tuple[offering_events.Event, ...]
    detail: str = ""


class MessageReceipt(Struct, frozen=True, gc=False):
    """A test message, which ``gpuscaler doctor`` sent to the queue of notices, arrived here at ``at``, in seconds since the epoch."""

    id: str = ""
    at: float = 0.0


class Cloud:
    """Calls ``provider``, keeps its newest list, and collects answers until the loop takes them.

    ``fence`` is called right before each call that changes something, with the seconds that the call may take; it raises to stop the
    call. ``now`` is the wall clock, ``wake`` is called whenever there is something new.
    """

    def __init__(self, provider: Provider, *, now: Callable[[], float], fence: Callable[[float], None], wake: Callable[[], None]) -> None:
        self.provider = provider
        self.inventory: Inventory | None = None
        #: The times of interruptions and of scheduled maintenance, by the machine's id; 0 if the cloud stated no time.
        self.taken_away_at: Mapping[str, float] = {}
        self.maintenance_at: Mapping[str, float] = {}
        #: Why the cloud takes machines away for other reasons than a spot interruption, in words, by id.
        self.why: Mapping[str, str] = {}
        #: The last test message that arrived.
        self.test_receipt = MessageReceipt()
        self._listing = asyncio.Lock()
        self._protection_answers: list[scale_in_protection.ProtectionAnswered] = []
        #: The errors of calls that are repeated: of the list, of notices, of orders that are followed or withdrawn.
        self.errors = CallErrors()
        #: Announcements other than interruptions that are known already, by machine and kind.
        self._announced: set[tuple[str, str]] = set()
        self._repeated: frozenset[tuple[str, str]] = frozenset()
        self._announcements: list[tuple[str, str]] = []
        self._vanished: list[Instance] = []
        self._now = now
        self._fence = fence
        self._wake = wake
        self._answers: list[OrderAnswer] = []
        self._ended: list[EndResult] = []
        self._withdrawn: list[str] = []
        self._sending: set[str] = set()
        #: Orders that may still bring machines, with the number of those machines.
        self._unfilled: dict[str, tuple[ledger.Order, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._wanted = asyncio.Event()
        self._reads_often = False

    @property
    def trouble(self) -> str:
        """The calls that fail now, in sentences; empty if none fails."""
        return self.errors.text

    # Watching

    async def watch(self) -> None:
        """Keep the list and the notices fresh, until cancelled. A failing list delays no notice: a machine may have only 30 s left."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for part, ask, every in (
                    (MACHINES, self.refresh, LIST_SECONDS),
                    (NOTICES, self.read_notices, NOTICE_SECONDS),
                    (ORDERS, self.follow, FOLLOW_SECONDS),
                ):
                    tasks.create_task(self._repeat(part, ask, every))
        except ExceptionGroup as group:
            # An unexpected error is raised as itself, not as a group.
            raise group.exceptions[0] from None

    async def _repeat(self, part: str, ask: Callable[[], Coroutine[Any, Any, None]], every: float) -> None:
        """Call ``ask`` for ``part`` again and again, with growing pauses while it fails."""
        pause = every
        while True:
            try:
                await ask()
                pause = every
                self.errors.succeed(part)
            except (CloudError, LostAnswerError, TimeoutError) as error:
                self._note_failure(part, part, error, describe_call_error(error))
                pause = max(min(2 * pause, LONGEST_PAUSE, 12 * every), getattr(error, "retry_after", 0.0))
            except STOPPING:
                raise
            except Exception as error:  # noqa: BLE001  # one unexpected answer must not end the list of all machines
                self._note_failure(part, part, error, describe_unexpected_error(error))
                _LOG.exception("the cloud could not be queried", what=part)
                pause = min(2 * pause, LONGEST_PAUSE, 12 * every)
            often = self._reads_often and ask == self.refresh and pause == every
            await self._pause(OFTEN_SECONDS if often else pause, cut_short=ask == self.refresh)

    def _note_failure(self, name: str, part: str, error: Exception, text: str) -> None:
        self.errors.fail(name, CallError(part, cause_of(error), f"{self.provider.name}: {text}"))

    async def _pause(self, seconds: float, *, cut_short: bool) -> None:
        """Wait; with ``cut_short``, only until a list is wanted at once."""
        if not cut_short:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        self._wanted.clear()

    def refresh_soon(self) -> None:
        """Read the list at once. Calls that fail keep their growing pauses."""
        if not self.errors.failing:
            self._wanted.set()

    def read_often(self, often: bool) -> None:
        """Read the list every two seconds from now on, or as usual again."""
        if often and not self._reads_often:
            self.refresh_soon()
        self._reads_often = often

    async def refresh(self) -> None:
        """Read the list once. A partial answer does not count: the old list stays if this raises."""
        async with self._listing:
            await self._refresh()

    async def _refresh(self) -> None:
        asked_at = self._now()
        async with asyncio.timeout(CALL_SECONDS):
            inventory = await self.provider.inventory()
        # The time of the local clock, since all other times are local too: the cloud's clock may be minutes off.
        inventory = replace(inventory, at=asked_at - inventory.age)
        before = self.inventory.instances if self.inventory is not None else None
        if before == inventory.instances:
            # An equal list keeps its identity, so that data derived from the list are not computed again.
            inventory = replace(inventory, instances=before)
        if self.inventory is None or before != inventory.instances or self.inventory.deliveries != inventory.deliveries:
            self._wake()
        alive = {instance.id for instance in inventory.instances if instance.state in ALIVE}
        # A machine that has just been bought may come and go in the lists of an eventually consistent cloud.
        settled = inventory.at - self.provider.read_lag - SETTLED_SECONDS
        self._vanished += [
            instance for instance in before or () if instance.state in ALIVE and instance.id not in alive and instance.launched < settled
        ]
        self.inventory = inventory
        self.taken_away_at = {name: at for name, at in self.taken_away_at.items() if name in alive}
        self.maintenance_at = {name: at for name, at in self.maintenance_at.items() if name in alive}
        self.why = {name: why for name, why in self.why.items() if name in alive}
        # Some clouds repeat announcements about a machine even after it ended.
        self._announced = {announcement for announcement in self._announced if announcement[0] in alive or announcement in self._repeated}

    async def read_notices(self) -> None:
        """Read the cloud's notices once."""
        async with asyncio.timeout(CALL_SECONDS):
            received = await self.provider.notices()
        notices = [notice for notice in received if notice.kind != TEST]
        if len(notices) < len(received):
            self._note_test(next(notice.instance for notice in reversed(received) if notice.kind == TEST))
        if not notices:
            # The usual case.
            self._repeated = frozenset()
            return
        going = {**self.taken_away_at, **{notice.instance: notice.at for notice in notices if notice.kind == INTERRUPTION}}
        self.why = {**self.why, **{notice.instance: notice.why for notice in notices if notice.why}}
        self.maintenance_at = {**self.maintenance_at, **{notice.instance: notice.at for notice in notices if notice.kind == MAINTENANCE}}
        announcements = [(notice.instance, notice.kind) for notice in notices if notice.kind not in (INTERRUPTION, TERMINATION)]
        new_announcements = [announcement for announcement in announcements if announcement not in self._announced]
        self._announced.update(new_announcements)
        self._repeated = frozenset((notice.instance, notice.kind) for notice in notices)
        self._announcements += dict.fromkeys(new_announcements)
        if going != self.taken_away_at or new_announcements:
            self.taken_away_at = going
            self._wake()
        if any(notice.kind == TERMINATION for notice in notices):
            # The list says how long each of these machines is held, so it is read at once instead of at the next interval.
            await self.refresh()

    def _note_test(self, ident: str) -> None:
        """Record that a test message arrived; nothing else follows from it."""
        self.test_receipt = MessageReceipt(ident, self._now())
        _LOG.info("a test message of gpuscaler doctor arrived; it is ignored", id=ident)

    async def follow(self) -> None:
        """Ask once about orders that are not filled, if there are any."""
        if not self._unfilled:
            return
        async with asyncio.timeout(CALL_SECONDS):
            answers = await self.provider.follow([to_unfilled(*unfilled_order) for unfilled_order in self._unfilled.values()])
        for token, bought in answers:
            if (entry := self._unfilled.pop(token, None)) is not None:
                await self._keep_answer(order_answer(entry[0], bought, self._now()))
                self._wake()

    def take_announcements(self) -> tuple[tuple[tuple[str, str], ...], tuple[Instance, ...]]:
        """Announcements other than interruptions, by machine and kind, and the machines that vanished, since the last call."""
        taken = tuple(self._announcements), tuple(self._vanished)
        self._announcements, self._vanished = [], []
        return taken

    def is_fresh(self, now: float, *, within: float) -> bool:
        return self.inventory is not None and now - self.inventory.at <= within

    # Buying and ending

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def buy(self, order: ledger.Order) -> None:
        """Send an order unless it is being sent already; the answer is kept for :meth:`take_answers`."""
        if order.token not in self._sending:
            self._sending.add(order.token)
            self._spawn(self._buy(order))

    def end(self, calls: Sequence[EndCall]) -> None:
        """End machines. All are checked first and then ended at once, so that clouds that take many in one call get them in one."""
        if calls:
            self._spawn(end_machines(self.provider, calls, fence=self._fence, keep=self._keep_end))

    def _keep_end(self, result: EndResult) -> None:
        self._ended.append(result)

    def extend(self, instance: str) -> None:
        """Ask the cloud to delay a machine's termination further; if the call fails, the machine ends at the announced time."""
        self._spawn(self._extend(instance))

    def protect(self, act: Protect) -> None:
        """Protect machines from their group, or remove the protection; the result is kept for :meth:`take_protection_answers`."""
        self._spawn(self._protect(act))

    def take_protection_answers(self) -> tuple[scale_in_protection.ProtectionAnswered, ...]:
        """The results of :meth:`protect` since the last call."""
        answers, self._protection_answers = tuple(self._protection_answers), []
        return answers

    def withdraw(self, withdrawal: ledger.Withdrawal) -> None:
        self._spawn(self._withdraw(withdrawal))

    def track_orders(self, orders_ledger: ledger.Ledger) -> None:
        """From now on, ask about the orders of ``orders_ledger`` that lack machines, whichever process sent them."""
        missing = ledger.unnamed_counts(orders_ledger) if orders_ledger.orders else {}
        sent = (order for order in orders_ledger.orders if order.state != ledger.INTENDED)
        self._unfilled = {order.token: (order, missing[order.token]) for order in sent if order.token in missing}

    def take_answers(self) -> tuple[list[OrderAnswer], list[EndResult], list[str]]:
        """The answers since the last call: to orders, to ends, and the tokens of orders whose withdrawal was confirmed.

        Raises the error that stopped a call before it was sent: lost leadership.
        """
        if self._failure is not None:
            raise self._failure
        taken = self._answers, self._ended, self._withdrawn
        self._answers, self._ended, self._withdrawn = [], [], []
        return taken

    async def close(self) -> None:
        """Cancel the calls in progress, then close the provider."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.provider.close()

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._finish_call)

    def _finish_call(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        self._wake()

    async def _buy(self, order: ledger.Order) -> None:
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                bought = await self.provider.buy(Order(order.token, order.pool, order.offerings, order.count))
            answer = order_answer(order, bought, self._now())
        except CloudError as error:
            answer = failed_call_answer(order, error, self._now())
        except (LostAnswerError, TimeoutError) as error:
            answer = OrderAnswer(
                order, (ledger.Doubted(order.token, self._now()),), (), f"the answer was lost: {describe_call_error(error)}"
            )
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # no answer of a cloud may end the loop
            # It is unknown whether anything was bought: the order is sent again with the same token.
            _LOG.exception("an order could not be sent", order=order.token)
            answer = OrderAnswer(order, (ledger.Doubted(order.token, self._now()),), (), describe_unexpected_error(error))
        finally:
            self._sending.discard(order.token)
        await self._keep_answer(answer)

    async def _keep_answer(self, answer: OrderAnswer) -> None:
        """Keep an answer. Machines that the group still launches according to the list may be those that the cloud has just refused."""
        deliveries = self.inventory.deliveries if self.inventory is not None else ()
        if answer.detail and any(delivery.pool == answer.order.pool and delivery.missing for delivery in deliveries):
            with suppress(CloudError, LostAnswerError, TimeoutError):
                await self.refresh()
        self._answers.append(answer)

    async def _protect(self, act: Protect) -> None:
        problem = ""
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.protect(act.instances, on=act.on)
            # The new list shows the protection.
            await self.refresh()
        except CloudError as error:
            # A machine that is not in service yet, throttling or a lost connection says nothing about the group.
            problem = describe_call_error(error) if error.cause in (UNAUTHORISED, CONFIGURATION) else UNKNOWN
        except (LostAnswerError, TimeoutError):
            problem = UNKNOWN
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # no answer of a cloud may end the loop
            _LOG.exception("machines could not be protected", machines=act.instances)
            problem = describe_unexpected_error(error)
        if problem != UNKNOWN:
            self._protection_answers += [scale_in_protection.ProtectionAnswered(name, act.pool, act.on, problem) for name in act.instances]

    async def _extend(self, instance: str) -> None:
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.extend((instance,))
        except (CloudError, LostAnswerError, TimeoutError) as error:
            _LOG.warning(
                "the lifecycle hook that delays a machine's termination could not be extended",
                machine=instance,
                problem=describe_call_error(error),
            )
        except STOPPING:
            raise
        except Exception:  # noqa: BLE001  # no answer of a cloud may end the loop
            _LOG.exception("the lifecycle hook that delays a machine's termination could not be extended", machine=instance)

    async def _withdraw(self, withdrawal: ledger.Withdrawal) -> None:
        order = withdrawal.order or ledger.Order(withdrawal.token, "", (), 0, at=0.0, since=0.0)
        try:
            self._fence(CALL_SECONDS)
            async with asyncio.timeout(CALL_SECONDS):
                await self.provider.withdraw(to_unfilled(order, withdrawal.missing))
            self._withdrawn.append(withdrawal.token)
            self.errors.succeed(withdrawal.token)
        except (CloudError, LostAnswerError, TimeoutError) as error:
            text = f"order {withdrawal.token} could not be withdrawn: {describe_call_error(error)}"
            self._note_failure(withdrawal.token, WITHDRAWALS, error, text)
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # no answer of a cloud may end the loop
            _LOG.exception("an order could not be withdrawn", order=withdrawal.token)
            text = f"order {withdrawal.token} could not be withdrawn: {describe_unexpected_error(error)}"
            self._note_failure(withdrawal.token, WITHDRAWALS, error, text)


def to_unfilled(order: ledger.Order, missing: int) -> UnfilledOrder:
    """An order that lacks machines, as a provider gets it."""
    order_request = Order(order.token, order.pool, order.offerings, order.count)
    return UnfilledOrder(order_request, missing, order.at, accepted=order.state == ledger.ACCEPTED, operation=order.operation)


def failed_call_answer(order: ledger.Order, error: CloudError, now: float) -> OrderAnswer:
    """The result of an order for which the whole call failed.

    If the order had been sent before, the earlier call may have been granted; this failure says nothing about the earlier call.
    """
    if order.state == ledger.DOUBTFUL:
        return OrderAnswer(order, (ledger.Doubted(order.token, now + error.retry_after),), (), error.detail)
    refusals = tuple(Refusal(error.cause, key, error.detail, retry_after=error.retry_after) for key in order.offerings)
    return order_answer(order, BuyResult(refusals=refusals), now)


def order_answer(order: ledger.Order, bought: BuyResult, now: float) -> OrderAnswer:
    """The result of an order: an answer as steps for the ledger and fates for breakers."""
    granted = tuple((instance.id, instance.key) for instance in bought.instances)
    short = order.count - len(granted) - bought.pending
    refusals = (
        offering_events.Refused(
            refusal.offering,
            now,
            refusal.cause,
            refusal.detail,
            bucket=refusal.bucket,
            every_zone=refusal.every_zone,
            retry_after=refusal.retry_after,
            account_pools=refusal.account_pools,
        )
        for refusal in bought.refusals
    )
    fates = events_of_answer((key for _, key in granted), refusals, now, missing=short)
    launched = {instance.id: instance.launched for instance in bought.instances if instance.launched}
    step = ledger.Answered(order.token, now, granted, bought.pending, launched, bought.operation)
    detail = "; ".join(dict.fromkeys(refusal.detail or refusal.cause for refusal in bought.refusals)) if short > 0 else ""
    return OrderAnswer(order, (step,), fates, detail)
