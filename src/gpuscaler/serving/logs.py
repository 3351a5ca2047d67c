"""JSON logs: one object per line, with the time in UTC, and without secrets.

An outage is logged with one line at its start and one at its end.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TextIO

import structlog

_LOG = structlog.get_logger(__name__)
#: Levels by their names in settings.
LEVELS: Mapping[str, int] = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Fields that are never shown; and patterns of credentials in any text.
_SECRET = re.compile(r"(?i)(^|_|-)(token|password|passwd|secret|authorization|credential|api_?key)s?$")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
#: All JSON Web Tokens start like this: base64 of ``{"``.
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
HIDDEN = "(hidden)"
#: Seconds between checks for outages.
CHECK_SECONDS = 5.0

Event = MutableMapping[str, Any]


def configure(stream: TextIO, level: str, *, now: Callable[[], float]) -> None:
    """Write all log lines of the program from ``level`` on to ``stream`` as JSON, and those of libraries from warning on.

    May be called again when the level changes. ``now`` is the wall clock in seconds since the epoch.
    """

    def stamp(_logger: Any, _method: str, event: Event) -> Event:
        event["time"] = timestamp(now())
        return event

    shared: list[Any] = [structlog.stdlib.add_log_level, stamp, structlog.processors.format_exc_info, without_secrets]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, render_json],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[*shared, add_logger_name], processors=[_strip, render_json])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))


@contextmanager
def lines_to(stream: TextIO, level: str, *, now: Callable[[], float]) -> Iterator[Callable[[str], None]]:
    """Configure as :func:`configure` until the end of the block, then restore; yields a function that sets another level."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, root_level = root.handlers[:], root.level
    configure(stream, level, now=now)
    try:
        yield partial(configure, stream, now=now)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(root_level)


class Words(NamedTuple):
    """The messages of log lines at the start and at the end of an outage."""

    begins: str
    ends: str


class Finding(NamedTuple):
    """Problems by subject in ``failing``, their ``causes`` in a word as far as known, and the subjects that work in ``working``."""

    failing: Mapping[str, str]
    working: frozenset[str]
    causes: Mapping[str, str] = {}


@dataclass(slots=True)
class OutageLog:
    """Logs what ``find`` reports as failing for ``patience`` seconds; shorter failures are bridged. ``clock`` is in seconds.

    ``words`` are the messages with the subject as a field; those of ``whole`` name their subjects themselves.
    """

    find: Callable[[], Finding]
    clock: Callable[[], float]
    patience: float
    words: Words
    whole: Mapping[str, Words] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _logged: set[str] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def check(self) -> None:
        now, finding = self.clock(), self.find()
        # What is no longer in use neither fails nor works, so the end of its outage is not logged.
        self._since = {about: self._since.get(about, now) for about in finding.failing}
        for about, why in finding.failing.items():
            if about not in self._logged and now - self._since[about] >= self.patience:
                self._logged.add(about)
                words, fields = self._line(about)
                cause = {"cause": finding.causes[about]} if about in finding.causes else {}
                _LOG.warning(words.begins, **fields, **cause, problem=why)
        for about in sorted(self._logged & finding.working):
            self._logged.remove(about)
            words, fields = self._line(about)
            _LOG.info(words.ends, **fields)

    def _line(self, about: str) -> tuple[Words, Mapping[str, str]]:
        return (self.whole[about], {}) if about in self.whole else (self.words, {"about": about})


def timestamp(seconds: float) -> str:
    """Format a time as RFC 3339 with milliseconds, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def add_logger_name(_logger: Any, _method: str, event: Event) -> Event:
    """Add the name of the library that logs."""
    event["logger"] = event["_record"].name
    return event


def without_secrets(_logger: Any, _method: str, event: Event) -> Event:
    """Hide secrets at any depth."""
    for name, value in list(event.items()):
        event[name] = _clean(name, value)
    return event


def _clean(name: str, value: Any) -> Any:
    if _SECRET.search(name):
        return HIDDEN
    if isinstance(value, str):
        return _JWT.sub(HIDDEN, _BEARER.sub(lambda match: f"{match[1]} {HIDDEN}", value))
    if isinstance(value, Mapping):
        return {key: _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean("", inner) for inner in value]
    return value


def render_json(logger: Any, method: str, event: Event) -> str:
    """Render a line of JSON: time, level and message first, then the fields."""
    ordered = {name: event.pop(name) for name in ("time", "level") if name in event}
    ordered["message"] = event.pop("event", "")
    render = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    line = render(logger, method, {**ordered, **event})
    return line if isinstance(line, str) else line.decode()


def _strip(_logger: Any, _method: str, event: Event) -> Event:
    """Remove fields that only the formatter of the standard library needs."""
    return {name: value for name, value in event.items() if not name.startswith("_")}
