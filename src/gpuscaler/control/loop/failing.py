"""Errors that nobody foresaw: counted, reported and backed off, and the objects behind them found and set aside.

What is read from a cluster is written by whoever may write there. An error of ours over one object must not end what serves all the others.
"""

import asyncio
import traceback
from collections.abc import Callable

import structlog

from gpuscaler.control.loop.store import OvertakenError, StoreError
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.lifecycle.quarantine import Attempt, Poison, culprits
from gpuscaler.model.cluster import Cluster

_LOG = structlog.get_logger(__name__)

#: Errors that say that another process leads, or that nothing can be written: whoever runs the controller starts it again.
STOPPING = (ApiError, Unreachable, NotLeaderError, OvertakenError, StoreError)
#: The pause after an error, in seconds: at first, and at most.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: After the same error so often in a row, the objects behind it are looked for.
REPEATED = 2


class Failures:
    """Errors of turns. ``count`` is how many there were; ``trouble`` says what fails now, empty where nothing does.

    ``wake`` is called when a search for objects has ended.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.count = 0
        self._wake = wake
        self._last: dict[str, tuple[str, int]] = {}
        self._words: dict[str, str] = {}
        self._logged: set[str] = set()
        self._search: asyncio.Task[tuple[Poison, ...]] | None = None

    @property
    def trouble(self) -> str:
        return "; ".join(self._words.values())

    @property
    def searching(self) -> bool:
        return self._search is not None

    def happened(self, stage: str, error: BaseException) -> tuple[str, float]:
        """Note an error of ``stage``; returns it in words, and the pause that it asks for, in seconds."""
        self.count += 1
        words = described(error)
        before, times = self._last.get(stage, ("", 0))
        times = times + 1 if words == before else 1
        self._last[stage] = words, times
        if words not in self._logged:
            # Once each: the same error comes at every turn.
            self._logged.add(words)
            _LOG.error("failed", stage=stage, problem=words, trace="".join(traceback.format_exception(error))[-8000:])
        self._words[stage] = (
            f"{stage} failed {times} times in a row: saw {words}, expected no error whatever the cluster holds; "
            f"it is tried again, without the objects that cause it once they are found; please report it"
        )
        return words, min(PAUSE * 2.0 ** (times - 1), LONGEST_PAUSE)

    def succeeded(self, stage: str) -> None:
        self._last.pop(stage, None)
        self._words.pop(stage, None)

    def repeated(self, stage: str) -> bool:
        """Whether the last error of ``stage`` came often enough to look for the objects behind it."""
        times = self._last.get(stage, ("", 0))[1]
        # A search that finds nothing is made ever more rarely.
        return times >= REPEATED and times & (times - 1) == 0

    def search(self, cluster: Cluster, before: Cluster | None, attempt: Attempt, words: str) -> None:
        """Look, beside the event loop, for the objects of ``cluster`` without which ``attempt`` succeeds."""
        if self._search is None:
            reason = f"planning failed with it and succeeded without it: {words}; it is left out until it changes"
            call = asyncio.to_thread(culprits, cluster, before, attempt, reason)
            self._search = asyncio.get_running_loop().create_task(call)
            self._search.add_done_callback(lambda _: self._wake())

    def found(self) -> tuple[Poison, ...] | None:
        """The objects that a search found, once; None while there is none that has ended."""
        if self._search is None or not self._search.done():
            return None
        search, self._search = self._search, None
        if search.cancelled():
            return None
        if (error := search.exception()) is not None:
            _LOG.error("the objects behind an error could not be looked for", problem=described(error))
            return ()
        return search.result()

    async def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)


def described(error: BaseException) -> str:
    """What an error is, and the place in the source where it came up."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" ({frames[-1].filename.rpartition('/gpuscaler/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{place}"
