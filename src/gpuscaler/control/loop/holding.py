"""Holds on buying or removing that a person set: a ConfigMap that each copy of the controller obeys."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.holds import ACTIVITIES, Hold, Holds

_LOG = structlog.get_logger(__name__)
NAME = "gpuscaler-hold"
#: How often the ConfigMap is read, in seconds. It is also read right before a purchase or a removal begins, and at each step of a removal.
POLL_SECONDS = 5.0
#: How long one read may take, in seconds: purchases and the next steps of removals wait for it.
READ_SECONDS = 2.0
#: How often a change of the ConfigMap is tried while others change it at the same time.
TRIES = 5
#: How far the clock of the person who sets a hold may differ from the local clock, in seconds, before the hold's end follows the local one.
CLOCK_SECONDS = 30.0


class WireMetadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")


class WireConfigMap(msgspec.Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    data: dict[str, str] | None = None


class HoldWatcher:
    """Knows the holds of the ConfigMap ``namespace/gpuscaler-hold``.

    ``holds`` are those that were last read. ``trouble`` says what is wrong with the ConfigMap, and is empty if nothing is. A ConfigMap that
    cannot be parsed holds everything, since a person wanted to stop something; one that cannot be read changes nothing. Until the first
    successful read everything is held, since there may be a hold that the previous process obeyed. The duration of a new hold is measured
    by the local clock if the clock of the person who set it differs.
    """

    def __init__(self, client: Client, *, namespace: str, now: Callable[[], float]) -> None:
        self.holds, self.trouble = Holds(), ""
        # A hold must not wait behind hundreds of evictions.
        self._client, self._namespace, self._now = client.urgently(), namespace, now
        self._in_force = Holds()
        self._was_read = False
        self._clocks = HoldClocks()

    @property
    def place(self) -> str:
        return f"ConfigMap {self._namespace}/{NAME}"

    async def run(self, changed: Callable[[], None]) -> None:
        """Read the ConfigMap until cancelled; ``changed`` is called when other holds are in force, also when one has expired."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if await self.poll():
                changed()

    async def poll(self) -> bool:
        """Read the ConfigMap once; True if other holds are in force than before."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                data = await self._client.get(CONFIG_MAPS, NAME, namespace=self._namespace)
            self._was_read = True
            self.holds = self._clocks.to_local_clock(parse_holds(data), self._now())
            self.trouble = self._clock_trouble()
        except NotFound:
            self._was_read, self.holds, self.trouble = True, self._clocks.to_local_clock(Holds(), self._now()), ""
        except (ApiError, Unreachable, TimeoutError) as error:
            # RBAC rules that forbid reading are older than this feature, so no hold can have been set.
            self._was_read = self._was_read or isinstance(error, Forbidden)
            if not self._was_read:
                self.holds = Holds(Hold(reason=UNREAD), Hold(reason=UNREAD))
            state = "holds stay as they were" if self._was_read else "everything is held until it can be read"
            self.trouble = f"{self.place} could not be read, so {state}: {str(error) or f'no answer within {READ_SECONDS:g} s'}"
        except ValueError as error:
            self.holds = Holds(Hold(reason=UNREADABLE), Hold(reason=UNREADABLE))
            self.trouble = (
                f"{self.place}: saw {error}, expected what `gpuscaler hold` writes; buying and removing are held until the "
                "ConfigMap is repaired; run `gpuscaler resume`"
            )
        now, before = self._now(), self._in_force
        self._in_force = self.holds.in_force(now)
        if self._in_force == before:
            return False
        for sentence in self._in_force.sentences(now) or ("no holds are in force any more",):
            _LOG.warning("holds changed", hold=sentence)
        return True

    def _clock_trouble(self) -> str:
        """Sentences about the holds in force that were set by a clock that differs from the local one."""
        held = self.holds.in_force(self._now())
        offsets = [(activity, offset) for activity in ACTIVITIES if getattr(held, activity) and (offset := self._clocks.offset(activity))]
        return "; ".join(
            f"{self.place}: saw {activity} held by a clock that is about {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this "
            f"machine's, expected at most {CLOCK_SECONDS:g} s; the hold keeps its duration, counted from when it was first read; "
            "correct the clocks"
            for activity, off in offsets
        )


class HoldClocks:
    """Converts holds set by a clock that is minutes off to the local clock: else ``--for 4m`` might end at once, or last an hour.

    A hold that was missing when the ConfigMap was last read was set after that read. If its start is earlier, it was set by another clock.
    """

    def __init__(self) -> None:
        self._read_at = -math.inf
        #: For each activity: the hold as written, in local time, and how far the clock that set it is ahead of the local one, in seconds.
        self._converted: dict[str, tuple[Hold, Hold, float]] = {}

    def to_local_clock(self, written: Holds, now: float) -> Holds:
        """The holds ``written``, read at ``now``, in terms of the local clock."""
        held = {activity: hold for activity in ACTIVITIES if (hold := getattr(written, activity)) is not None}
        for activity, hold in held.items():
            before, counted, offset = self._converted.get(activity, (None, hold, 0.0))
            if before is None or before.since != hold.since:
                offset = self._measure_offset(hold, now)
            self._converted[activity] = (hold, counted if hold == before else _shift_hold(hold, -offset), offset)
        self._read_at = now
        return Holds(**{activity: self._converted[activity][1] for activity in held})

    def offset(self, activity: str) -> float:
        """How far the clock that set the hold is ahead of the local one, in seconds; 0 if the clock is right or unknown."""
        return self._converted[activity][2] if activity in self._converted else 0.0

    def _measure_offset(self, hold: Hold, now: float) -> float:
        is_timed = hold.since and hold.until is not None
        if not is_timed or self._read_at - CLOCK_SECONDS <= hold.since <= now + CLOCK_SECONDS:
            return 0.0
        return hold.since - now


def _shift_hold(hold: Hold, seconds: float) -> Hold:
    return replace(hold, since=hold.since + seconds, until=hold.until + seconds) if seconds and hold.until is not None else hold


#: The reason of the holds that apply while the ConfigMap cannot be parsed.
UNREADABLE = f"the ConfigMap {NAME} cannot be parsed"
#: The reason of the holds that apply until the ConfigMap is read for the first time.
UNREAD = f"the ConfigMap {NAME} could not be read yet"


def parse_holds(config_map: bytes) -> Holds:
    """The holds of a ConfigMap that :func:`holds_config_map` made. Raises ValueError for anything else."""
    try:
        data = msgspec.json.decode(config_map, type=WireConfigMap).data or {}
    except RecursionError as error:
        raise ValueError(f"an object of {len(config_map)} bytes that is nested too deeply") from error
    if unknown_keys := sorted(data.keys() - set(ACTIVITIES)):
        raise ValueError(f"the key {unknown_keys[0]!r}")
    held: dict[str, Hold] = {}
    for activity, text in data.items():
        try:
            held[activity] = msgspec.json.decode(text, type=Hold)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"{text[:80]!r} under {activity} ({error})") from error
    return Holds(**held)


def holds_config_map(holds: Holds, *, namespace: str, version: str) -> Mapping[str, Any]:
    """The ConfigMap with ``holds``; ``version`` is that of the one it replaces, empty if there is none."""
    metadata: dict[str, Any] = {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "gpuscaler"}}
    if version:
        metadata["resourceVersion"] = version
    held = {activity: hold for activity in ACTIVITIES if (hold := getattr(holds, activity)) is not None}
    data = {activity: msgspec.json.encode(hold).decode() for activity, hold in held.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def write_holds(client: Client, namespace: str, changes: Mapping[str, Hold | None]) -> Holds:
    """Set the hold of each activity in ``changes``, None ends it; return the resulting holds.

    A ConfigMap that cannot be parsed is replaced. Raises the API server's errors.
    """
    for attempt in range(TRIES):
        version, holds = await _read(client, namespace)
        holds = replace(holds, **changes)
        body = holds_config_map(holds, namespace=namespace, version=version)
        try:
            if version:
                await client.replace(CONFIG_MAPS, NAME, body, namespace=namespace)
            else:
                await client.create(CONFIG_MAPS, body, namespace=namespace)
        except (AlreadyExists, Conflict, NotFound) as error:
            # It was written, created or deleted in between; a NotFound that persists is about the namespace.
            if attempt + 1 == TRIES or (isinstance(error, NotFound) and not version):
                raise
        else:
            break
    return holds


async def _read(client: Client, namespace: str) -> tuple[str, Holds]:
    """The version of the ConfigMap, empty if there is none, and its holds."""
    try:
        data = await client.get(CONFIG_MAPS, NAME, namespace=namespace)
    except NotFound:
        return "", Holds()
    version = msgspec.json.decode(data, type=WireConfigMap).metadata.version
    try:
        return version, parse_holds(data)
    except ValueError:
        return version, Holds()
