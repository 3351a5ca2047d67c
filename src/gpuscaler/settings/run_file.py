"""The keys that a run file has beside those of a pools file. Every key is described in ``docs/reference/run-file.md``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.pools import Policy
from gpuscaler.model.quantities import QuantityError, parse
from gpuscaler.settings.aws_file import read_aws, read_overrides
from gpuscaler.settings.cursor import Cursor, did_you_mean
from gpuscaler.settings.run_settings import (
    CLOUDS,
    LATER_CLOUDS,
    LEVELS,
    AbsentResource,
    AuthenticatedSettings,
    AwsSettings,
    Dry,
    ElectionSettings,
    HistorySettings,
    HttpSettings,
    LogSettings,
    MachineQuota,
    PaceSettings,
    PagesSettings,
    RateSettings,
    Reclaim,
    RunSettings,
    Simulated,
    SimulatedFaults,
    Span,
    is_loopback,
)

RUN_KEYS = ("cloud", "simulated", "aws", "namespace", "pace", "leader_election", "rate_limit", "http", "pages", "history", "log")
SPANS = ("boot", "device_plugin_delay", "capacity_error_delay", "image_pull")
SIMULATED_KEYS = (*SPANS, "dry", "quotas", "reclaim", "faults", "seed", "kubelet")
DRY_KEYS = ("pool", "type", "market", "zone")
QUOTA_KEYS = ("machines", "types", "market")
RECLAIM_KEYS = ("after", "notice", "without_notice")
SHARES = ("never_registers", "impaired", "never_visible", "partial_grants", "throttled", "lost")
ABSENT_KEYS = ("resource", "type", "share")
TIMES = ("stale", "plugin_restarts", "plugin_away", "kubelet_stops")
FAULT_KEYS = (*SHARES, *TIMES, "tokens", "absent")
PACE_KEYS = ("debounce", "patience", "resync", "register_timeout", "ready_timeout", "consolidate")
ELECTION_KEYS = ("enabled", "name", "lease", "renew", "retry")
RATE_KEYS = ("qps", "burst")
HTTP_KEYS = ("enabled", "address", "certificate", "key", "alive_within")
PAGES_KEYS = ("enabled", "address", "authenticated")
AUTHENTICATED_KEYS = ("address", "certificate", "key")
HISTORY_KEYS = ("folder", "decisions", "bytes")
LOG_KEYS = ("level",)

#: DNS-1123: what namespaces are called, and what objects are.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]*)):([0-9]{1,5})")
#: How long a call of a cloud may take, in seconds: the controller's.
LONGEST_CALL = 10.0
#: Shorter waits than this, in seconds, would only burn time.
_SHORTEST = 0.01

Fields = dict[str, Cursor]
T = TypeVar("T")


def read_run(fields: Fields, policy: Policy, folder: Path) -> RunSettings:
    """The settings of a file whose known keys are ``fields``; paths are relative to ``folder``."""
    default = RunSettings(policy)
    return RunSettings(
        policy=policy,
        cloud=_cloud(fields["cloud"]) if "cloud" in fields else "",
        simulated=_simulated(fields["simulated"], policy, folder) if "simulated" in fields else default.simulated,
        aws=_aws(fields, policy),
        namespace=_dns_label(fields["namespace"], "a namespace such as kube-system") if "namespace" in fields else "",
        pace=_pace(fields["pace"]) if "pace" in fields else default.pace,
        leader_election=_election(fields["leader_election"]) if "leader_election" in fields else default.leader_election,
        rate_limit=_rate(fields["rate_limit"]) if "rate_limit" in fields else default.rate_limit,
        http=_http(fields["http"], folder) if "http" in fields else default.http,
        pages=_pages(fields["pages"], folder) if "pages" in fields else default.pages,
        history=_history(fields["history"], folder) if "history" in fields else default.history,
        log=_log(fields["log"]) if "log" in fields else default.log,
        limits_stated="limits" in fields,
    )


def _cloud(at: Cursor) -> str:
    if at.entry.value in LATER_CLOUDS:
        at.wrong(f"{' or '.join(CLOUDS)}: this version cannot drive {at.entry.value} yet")
        return ""
    return at.choice(CLOUDS) or ""


def _aws(fields: Fields, policy: Policy) -> AwsSettings:
    """What is said of AWS; where that is the cloud, ``pools`` says the rest."""
    settings = read_aws(fields.get("aws"), policy.region)
    if not from_account(fields):
        return settings if "aws" in fields else AwsSettings()
    if not settings.regions and ("aws" not in fields or not fields["aws"].has("regions")):
        fields["cloud"].say("saw no region, expected the regions of the account's groups; add aws: {regions: [us-east-1]}")
    return msgspec.structs.replace(settings, overrides=read_overrides(fields["pools"]) if "pools" in fields else ())


def from_account(fields: Fields) -> bool:
    """Whether pools come from an account, so that those of the file only change them."""
    return "cloud" in fields and fields["cloud"].entry.value == "aws"


def _simulated(at: Cursor, policy: Policy, folder: Path) -> Simulated:
    fields, default = at.mapping(SIMULATED_KEYS), Simulated()
    series, dry = _dry(fields["dry"], policy, folder) if "dry" in fields else ("", ())
    return Simulated(
        **{key: _span(fields[key], getattr(default, key)) for key in SPANS if key in fields},
        dry=dry,
        series=series,
        quotas=tuple(_quota(item, policy) for item in fields["quotas"].items()) if "quotas" in fields else (),
        reclaim=_reclaim(fields["reclaim"]) if "reclaim" in fields else default.reclaim,
        faults=_faults(fields["faults"], policy) if "faults" in fields else default.faults,
        seed=_value(fields, "seed", lambda one: one.integer(minimum=0, expected="a whole number, 0 or more"), default.seed),
        kubelet=_value(fields, "kubelet", Cursor.boolean, default.kubelet),
    )


def _span(at: Cursor, default: Span) -> Span:
    """One duration, which never varies, or three."""
    if not isinstance(at.entry.value, list):
        always = at.duration()
        return default if always is None else Span(always, always, always)
    found = [item.duration() for item in at.items()]
    if len(found) != 3:
        at.wrong("one duration, or the shortest, the typical and the longest in [ ]", seen=f"a list of {len(found)}")
        return default
    low, mode, high = found
    if low is None or mode is None or high is None:
        return default
    if not low <= mode <= high:
        at.wrong("the shortest, the typical and the longest in this order", seen=", ".join(item.entry.raw for item in at.items()))
        return default
    return Span(low, mode, high)


def _dry(at: Cursor, policy: Policy, folder: Path) -> tuple[str, tuple[Dry, ...]]:
    """The path of a file of series, or the list."""
    if isinstance(at.entry.value, list):
        return "", tuple(_dry_entry(item, policy) for item in at.items())
    if isinstance(at.entry.value, str):
        return _path(at, folder, "the path of a file of spot series"), ()
    at.wrong("a list such as [{market: spot, zone: us-east-1a}], or the path of a file of spot series")
    return "", ()


def _dry_entry(at: Cursor, policy: Policy) -> Dry:
    fields = at.mapping(DRY_KEYS)
    offerings = list(policy.offerings.values())
    known = {
        "pool": {pool.name for pool in policy.pools},
        "type": {one.instance_type for one in offerings},
        "market": set(MARKETS),
        "zone": {one.zone for one in offerings} - {""},
    }
    found = {}
    for key, one in fields.items():
        text = one.label_value(f"a {key} of the pools")
        if text is not None and text not in known[key]:
            one.wrong(f"a {key} of the pools; {did_you_mean(text, sorted(known[key]))}")
        found[key] = text or ""
    return Dry(**found)


def _quota(at: Cursor, policy: Policy) -> MachineQuota:
    fields = at.mapping(QUOTA_KEYS)
    if "machines" not in fields:
        at.say("saw no machines, expected how many there may be; add machines: 4")
    return MachineQuota(
        machines=_value(fields, "machines", lambda one: one.integer(minimum=0, expected="a number of machines, 0 or more"), 0),
        types=tuple(_type(one, policy) for one in fields["types"].items()) if "types" in fields else (),
        market=_value(fields, "market", lambda one: one.choice(MARKETS), ""),
    )


def _reclaim(at: Cursor) -> Reclaim:
    fields, default = at.mapping(RECLAIM_KEYS), Reclaim()
    return Reclaim(
        after=_span(fields["after"], default.after) if "after" in fields else default.after,
        notice=_value(fields, "notice", Cursor.duration, default.notice),
        without_notice=_share(fields, "without_notice", default.without_notice),
    )


def _faults(at: Cursor, policy: Policy) -> SimulatedFaults:
    fields, default = at.mapping(FAULT_KEYS), SimulatedFaults()
    return SimulatedFaults(
        **{key: _share(fields, key, getattr(default, key)) for key in SHARES},
        **{key: _value(fields, key, Cursor.duration, getattr(default, key)) for key in TIMES},
        absent=tuple(_absent(item, policy) for item in fields["absent"].items()) if "absent" in fields else (),
        tokens=_value(fields, "tokens", Cursor.boolean, default.tokens),
    )


def _absent(at: Cursor, policy: Policy) -> AbsentResource:
    """A resource that machines are sold with and never show."""
    fields = at.mapping(ABSENT_KEYS)
    if "resource" not in fields:
        at.say("saw no resource, expected the name of one such as nvidia.com/gpu; add resource: nvidia.com/gpu")
    resource = _value(fields, "resource", lambda one: one.text("the name of a resource such as nvidia.com/gpu"), "")
    if "resource" in fields and resource and "/" not in resource:
        fields["resource"].wrong("the name of an extended resource, such as nvidia.com/gpu: what kubelets count is always there")
    return AbsentResource(
        resource=resource,
        type=_type(fields["type"], policy) if "type" in fields else "",
        share=_share(fields, "share", 1.0),
    )


def _type(at: Cursor, policy: Policy) -> str:
    """An instance type of the pools."""
    known = {offering.instance_type for offering in policy.offerings.values()}
    text = at.label_value("a type of the pools")
    if text is not None and text not in known:
        at.wrong(f"a type of the pools; {did_you_mean(text, sorted(known))}")
    return text or ""


def _share(fields: Fields, key: str, default: float) -> float:
    share = _value(fields, key, lambda one: one.number(expected="a share from 0 to 1"), default)
    if share > 1:
        fields[key].wrong("a share from 0 to 1")
    return share


def _pace(at: Cursor) -> PaceSettings:
    fields, default = at.mapping(PACE_KEYS), PaceSettings()
    found = {key: _wait(fields, key, getattr(default, key)) for key in PACE_KEYS}
    pace = PaceSettings(**found)
    if pace.debounce > pace.patience:
        at.say(
            f"saw debounce {pace.debounce:g} s above patience {pace.patience:g} s, expected at most that; lower debounce or raise patience"
        )
    return pace


def _election(at: Cursor) -> ElectionSettings:
    fields, default = at.mapping(ELECTION_KEYS), ElectionSettings()
    found = ElectionSettings(
        enabled=_value(fields, "enabled", Cursor.boolean, default.enabled),
        name=_dns_label(fields["name"], "the name of a Lease such as gpuscaler") if "name" in fields else default.name,
        lease=_wait(fields, "lease", default.lease),
        renew=_wait(fields, "renew", default.renew),
        retry=_wait(fields, "retry", default.retry),
    )
    if not found.lease > found.renew > found.retry:
        saw = f"saw lease {found.lease:g} s, renew {found.renew:g} s, retry {found.retry:g} s"
        at.say(f"{saw}, expected lease above renew above retry; raise lease or lower the others")
    elif found.lease != int(found.lease):
        fields["lease"].wrong("whole seconds, which is how a Lease is written")
    elif found.lease - found.retry < LONGEST_CALL + 1:
        at.say(
            f"saw lease {found.lease:g} s and retry {found.retry:g} s, expected at least {LONGEST_CALL + 1:g} s between them: "
            f"calls of a cloud take up to {LONGEST_CALL:g} s, and none begins that may outlast the lease; raise lease"
        )
    return found


def _rate(at: Cursor) -> RateSettings:
    fields, default = at.mapping(RATE_KEYS), RateSettings()
    return RateSettings(
        qps=_value(fields, "qps", lambda one: one.number(expected="requests a second, above 0", positive=True), default.qps),
        burst=_value(fields, "burst", lambda one: one.integer(minimum=1, expected="a number of requests, 1 or more"), default.burst),
    )


def _http(at: Cursor, folder: Path) -> HttpSettings:
    fields, default = at.mapping(HTTP_KEYS), HttpSettings()
    host, port = _address(fields["address"], (default.host, default.port)) if "address" in fields else (default.host, default.port)
    _both_or_neither(at, fields)
    return HttpSettings(
        enabled=_value(fields, "enabled", Cursor.boolean, default.enabled),
        host=host,
        port=port,
        **_certificate(fields, folder),
        alive_within=_wait(fields, "alive_within", default.alive_within),
    )


def _both_or_neither(at: Cursor, fields: Fields) -> None:
    for key, other in (("certificate", "key"), ("key", "certificate")):
        if key in fields and other not in fields:
            at.say(f"saw {key} without {other}, expected both or neither; add {other}")


def _certificate(fields: Fields, folder: Path) -> dict[str, str]:
    """Paths of a certificate and its key, empty where they are left out."""
    words = {"certificate": "the path of a certificate as PEM", "key": "the path of a private key as PEM"}
    return {key: _path(fields[key], folder, what) if key in fields else "" for key, what in words.items()}


def _pages(at: Cursor, folder: Path) -> PagesSettings:
    fields, default = at.mapping(PAGES_KEYS), PagesSettings()
    host, port = _address(fields["address"], (default.host, default.port)) if "address" in fields else (default.host, default.port)
    if not is_loopback(host):
        fields["address"].wrong(
            "a loopback address such as 127.0.0.1:8081, since whoever reaches it reads names and annotations of all pods; "
            "for another one set pages.authenticated"
        )
    return PagesSettings(
        enabled=_value(fields, "enabled", Cursor.boolean, default.enabled),
        host=host,
        port=port,
        authenticated=_authenticated(fields["authenticated"], folder) if "authenticated" in fields else default.authenticated,
    )


def _authenticated(at: Cursor, folder: Path) -> AuthenticatedSettings:
    fields = at.mapping(AUTHENTICATED_KEYS, required=AUTHENTICATED_KEYS)
    if len(fields) < len(AUTHENTICATED_KEYS):
        return AuthenticatedSettings()
    host, port = _address(fields["address"], ("", 0))
    return AuthenticatedSettings(host=host, port=port, **_certificate(fields, folder))


def _address(at: Cursor, default: tuple[str, int]) -> tuple[str, int]:
    text = at.text("HOST:PORT, such as 127.0.0.1:8080 or :8080")
    found = _ADDRESS.fullmatch(text or "")
    if text is not None and (found is None or int(found[3]) > 65535):
        at.wrong("HOST:PORT, such as 127.0.0.1:8080 or :8080")
        found = None
    return (found[1] or found[2] or "", int(found[3])) if found else default


def _history(at: Cursor, folder: Path) -> HistorySettings:
    fields, default = at.mapping(HISTORY_KEYS), HistorySettings()
    return HistorySettings(
        folder=_path(fields["folder"], folder, "the path of a folder that can be written") if "folder" in fields else "",
        decisions=_value(
            fields, "decisions", lambda one: one.integer(minimum=1, expected="a number of decisions, 1 or more"), default.decisions
        ),
        bytes=_value(fields, "bytes", _bytes, default.bytes),
    )


def _bytes(at: Cursor) -> int | None:
    try:
        amount = parse(at.entry.raw) if isinstance(at.entry.value, str | int) and not isinstance(at.entry.value, bool) else None
    except QuantityError:
        amount = None
    if amount is None or not 1 <= amount < 2**63:
        at.wrong("an amount of memory such as 64Mi")
        return None
    return int(amount)


def _log(at: Cursor) -> LogSettings:
    fields, default = at.mapping(LOG_KEYS), LogSettings()
    return LogSettings(level=_value(fields, "level", lambda one: one.choice(LEVELS), default.level))


def _value(fields: Fields, key: str, read: Callable[[Cursor], T | None], default: T) -> T:
    """The value of a key; the default where the key is left out, or wrong, which was reported."""
    found = read(fields[key]) if key in fields else None
    return default if found is None else found


def _wait(fields: Fields, key: str, default: float) -> float:
    seconds = _value(fields, key, lambda one: one.duration(positive=True), default)
    if seconds < _SHORTEST:
        fields[key].wrong(f"at least {_SHORTEST * 1000:.0f}ms")
    return seconds


def _dns_label(at: Cursor, expected: str) -> str:
    text = at.text(expected)
    if text is not None and not _LABEL.fullmatch(text):
        at.wrong(f"{expected}: up to 63 lower-case letters, digits and '-', with a letter or digit at both ends")
    return text or ""


def _path(at: Cursor, folder: Path, expected: str) -> str:
    text = at.text(expected)
    return "" if text is None else str(folder / text)
