"""The time and reason of the scheduler's last failed attempt for each pod, read from its Events: no other object has them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import aclosing

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import CORE_EVENTS
from gpuscaler.kube.transport import Request
from gpuscaler.kube.watching import SilentError, event_of, watch_lines
from gpuscaler.model.wire import UnreadableError, parse_timestamp

#: The maximum number of pods that are remembered; the oldest attempts are forgotten first.
MAX_PODS = 50_000
#: How long a watch may be silent, how long it lasts, and the pause after a failure, in seconds.
SILENCE_SECONDS, WATCH_SECONDS, PAUSE_SECONDS = 90.0, 600, 5.0
#: The scheduler's messages are cut to this length, in characters.
MAX_MESSAGE = 300


class WireReference(msgspec.Struct, gc=False):
    namespace: str | None = None
    name: str | None = None


class WireSeries(msgspec.Struct, gc=False, rename="camel"):
    last_observed_time: str | None = None


class WireEvent(msgspec.Struct, gc=False, rename="camel"):
    reason: str | None = None
    message: str | None = None
    involved_object: WireReference | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: WireSeries | None = None


class Attempts(Mapping[str, float]):
    """The time of the last failed attempt, in seconds since the epoch, by ``namespace/name`` of the pod; ``messages`` are its messages.

    They are current while :meth:`run` runs. ``trouble`` says why the Events cannot be watched now; it is empty if nothing is wrong.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at: dict[str, float] = {}
        self.messages: dict[str, str] = {}
        self.trouble = ""

    def __getitem__(self, pod: str) -> float:
        return self._at[pod]

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    async def run(self) -> None:
        """Watch until cancelled. If an attempt is missed while the server is unreachable, the pod's next attempt is recorded instead."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": "reason=FailedScheduling",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        request = Request("GET", CORE_EVENTS.path(), query, {"accept": "application/json"}, timeout=SILENCE_SECONDS + 15.0)
        while True:
            try:
                async with aclosing(watch_lines(self._client, request, silence=lambda: SILENCE_SECONDS)) as pieces:
                    async for lines in pieces:
                        self.trouble = ""
                        for line in lines:
                            self._note_event(line)
            except SilentError:
                continue
            except (ApiError, Unreachable) as error:
                self.trouble = f"Events with the scheduler's failed attempts cannot be watched: {error}"
            await asyncio.sleep(PAUSE_SECONDS)

    def _note_event(self, line: bytes) -> None:
        try:
            watched = event_of(line)
            event = msgspec.json.decode(watched.object, type=WireEvent)
            last = (event.series.last_observed_time if event.series else None) or event.last_timestamp or event.event_time
            at = parse_timestamp(last, "lastTimestamp")
        except (msgspec.MsgspecError, RecursionError, UnreadableError):
            # An Event that cannot be decoded is skipped; the watch continues.
            return
        about = event.involved_object
        if event.reason != "FailedScheduling" or about is None or not about.name or watched.type == "DELETED":
            return
        key = f"{about.namespace or ''}/{about.name}"
        before = self._at.pop(key, 0.0)
        self._at[key] = max(at, before)
        if at >= before:
            self.messages[key] = (event.message or "")[:MAX_MESSAGE]
        while len(self._at) > MAX_PODS:
            oldest = next(iter(self._at))
            del self._at[oldest]
            self.messages.pop(oldest, None)
