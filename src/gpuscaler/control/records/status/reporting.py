"""The status ConfigMap: written when something changed, not too often, and now and then in any case so that its age says something."""

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
from gpuscaler.control.records.events.happening import Happening
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
#: A changed status is written at most, and an unchanged one at least, every so many seconds.
CHANGED_SECONDS, REFRESH_SECONDS = 10.0, 60.0
#: How soon the first status of a new leader follows its first plan, in seconds.
STEP_SECONDS = 1.0
#: Older than this, a status says little about now: several refreshes have failed.
OLD_SECONDS = 180.0
#: Happenings that are shown.
SHOWN = 20
#: Nodes that are named where the same happened to many.
NAMED = 3
#: Clusters of more nodes than this are looked through in a thread.
INLINE = 1_000
#: Times that have passed, in sentences.
_NUMBERS = re.compile(r"\d+")
#: What happens to every machine says nothing new beside its order and what came of that, and beside the decision to remove it.
_OF_AN_ORDER = frozenset({kinds.GRANTED, kinds.INSTEAD, kinds.REFUSED, kinds.REGISTERED, kinds.READY})
_STEPS = _OF_AN_ORDER | {kinds.MARKED, kinds.DRAINING, kinds.ENDING, kinds.EVICTED}


class Reporter(Sink):
    """A sink that keeps the newest happenings, and the newest :class:`Status` of everything, current while :meth:`run` runs.

    ``leading`` says whether this process leads: only then is the ConfigMap ``namespace/gpuscaler-status`` written. ``troubles`` are
    sentences about what is wrong now, ``holds`` what people have stopped.
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
        self._happened: deque[Happening] = deque(maxlen=SHOWN)
        self._written: Status | None = None
        #: The last things that happened, which differ in their nodes alone.
        self._alike: list[Happening] = []

    def happened(self, what: Happening, /) -> None:
        if what.kind in _STEPS:
            return
        if self._alike and are_alike(self._alike[0], what):
            self._alike.append(what)
            self._happened.pop()
        else:
            self._alike = [what]
        self._happened.append(together(self._alike))

    async def run(self) -> None:
        """Look and write every few seconds, until cancelled."""
        while True:
            await self.look()
            if self._leading():
                await self._write()
            else:
                self._written = None
            await self._pause()

    async def _pause(self) -> None:
        """Until the next status is due: at once where this process has begun to lead and has looked, and nobody can know yet."""
        for _ in range(round(CHANGED_SECONDS / STEP_SECONDS)):
            await asyncio.sleep(STEP_SECONDS)
            if self._written is None and not self.trouble and self._leading() and self._latest.planned_at:
                return

    async def look(self) -> Status:
        """Bring the status up to date."""
        # A thread reads it while the controller goes on; what it refers to is never changed.
        latest = copy(self._latest)
        happened, troubles, process, now = tuple(self._happened), self._troubles(), self._process(), self._now()
        holds = self._holds()

        def made() -> Status:
            return status_of(latest, process, troubles=troubles, happened=happened, now=now, holds=holds)

        self.status = made() if len(latest.cluster.nodes) <= INLINE else await asyncio.to_thread(made)
        return self.status

    async def _write(self) -> None:
        status, before = self.status, self._written
        if status is None or (before is not None and status.at < before.at + REFRESH_SECONDS and _same(status, before)):
            return
        body = body_of(status, self._namespace)
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


def are_alike(one: Happening, other: Happening) -> bool:
    """Whether two say the same of two nodes, as parts of one decision, but for how much time has passed."""
    said = [_NUMBERS.sub("", what.text.replace(f"node {what.node}", "node")) for what in (one, other)]
    return bool(one.node) and (one.kind, one.decision, said[0]) == (other.kind, other.decision, said[1])


def together(alike: Sequence[Happening]) -> Happening:
    """What happened to several nodes as one: in the words of the first."""
    first = alike[0]
    if len(alike) == 1:
        return first
    more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    names = ", ".join(one.node for one in alike[:NAMED]) + more
    text = first.text.replace(f"node {first.node}", f"each of {len(alike)} nodes ({names})", 1)
    return replace(alike[-1], text=text)


def _same(one: Status, other: Status) -> bool:
    """Whether two say the same, but for when they were made and sentences that tell how much time has passed."""
    return _timeless(one) == _timeless(other)


def _timeless(one: Status) -> Status:
    waiting = tuple(replace(entry, reason=_NUMBERS.sub("", entry.reason)) for entry in one.waiting)
    unready = tuple(replace(entry, text=_NUMBERS.sub("", entry.text)) for entry in one.unready)
    troubles = tuple(_NUMBERS.sub("", entry) for entry in one.troubles)
    return replace(one, at=0.0, looked_at=0.0, planned_at=0.0, waiting=waiting, unready=unready, troubles=troubles)


def body_of(status: Status, namespace: str) -> dict[str, Any]:
    """The ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "gpuscaler"}},
        "data": {SUMMARY: summary(status), KEY: msgspec.json.format(msgspec.json.encode(status), indent=1).decode()},
    }


class WireConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


def status_in(config_map: bytes) -> Status:
    """What a ConfigMap of :func:`body_of` holds. Raises ValueError for anything else."""
    try:
        data = msgspec.json.decode(config_map, type=WireConfigMap).data or {}
        if KEY not in data:
            raise ValueError(f"saw no key {KEY}, expected what gpuscaler writes there")
        return msgspec.json.decode(data[KEY], type=Status)
    except msgspec.MsgspecError as error:
        raise ValueError(f"saw a status that cannot be read ({error}), expected that of this version of gpuscaler") from error
