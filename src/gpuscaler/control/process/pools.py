"""The pools that a cloud itself brings: looked at when leading begins and every few minutes from then on."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import structlog
from msgspec.structs import replace

from gpuscaler.clouds.protocol import CloudError, Looked, LostAnswerError
from gpuscaler.model.pools import Policy

_LOG = structlog.get_logger(__name__)
#: How often an account is looked at, in seconds, and by which part of that the time differs, so that many do not ask at once.
LOOK_SECONDS, JITTER = 180.0, 0.2
#: After a look that brought nothing at all, the next one comes so soon at first, in seconds.
AGAIN_SECONDS = 5.0
#: So many reasons why groups were set aside are logged in one line where there is no pool at all, and else so many in a line each.
#: ``gpuscaler pools`` prints every one.
SHOWN, LISTED = 3, 50


class FoundPools:
    """Keeps what ``look`` found. A look that fails changes nothing: ``trouble`` says why, and the pools stay as they were known.

    ``random`` is for the times between looks.
    """

    def __init__(self, look: Callable[[], Awaitable[Looked]], *, random: Random) -> None:
        self.newest = Looked()
        self.trouble = ""
        self._look, self._random = look, random
        self._soon = asyncio.Event()
        self._changed: Callable[[], None] = lambda: None

    def policy(self, told: Policy) -> Policy:
        """The policy of the settings with the pools that were found."""
        return replace(told, pools=self.newest.pools)

    def listen(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever there are other pools."""
        self._changed = changed

    def hasten(self) -> None:
        """Look again at once: what is said of the pools has changed."""
        self._soon.set()

    async def begin(self) -> None:
        """Look until something is known: without pools nothing can be decided."""
        pause = AGAIN_SECONDS
        while not await self._ask():
            _LOG.warning("nothing is known of the account yet; it is looked at again", problem=self.trouble, seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)
        found = self.newest
        if found.pools:
            _LOG.info("pools found", pools=len(found.pools), set_aside=len(found.set_aside))
            for one in found.set_aside[:LISTED]:
                # A group that the version before took and this one does not is among them.
                _LOG.info("set aside in the account", object=one.object, problem=one.reason)
        else:
            why = [f"{one.object}: {one.reason}" for one in found.set_aside[:SHOWN]]
            _LOG.warning("no pool was found, so that nothing can be bought", set_aside=len(found.set_aside), problem="; ".join(why))

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS * self._random.uniform(1.0 - JITTER, 1.0 + JITTER)):
                    await self._soon.wait()
            self._soon.clear()
            before = self.newest.pools
            if await self._ask() and self.newest.pools != before:
                self._changed()

    async def _ask(self) -> bool:
        """Whether anything is known after a look."""
        try:
            found = await self._look()
        except (CloudError, LostAnswerError) as error:
            self.trouble = str(error)
            return False
        self.trouble = "; ".join(found.failed)
        if found.failed and not (found.complete or found.pools):
            return False
        self.newest = found
        return True
