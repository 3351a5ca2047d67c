"""Pools that are discovered in the cloud account: read when leading begins, and every few minutes from then on."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import structlog
from msgspec.structs import replace

from gpuscaler.clouds.call_errors import ACCOUNT, CallError, CallErrors, cause_of
from gpuscaler.clouds.protocol import AccountReport, CloudError, LostAnswerError
from gpuscaler.model.pools import Policy

_LOG = structlog.get_logger(__name__)
#: How often an account is read, in seconds, and the fraction by which the interval varies, so that many processes do not ask at once.
LOOK_SECONDS, JITTER = 180.0, 0.2
#: The first pause after a read that returned nothing at all, in seconds.
AGAIN_SECONDS = 5.0
#: How many reasons for skipped groups are logged: in one line if there is no pool at all, otherwise in a line each. ``gpuscaler pools``
#: prints all of them.
SHOWN, LISTED = 3, 50


class DiscoveredPools:
    """Keeps the pools that ``read_account`` found. A failed read changes nothing: ``errors`` say why, and the known pools are kept.

    ``random`` varies the times between reads.
    """

    def __init__(self, read_account: Callable[[], Awaitable[AccountReport]], *, random: Random) -> None:
        self.newest = AccountReport()
        self.errors = CallErrors()
        self._read_account, self._random = read_account, random
        self._soon = asyncio.Event()
        self._changed: Callable[[], None] = lambda: None

    @property
    def trouble(self) -> str:
        """What cannot be read now, for people; empty if everything can."""
        return self.errors.text

    def policy(self, policy: Policy) -> Policy:
        """The policy of the settings with the discovered pools."""
        return replace(policy, pools=self.newest.pools)

    def listen(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever the pools have changed."""
        self._changed = changed

    def read_soon(self) -> None:
        """Read the account again at once: the settings of the pools have changed."""
        self._soon.set()

    async def read_until_known(self) -> None:
        """Read the account until something is known: without pools nothing can be decided."""
        pause = AGAIN_SECONDS
        while not await self._read():
            _LOG.warning("the account could not be read yet; retrying", problem=self.trouble, seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)
        report = self.newest
        if report.pools:
            _LOG.info("pools found", pools=len(report.pools), set_aside=len(report.set_aside))
            for skipped in report.set_aside[:LISTED]:
                # Among them are groups that the previous version accepted and this one does not.
                _LOG.info("skipped in the account", object=skipped.object, problem=skipped.reason)
        else:
            why = [f"{skipped.object}: {skipped.reason}" for skipped in report.set_aside[:SHOWN]]
            _LOG.warning("no pool was found, so nothing can be bought", set_aside=len(report.set_aside), problem="; ".join(why))

    async def run(self) -> None:
        """Read the account regularly, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS * self._random.uniform(1.0 - JITTER, 1.0 + JITTER)):
                    await self._soon.wait()
            self._soon.clear()
            before = self.newest.pools
            if await self._read() and self.newest.pools != before:
                self._changed()

    async def _read(self) -> bool:
        """Read the account once; True if anything is known now."""
        try:
            report = await self._read_account()
        except (CloudError, LostAnswerError) as error:
            self._set_errors(CallError(ACCOUNT, cause_of(error), str(error)))
            return False
        self._set_errors(*(CallError(ACCOUNT, part.cause, part.text, part.object) for part in report.failed))
        if report.failed and not (report.complete or report.pools):
            return False
        self.newest = report
        return True

    def _set_errors(self, *errors: CallError) -> None:
        """Set what failed in the last read."""
        for name in self.errors.failing.keys() - {error.object for error in errors}:
            self.errors.succeed(name)
        for error in errors:
            self.errors.fail(error.object, error)
