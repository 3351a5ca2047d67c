"""Unexpected errors of the loop: counted, reported and backed off; the objects that cause them are searched for and skipped.

Anyone with the rights can write objects to a cluster. An error of the controller over one object must not end the service for the others.
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

#: Errors which mean that another process leads, or that nothing can be written: the caller starts the controller again.
STOPPING = (ApiError, Unreachable, NotLeaderError, OvertakenError, StoreError)
#: How long one call to the cloud may take, in seconds. A lease of 15 s that is renewed every 2 s always has more than 10 s left, and no
#: call begins that may outlast the lease.
CALL_SECONDS = 10.0
#: The pause after an error, in seconds: at first, and at most.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: After how many equal errors in a row the objects that cause them are searched for.
ERRORS_BEFORE_SEARCH = 2


class Failures:
    """Errors of turns. ``count`` is their number; ``trouble`` says what fails now, and is empty if nothing does.

    ``wake`` is called when a search for objects has ended.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.count = 0
        self._wake = wake
        self._last: dict[str, tuple[str, int]] = {}
        self._troubles: dict[str, str] = {}
        self._logged: set[str] = set()
        self._search: asyncio.Task[tuple[Poison, ...]] | None = None

    @property
    def trouble(self) -> str:
        return "; ".join(self._troubles.values())

    @property
    def searching(self) -> bool:
        return self._search is not None

    def note(self, stage: str, error: BaseException) -> tuple[str, float]:
        """Note an error of ``stage``; return it in words, and the pause before the next try, in seconds."""
        self.count += 1
        text = describe_error(error)
        before, times = self._last.get(stage, ("", 0))
        times = times + 1 if text == before else 1
        self._last[stage] = text, times
        if text not in self._logged:
            # Logged once: the same error occurs in each turn.
            self._logged.add(text)
            _LOG.error("failed", stage=stage, problem=text, trace="".join(traceback.format_exception(error))[-8000:])
        self._troubles[stage] = (
            f"{stage} failed {times} times in a row: saw {text}, expected no error for any content of the cluster; "
            f"it is retried, and the objects that cause the error are skipped once they are found; please report it"
        )
        return text, min(PAUSE * 2.0 ** (times - 1), LONGEST_PAUSE)

    def succeeded(self, stage: str) -> None:
        self._last.pop(stage, None)
        self._troubles.pop(stage, None)

    def is_search_due(self, stage: str) -> bool:
        """Whether the last error of ``stage`` is due for a search for the objects that cause it."""
        times = self._last.get(stage, ("", 0))[1]
        # Searches that find nothing are repeated at growing intervals.
        return times >= ERRORS_BEFORE_SEARCH and times & (times - 1) == 0

    def search(self, cluster: Cluster, before: Cluster | None, attempt: Attempt, error_text: str) -> None:
        """Search, in a thread, for the objects of ``cluster`` without which ``attempt`` succeeds."""
        if self._search is None:
            reason = f"planning failed with this object and succeeded without it: {error_text}; the object is skipped until it changes"
            call = asyncio.to_thread(culprits, cluster, before, attempt, reason)
            self._search = asyncio.get_running_loop().create_task(call)
            self._search.add_done_callback(lambda _: self._wake())

    def take_poison(self) -> tuple[Poison, ...] | None:
        """The objects that a finished search found, returned once; None if no search has finished."""
        if self._search is None or not self._search.done():
            return None
        search, self._search = self._search, None
        if search.cancelled():
            return None
        if (error := search.exception()) is not None:
            _LOG.error("the search for the objects that cause an error failed", problem=describe_error(error))
            return ()
        return search.result()

    async def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)


def describe_error(error: BaseException) -> str:
    """An error in words, with the place in the source where it was raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" ({frames[-1].filename.rpartition('/gpuscaler/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{place}"


def describe_call_error(error: Exception) -> str:
    return f"no answer within {CALL_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)


def describe_unexpected_error(error: Exception) -> str:
    return f"saw {type(error).__name__}: {str(error)[:200]}, expected an answer that can be decoded; the call is repeated; please report it"
