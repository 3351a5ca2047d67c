"""The options of ``gpuscaler metrics``: prometheus-adapter's flags as data, and those of its flags that have no effect here.

Source: ``cmd/adapter/adapter.go`` of prometheus-adapter v0.12, and the flags of ``k8s.io/apiserver/pkg/server/options`` v0.30.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gpuscaler.kube.reviews import ALWAYS_ALLOWED, DEFAULT_TTL, Ttl
from gpuscaler.metrics.command.settings import MetricsSettings
from gpuscaler.model.durations import DurationError, parse_duration
from gpuscaler.settings.run_settings import is_loopback

_BACKENDS = ("log", "webhook")
_AUDIT_SWITCHES = tuple(f"audit-{backend}-{option}" for backend in _BACKENDS for option in ("batch-throttle-enable", "truncate-enabled"))
_AUDIT = tuple(
    f"audit-{backend}-{option}"
    for backend in _BACKENDS
    for option in (
        "mode version batch-buffer-size batch-max-size batch-max-wait batch-throttle-qps batch-throttle-burst truncate-max-batch-size "
        "truncate-max-event-size"
    ).split()
)
#: Flags that are accepted without effect, and why. Those in ``SWITCHES`` have no value, the others do.
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        "v vmodule log-backtrace-at log-dir log-file log-file-max-size stderrthreshold logging-format log-flush-frequency "
        "log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream".split(),
        "log lines are JSON on standard error; for more of them, set log: debug in the file of --settings",
    ),
    **dict.fromkeys(
        "logtostderr alsologtostderr add-dir-header one-output skip-headers skip-log-headers".split(),
        "log lines are JSON on standard error",
    ),
    **dict.fromkeys((*_AUDIT, *_AUDIT_SWITCHES), "requests are not audited here; the API server audits them"),
    **dict.fromkeys(
        "audit-log-path audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-format audit-log-compress audit-policy-file "
        "audit-webhook-config-file audit-webhook-initial-backoff audit-webhook-batch-initial-backoff".split(),
        "requests are not audited here; the API server audits them",
    ),
    "tls-cipher-suites": "TLS 1.2 and 1.3 are served with the system's ciphers",
    "tls-min-version": "TLS 1.2 and 1.3 are served",
    "tls-sni-cert-key": "one certificate is served",
    "disable-http2": "HTTP/2 is not served",
    "http2-max-streams-per-connection": "HTTP/2 is not served",
    "discovery-interval": "resources are not discovered; no list of them is needed",
    "authentication-skip-lookup": "the ConfigMap is read for everything that the flags do not set",
    "authentication-tolerate-lookup-failure": "the server starts without the ConfigMap, and is ready once it is read",
    "feature-gates": "there are no feature gates",
    **dict.fromkeys("profiling contention-profiling debug-socket-path".split(), "there is no profiling page"),
    **dict.fromkeys("permit-port-sharing permit-address-sharing".split(), "ports are not shared"),
    **dict.fromkeys("enable-priority-and-fairness max-requests-inflight max-mutating-requests-inflight".split(), "requests are not queued"),
}
SWITCHES = frozenset(_AUDIT_SWITCHES) | frozenset(
    "logtostderr alsologtostderr add-dir-header one-output skip-headers skip-log-headers log-json-split-stream log-text-split-stream "
    "disable-http2 authentication-skip-lookup authentication-tolerate-lookup-failure profiling contention-profiling "
    "permit-port-sharing permit-address-sharing enable-priority-and-fairness audit-log-compress".split()
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Names of headers that contain secrets, and the warning about a secret in an argument.
_SECRET = re.compile(r"authorization|cookie|token|secret|password|key$", re.IGNORECASE)
_IN_FILE = "expected it in a file: everyone who may list processes or read the Deployment can see it; use --prometheus-header-file"
_FLAG = re.compile(r"--?([a-z0-9_-]+)(=.*)?", re.DOTALL)


class FlagError(ValueError):
    """An invalid flag; the text names it, what was seen and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of the command. Paths are None if they were not given; times are in seconds.

    ``source`` is ``prometheus`` or ``exporters``; without ``rules`` the built-in ones are used.
    """

    source: str = "prometheus"
    prometheus_urls: tuple[str, ...] = ()
    prometheus_kubeconfig: Path | None = None
    prometheus_in_cluster: bool = False
    prometheus_ca: Path | None = None
    prometheus_certificate: Path | None = None
    prometheus_key: Path | None = None
    prometheus_token: Path | None = None
    prometheus_headers: tuple[tuple[str, str], ...] = ()
    prometheus_header_files: tuple[tuple[str, Path], ...] = ()
    prometheus_verb: str = "POST"
    rules: Path | None = None
    relist: float = 600.0
    max_age: float = 600.0
    lister_kubeconfig: Path | None = None
    authentication_kubeconfig: Path | None = None
    authorization_kubeconfig: Path | None = None
    trust: "TrustFlags"
    ttl: Ttl = DEFAULT_TTL
    always_allowed: tuple[str, ...] = tuple(sorted(ALWAYS_ALLOWED))
    certificate: Path | None = None
    key: Path | None = None
    certificate_folder: Path | None = None
    address: str = "0.0.0.0"
    port: int = 6443
    qps: float = 50.0
    burst: int = 100
    settings: MetricsSettings = field(default_factory=MetricsSettings)

    def check(self) -> None:
        """Raise :class:`FlagError` for flags that contradict each other."""
        if self.source == "exporters" and self.prometheus_urls:
            raise FlagError(
                "--prometheus-url: saw it with --source exporters, which does not use Prometheus, expected one of the two; remove one"
            )
        if self.source == "exporters" and not self.settings.exporters.namespace:
            raise FlagError(
                "--source exporters: saw no namespace of the exporters, expected that of their DaemonSet, since other pods could report "
                "false values for any GPU; set exporters.namespace in the file of --settings"
            )
        if self.source == "prometheus" and not self.prometheus_urls:
            expected = "the URL of a Prometheus, such as http://prometheus.monitoring.svc:9090"
            raise FlagError(f"--prometheus-url: saw no URL, expected {expected}; add it, or --source exporters")
        if self.prometheus_in_cluster and self.prometheus_kubeconfig is not None:
            raise FlagError("--prometheus-auth-incluster, --prometheus-auth-config: saw both, expected at most one; remove one")
        if (self.certificate is None) != (self.key is None):
            raise FlagError("--tls-cert-file, --tls-private-key-file: saw one of the two, expected both or neither; add the other")
        if self.max_age < self.relist:
            expected = f"at least the {self.relist:g} s of --metrics-relist-interval: series would be forgotten between two lists"
            raise FlagError(f"--metrics-max-age: saw {self.max_age:g} s, expected {expected}")

    def warnings(self) -> tuple[str, ...]:
        """Warnings about secrets that others can read; each text names the flag but not the secret."""
        urls = [urlsplit(url) for url in self.prometheus_urls]
        warnings = []
        if any(url.password for url in urls):
            warnings.append(f"--prometheus-url: saw a password in the URL, {_IN_FILE} Authorization=FILE")
        named = [name for name, _ in self.prometheus_headers if _SECRET.search(name)]
        warnings += [f"--prometheus-header {name}: saw its value, {_IN_FILE} {name}=FILE" for name in named]
        shown = self.prometheus_token is not None or self.prometheus_header_files or named
        for url in urls:
            if url.scheme == "http" and (shown or url.password) and not is_loopback(url.hostname or ""):
                server = f"http://{url.hostname}"
                warnings.append(
                    f"--prometheus-url: saw {server} for a server that gets credentials, expected https, since others may intercept them"
                )
        return tuple(warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFlags:
    """``--client-ca-file`` and ``--requestheader-*``. The names of headers have an effect only together with the proxies' authority."""

    client_ca: Path | None = None
    proxy_ca: Path | None = None
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("x-remote-user",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ("x-remote-group",)
    extra_prefixes: tuple[str, ...] = ("x-remote-extra-",)

    def as_config_map(self) -> dict[str, str]:
        """The flags as keys of the ConfigMap, which they override. Reads the files; raises :class:`FlagError`."""
        keys: dict[str, str] = {}
        if self.client_ca is not None:
            keys["client-ca-file"] = _text(self.client_ca, "--client-ca-file")
        if self.proxy_ca is not None:
            keys["requestheader-client-ca-file"] = _text(self.proxy_ca, "--requestheader-client-ca-file")
            for key, names in (
                ("requestheader-allowed-names", self.allowed_names),
                ("requestheader-username-headers", self.user_headers),
                ("requestheader-uid-headers", self.uid_headers),
                ("requestheader-group-headers", self.group_headers),
                ("requestheader-extra-headers-prefix", self.extra_prefixes),
            ):
                keys[key] = msgspec.json.encode(names).decode()
        return keys


def without_ignored(words: Sequence[str], switches: frozenset[str]) -> tuple[list[str], list[str]]:
    """``words`` of a command line in the form that is parsed here, and a note for each flag without effect.

    ``switches`` are switches with an effect: as in Go, ``--switch=true`` becomes ``--switch``, and ``--switch=false`` is removed.
    """
    kept, notes = [], []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        match = _FLAG.fullmatch(word)
        name, value = (match[1].replace("_", "-"), match[2]) if match else ("", None)
        if name in switches and value is not None and word.startswith("--"):
            if _parse_bool(name, value[1:]):
                kept.append(f"--{name}")
        elif name in IGNORED:
            if value is None and name not in SWITCHES and remaining:
                remaining.pop(0)
            notes.append(f"--{name} is ignored: {IGNORED[name]}")
        else:
            kept.append(word)
    return kept, list(dict.fromkeys(notes))


def parse_seconds(flag: str, text: str, *, zero: bool = False) -> float:
    """Parse a Go duration above 0, or also 0 with ``zero``. Raises :class:`FlagError`."""
    try:
        duration = parse_duration(text)
    except DurationError:
        duration = -1.0
    if duration < 0 or (duration == 0 and not zero):
        raise FlagError(f"{flag}: saw {text!r}, expected a duration with its unit, such as 90s or 10m")
    return duration


def parse_header(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE`` of ``--prometheus-header``. Raises :class:`FlagError`, without the value, which may be a secret."""
    name, mark, value = text.partition("=")
    if not mark or not _HEADER.fullmatch(name.strip()) or not value.isprintable():
        raise FlagError(f"--prometheus-header: saw {name[:40]!r} and no value after =, expected NAME=VALUE on one line")
    return name.strip(), value.strip()


def parse_header_file(text: str) -> tuple[str, Path]:
    """Parse ``NAME=FILE`` of ``--prometheus-header-file``. Raises :class:`FlagError`."""
    name, mark, path = text.partition("=")
    if not mark or not _HEADER.fullmatch(name.strip()) or not path.strip():
        raise FlagError(
            f"--prometheus-header-file: saw {text[:80]!r}, expected NAME=FILE, such as Authorization=/etc/prometheus/authorization"
        )
    return name.strip(), Path(path.strip())


def split_values(values: Sequence[str]) -> tuple[str, ...]:
    """The values of a flag that may be repeated and may have several values separated by commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _parse_bool(name: str, text: str) -> bool:
    if text.lower() in {"true", "t", "1"}:
        return True
    if text.lower() in {"false", "f", "0"}:
        return False
    raise FlagError(f"--{name}: saw {text!r}, expected true or false")


def _text(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        saw = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise FlagError(f"{flag} {path}: saw {saw}, expected certificates in PEM") from error
