"""The status ConfigMap: written after changes, at a limited rate, and regularly in any case, so that its age shows if it is current."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.records import Sink
from gpuscaler.control.records.status.status import Process, Status, status_of, summary
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.holds import Holds

_LOG = structlog.get_logger(__name__)
NAME, KEY, SUMMARY = "gpuscaler-status", "status.json", "summary"
#: The minimum interval between writes of a changed status, and the interval of writes of an unchanged one, in seconds.
CHANGED_SECONDS, REFRESH_SECONDS = 10.0, 60.0
#: How soon the first status of a new leader follows its first plan, in seconds.
STEP_SECONDS = 1.0
#: A status older than this, in seconds, is out of date: several refreshes have failed.
OLD_SECONDS = 180.0
#: The number of events that are shown.
SHOWN = 20
#: How many nodes are named when the same happened to many.
NAMED = 3
#: The status of clusters with more nodes than this is computed in a thread.
INLINE = 1_000
#: Numbers in sentences, such as durations.
_NUMBERS = re.compile(r"\d+")
#: Steps of each machine, which add nothing to the order and its answer, or to the decision to remove it.
_OF_AN_ORDER = frozenset({kinds.GRANTED, kinds.INSTEAD, kinds.REFUSED, kinds.REGISTERED, kinds.READY})
_STEPS = _OF_AN_ORDER | {kinds.MARKED, kinds.DRAINING, kinds.ENDING, kinds.EVICTED}


class Reporter(Sink):
    """A sink that keeps the newest events and the newest :class:`Status`, which is current while :meth:`run` runs.

    ``leading`` says whether this process leads: the ConfigMap ``namespace/gpuscaler-status`` is written only then. ``troubles`` returns
    sentences about current problems, ``holds`` the current holds.
    """

    def __init__(
        self,
        client: Client,
        latest: Latest,
        *,
        namespace: str,
        process: Callable[[], Process],
        troubles: Callable[[], tuple[str, ...]],
        leading: Callable[[], bool],
        now: Callable[[], float],
        holds: Callable[[], Holds] = Holds,
    ) -> None:
        self.status: Status | None = None
        self.trouble = ""
        self._client, self._latest, self._namespace = client, latest, namespace
        self._process, self._troubles, self._leading, self._now, self._holds = process, troubles, leading, now, holds
        self._happened: deque[HistoryEvent] = deque(maxlen=SHOWN)
        self._written: Status | None = None
        #: The last events, which differ only in their nodes.
        self._alike: list[HistoryEvent] = []

    def happened(self, what: HistoryEvent, /) -> None:
        if what.kind in _STEPS:
            return
        if self._alike and are_alike(self._alike[0], what):
            self._alike.append(what)
            self._happened.pop()
        else:
            self._alike = [what]
        self._happened.append(merge_events(self._alike))

    async def run(self) -> None:
        """Compute and write the status every few seconds, until cancelled."""
        while True:
            await self.refresh()
            if self._leading():
                await self._write()
            else:
                self._written = None
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next status is due: at once if this process has begun to lead and has made a plan that no status shows yet."""
        for _ in range(round(CHANGED_SECONDS / STEP_SECONDS)):
            await asyncio.sleep(STEP_SECONDS)
            if self._written is None and not self.trouble and self._leading() and self._latest.planned_at:
                return

    async def refresh(self) -> Status:
        """Bring the status up to date."""
        # A thread reads the copy while the controller continues; the objects that it refers to are never changed.
        latest = copy(self._latest)
        happened, troubles, process, now = tuple(self._happened), self._troubles(), self._process(), self._now()
        holds = self._holds()

        def compute() -> Status:
            return status_of(latest, process, troubles=troubles, happened=happened, now=now, holds=holds)

        self.status = compute() if len(latest.cluster.nodes) <= INLINE else await asyncio.to_thread(compute)
        return self.status

    async def _write(self) -> None:
        status, before = self.status, self._written
        if status is None or (before is not None and status.at < before.at + REFRESH_SECONDS and _is_unchanged(status, before)):
            return
        body = status_config_map(status, self._namespace)
        try:
            try:
                await self._client.replace(CONFIG_MAPS, NAME, body, namespace=self._namespace)
            except NotFound:
                await self._client.create(CONFIG_MAPS, body, namespace=self._namespace)
            self._written, self.trouble = status, ""
        except NotLeaderError:
            self._written = None
        except (ApiError, Unreachable) as error:
            if not self.trouble:
                _LOG.warning("the status could not be written", problem=str(error))
            self.trouble = f"ConfigMap {self._namespace}/{NAME}: {error}"


def are_alike(event: HistoryEvent, other: HistoryEvent) -> bool:
    """Whether two events of one decision say the same about two nodes, apart from durations."""
    texts = [_NUMBERS.sub("", what.text.replace(f"node {what.node}", "node")) for what in (event, other)]
    return bool(event.node) and (event.kind, event.decision, texts[0]) == (other.kind, other.decision, texts[1])


def merge_events(alike: Sequence[HistoryEvent]) -> HistoryEvent:
    """The events of several nodes as one, with the text of the first."""
    first = alike[0]
    if len(alike) == 1:
        return first
    more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    names = ", ".join(event.node for event in alike[:NAMED]) + more
    text = first.text.replace(f"node {first.node}", f"each of {len(alike)} nodes ({names})", 1)
    return replace(alike[-1], text=text)


def _is_unchanged(status: Status, other: Status) -> bool:
    """Whether two statuses are equal, apart from their times and durations in sentences."""
    return _without_durations(status) == _without_durations(other)


def _without_durations(status: Status) -> Status:
    waiting = tuple(replace(entry, reason=_NUMBERS.sub("", entry.reason)) for entry in status.waiting)
    unready = tuple(replace(entry, text=_NUMBERS.sub("", entry.text)) for entry in status.unready)
    troubles = tuple(_NUMBERS.sub("", entry) for entry in status.troubles)
    groups = tuple(replace(group, text=_NUMBERS.sub("", group.text)) for group in status.doctor.groups)
    doctor = replace(status.doctor, at=0.0, groups=groups)
    return replace(status, at=0.0, looked_at=0.0, planned_at=0.0, waiting=waiting, unready=unready, troubles=troubles, doctor=doctor)


def status_config_map(status: Status, namespace: str) -> dict[str, Any]:
    """The ConfigMap with ``status``."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "gpuscaler"}},
        "data": {SUMMARY: summary(status), KEY: msgspec.json.format(msgspec.json.encode(status), indent=1).decode()},
    }


class WireConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


def parse_status(config_map: bytes) -> Status:
    """The status in a ConfigMap that :func:`status_config_map` made. Raises ValueError for anything else."""
    try:
        data = msgspec.json.decode(config_map, type=WireConfigMap).data or {}
        if KEY not in data:
            raise ValueError(f"saw no key {KEY}, expected what gpuscaler writes")
        return msgspec.json.decode(data[KEY], type=Status)
    except msgspec.MsgspecError as error:
        raise ValueError(f"saw a status that cannot be read ({error}), expected one from this version of gpuscaler") from error
