"""The settings of ``gpuscaler metrics`` in the file of ``--settings``, in addition to prometheus-adapter's flags.

Every key is described in ``docs/reference/metrics-settings.md``.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL
from gpuscaler.metrics.sources.direct import ScrapeSettings
from gpuscaler.model.reading.cursor import Cursor, Report, TooMuchError
from gpuscaler.model.reading.document import read_document
from gpuscaler.model.reading.errors import Problem, SettingsError
from gpuscaler.model.selector_text import SelectorError, parse_selector

KEYS = ("service", "apis", "exporters", "period", "stale", "hold", "timeout", "autoscale", "log")
SERVICE_KEYS = ("name", "namespace")
EXPORTER_KEYS = ("namespace", "selector", "port", "interval")
LEVELS = ("debug", "info", "warning", "error")
#: Selector of our exporter's pods, as the chart labels them.
EXPORTERS = "app.kubernetes.io/name=gpuscaler,app.kubernetes.io/component=exporter"
#: The two APIs by their names in the file.
APIS = {"custom": CUSTOM, "external": EXTERNAL}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The settings; times are in seconds.

    ``service`` and ``service_namespace`` are the Service that leads to the server; the default namespace is the pod's own.
    ``period`` is the time between evaluations of a metric that is in use. A sample older than ``stale`` is dropped. ``hold`` is how long a
    last value is used while Prometheus is unavailable, 0 for not at all. ``timeout`` limits a request to Prometheus. ``autoscale`` is
    whether autoscalers are made from annotations.
    """

    service: str = "gpuscaler-metrics"
    service_namespace: str = ""
    apis: frozenset[str] = field(default_factory=lambda: frozenset(APIS.values()))
    exporters: ScrapeSettings = field(default_factory=lambda: ScrapeSettings(selector=parse_selector(EXPORTERS)))
    period: float = 10.0
    stale: float = 120.0
    hold: float = 0.0
    timeout: float = 10.0
    autoscale: bool = False
    level: str = "info"


def load(path: Path) -> MetricsSettings:
    """The settings of a file. Raises :class:`SettingsError`, which names every mistake in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        saw = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise SettingsError(str(path), (Problem("", None, f"saw {saw}, expected a readable YAML file"),)) from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str = "settings") -> MetricsSettings:
    """The settings in ``text`` (YAML). Raises :class:`SettingsError`."""
    root, problems = read_document(text, expected=f"a YAML mapping with the keys {', '.join(KEYS)}", needs="settings need few")
    if problems:
        raise SettingsError(source, tuple(problems))
    if root is None or root.value is None:
        return MetricsSettings()
    report = Report()
    try:
        settings = _read(Cursor("", root, report).mapping(KEYS))
    except TooMuchError:
        raise SettingsError(source, (Problem("", None, "expands to millions of values, expected a few settings"),)) from None
    if report.problems:
        raise SettingsError(source, report.problems)
    return settings


def _read(fields: dict[str, Cursor]) -> MetricsSettings:
    default = MetricsSettings()
    service = fields["service"].mapping(SERVICE_KEYS) if "service" in fields else {}
    settings = MetricsSettings(
        service=_name(service, "name", default.service),
        service_namespace=_name(service, "namespace", default.service_namespace),
        apis=_apis(fields["apis"]) if "apis" in fields else default.apis,
        exporters=_exporters(fields["exporters"].mapping(EXPORTER_KEYS)) if "exporters" in fields else default.exporters,
        period=_seconds(fields, "period", default.period, positive=True),
        stale=_seconds(fields, "stale", default.stale, positive=True),
        hold=_seconds(fields, "hold", default.hold),
        timeout=_seconds(fields, "timeout", default.timeout, positive=True),
        autoscale=bool(fields["autoscale"].boolean()) if "autoscale" in fields else default.autoscale,
        level=(fields["log"].choice(LEVELS) or default.level) if "log" in fields else default.level,
    )
    if settings.stale < settings.period and "stale" in fields:
        fields["stale"].add_problem(
            f"`stale` ({settings.stale:g} s) must not be less than `period` ({settings.period:g} s), or values would be too old half "
            "the time"
        )
    return settings


def _apis(at: Cursor) -> frozenset[str]:
    apis = frozenset(APIS[text] for item in at.items() if (text := item.choice(tuple(APIS))))
    if not apis and isinstance(at.entry.value, list):
        at.wrong("custom, external or both", seen="none that can be served")
    return apis


def _exporters(fields: dict[str, Cursor]) -> ScrapeSettings:
    default = MetricsSettings().exporters
    port = fields["port"].integer(minimum=1, maximum=65535, expected="a port, 1 to 65535") if "port" in fields else None
    interval = _seconds(fields, "interval", default.interval, positive=True)
    selector = default.selector
    if "selector" in fields:
        try:
            selector = parse_selector(fields["selector"].text("a label selector such as app=exporter") or "")
        except SelectorError as error:
            fields["selector"].add_problem(f"{error}; correct the selector of the exporters' pods")
    return ScrapeSettings(
        namespace=_name(fields, "namespace", default.namespace),
        selector=selector,
        port=default.port if port is None else port,
        interval=interval,
        timeout=max(1.0, interval),
    )


def _name(fields: dict[str, Cursor], key: str, default: str) -> str:
    if key not in fields:
        return default
    text = fields[key].text(f"the {key} of an object")
    if text is not None and not _LABEL.fullmatch(text):
        fields[key].wrong("up to 63 lower-case letters, digits and '-', with a letter or digit at both ends")
    return text or default


def _seconds(fields: dict[str, Cursor], key: str, default: float, *, positive: bool = False) -> float:
    duration = fields[key].duration(positive=positive) if key in fields else None
    return default if duration is None else duration
