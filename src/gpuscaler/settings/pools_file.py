"""The pools file: strict YAML to :class:`~gpuscaler.model.pools.Policy`. Every key is described in ``docs/reference/pools-file.md``.

A run file is a pools file with a few keys more, so whoever reads the one reads the other.
"""

from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from gpuscaler.model.accelerators import gpus_in
from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.options import LONGEST, MAX_GRACE
from gpuscaler.model.pools import STEERINGS, UNREADY_AFTER, Limits, Offering, Policy, Pool, Spare, for_gpus
from gpuscaler.settings.aws_file import OVERRIDE_KEYS
from gpuscaler.settings.cursor import MAX_VALUES, Cursor, Report, TooMuchError
from gpuscaler.settings.document import Entry, describe, read_document
from gpuscaler.settings.errors import Problem, SettingsError
from gpuscaler.settings.fields.table import keys_of
from gpuscaler.settings.offerings import PoolFacts, read_offerings
from gpuscaler.settings.pieces import read_budgets, read_labels, read_sizes, read_spare, read_taints
from gpuscaler.settings.run_settings import RunSettings, from_account, read_run

TOP_KEYS = (
    "pools",
    "limits",
    "region",
    "preferences",
    "schedulers",
    "priority_cutoff",
    "min_saving",
    "max_grace",
    "steering",
    "bind_schedulers",
)
LIMIT_KEYS = ("gpus", "machines", "dollars_per_hour", "machines_per_minute", "fruitless_per_hour")
POOL_KEYS = (*OVERRIDE_KEYS, "chooser", "arch", "zones", "markets", "types")
CHOOSERS = ("buyer", "cloud")
PREFERENCES = ("ignore", "respect")
ARCHITECTURES = ("amd64", "arm64", "ppc64le", "s390x")


def load_policy(path: str | Path) -> Policy:
    """The policy in the file at ``path``. Raises :class:`SettingsError` with everything that is wrong, or where pools are in an account."""
    settings = load_settings(path)
    if settings.cloud == "aws":
        problem = (
            "saw aws, whose pools are in the account, expected a file with pools; give one (gpuscaler pools prints what the account has)"
        )
        raise SettingsError(str(path), (Problem("cloud", None, problem),))
    return settings.policy


def parse_policy(text: str, source: str = "pools file") -> Policy:
    """The policy in ``text``; ``source`` names it in messages. Raises :class:`SettingsError` with everything that is wrong with it."""
    return parse_settings(text, source).policy


def load_settings(path: str | Path) -> RunSettings:
    """What the file at ``path`` says. Paths in it are relative to its folder. Raises :class:`SettingsError`, as :func:`load_policy`."""
    return decode_settings(read_settings(path), path)


def read_settings(path: str | Path) -> bytes:
    """The bytes of the file at ``path``. Raises :class:`SettingsError` where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); expected a pools file or a run file: check the path and its permissions"
        raise SettingsError(str(path), (Problem("", None, problem),)) from error


def decode_settings(data: bytes, path: str | Path) -> RunSettings:
    """What ``data`` from the file at ``path`` says. Raises :class:`SettingsError`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"saw the byte 0x{data[error.start]:02x}, expected UTF-8 text; save the file as UTF-8"
        raise SettingsError(str(path), (Problem("", line, problem),)) from error
    return parse_settings(text, str(path), folder=Path(path).parent)


def parse_settings(text: str, source: str = "run file", *, folder: Path | None = None) -> RunSettings:
    """What ``text`` says; ``source`` names it in messages, and paths in it are relative to ``folder``. Raises :class:`SettingsError`."""
    root, problems = read_document(text)
    report = Report(problems)
    settings = None
    if root is not None and (kind := _kubernetes_kind(root)):
        report.add(
            Problem("", root.line, f"saw a Kubernetes object (kind {kind}), expected a pools file or a run file; give objects to --cluster")
        )
    elif root is not None and root.value is not None:
        try:
            settings = _settings(_run_file(Cursor("", root, report)), folder or Path())
        except TooMuchError:
            report.add(Problem("", None, f"unfolds to more than {MAX_VALUES:,} values; use fewer anchors, types, markets or zones"))
    elif not problems:
        report.add(Problem("", None, "is empty, expected a mapping with the key pools; see the reference of the pools file"))
    if settings is None or report.problems:
        raise SettingsError(source, report.problems)
    return settings


def _kubernetes_kind(root: Entry) -> str:
    """The kind of a Kubernetes object that was given in place of a pools file; empty for anything else."""
    members = root.value
    return describe(members["kind"]) if isinstance(members, dict) and {"apiVersion", "kind"} <= members.keys() else ""


def _run_file(top: Cursor) -> Cursor:
    """The run file in ``top``: of a Helm chart's values, which have none of its keys, what is below ``config``."""
    members = top.entry.value
    if isinstance(members, dict) and "config" in members and members.keys().isdisjoint((*TOP_KEYS, *keys_of(RunSettings))):
        return Cursor("config", members["config"], top.report)
    return top


def _settings(top: Cursor, folder: Path) -> RunSettings:
    fields = top.mapping((*TOP_KEYS, *keys_of(RunSettings)))
    if isinstance(top.entry.value, dict) and "pools" not in fields and not from_account(fields):
        top.say("saw no pools, expected one; add pools: …")
    return read_run(fields, _policy(fields), folder)


def _policy(fields: dict[str, Cursor]) -> Policy:
    region = ""
    if "region" in fields:
        region = fields["region"].label_value("a region such as us-east-1") or ""
    cutoff = -10
    if "priority_cutoff" in fields:
        cutoff = fields["priority_cutoff"].integer(minimum=-(2**31), expected="a pod priority: a whole number of 32 bits") or 0
    saving = 0.0
    if "min_saving" in fields:
        saving = fields["min_saving"].number(expected="dollars per hour, 0 or more") or 0.0
    grace = fields["max_grace"].duration() if "max_grace" in fields else None
    return Policy(
        pools=_pools(fields["pools"], region) if "pools" in fields and not from_account(fields) else (),
        limits=_limits(fields["limits"]) if "limits" in fields else Limits(),
        region=region,
        preferences=_choice(fields, "preferences", PREFERENCES),
        schedulers=_schedulers(fields["schedulers"]) if "schedulers" in fields else ("default-scheduler",),
        steering=_choice(fields, "steering", STEERINGS),
        bind_schedulers=_schedulers(fields["bind_schedulers"]) if "bind_schedulers" in fields else ("default-scheduler",),
        priority_cutoff=cutoff,
        min_saving=saving,
        max_grace=MAX_GRACE if grace is None else min(grace, LONGEST),
    )


def _choice(fields: dict[str, Cursor], key: str, options: Collection[str]) -> str:
    """The chosen option; the first one where the key is left out (or wrong, which was reported)."""
    chosen = fields[key].choice(options) if key in fields else None
    return chosen or next(iter(options))


def _schedulers(at: Cursor) -> tuple[str, ...]:
    return tuple(item.entry.raw for item in at.names("scheduler name"))


def _limits(at: Cursor) -> Limits:
    if at.entry.value == "none":
        return Limits()
    fields = at.mapping(LIMIT_KEYS)
    counts = {
        key: number
        for key in LIMIT_KEYS
        if key in fields and key != "dollars_per_hour" and (number := _count(fields[key], key)) is not None
    }
    dollars = fields["dollars_per_hour"].number(expected="dollars per hour, 0 or more") if "dollars_per_hour" in fields else None
    return replace(Limits(dollars_per_hour=dollars), **counts)


def _count(at: Cursor, key: str) -> int | None:
    least = 1 if key == "fruitless_per_hour" else 0
    return at.integer(minimum=least, expected=f"a whole number, {least} or more")


def _pools(at: Cursor, region: str) -> tuple[Pool, ...]:
    pools: dict[str, tuple[Cursor, Pool]] = {}
    items = at.items()
    if not items and isinstance(at.entry.value, list):
        at.wrong("at least one pool; add - name: …", seen="an empty list")
    for item in items:
        pool = _pool(item, region)
        if pool is None:
            continue
        if pool.name in pools:
            item.say(f'saw the name "{pool.name}" a second time (first at {pools[pool.name][0].path}); rename one')
        pools[pool.name] = (item, pool)
    return tuple(pool for _, pool in pools.values())


def _pool(at: Cursor, region: str) -> Pool | None:
    fields = at.mapping(POOL_KEYS, required=("name",))
    if not isinstance(at.entry.value, dict):
        return None
    name = (fields["name"].label_value("a pool's name") if "name" in fields else None) or ""
    labels = read_labels(fields["labels"], name) if "labels" in fields else {}
    arch = fields["arch"].choice(ARCHITECTURES) if "arch" in fields else None
    facts = PoolFacts(
        name=name,
        region=region,
        arch=arch,
        zones=tuple(item.entry.raw for item in fields["zones"].names("zone")) if "zones" in fields else ("",),
        markets=_markets(fields["markets"]) if "markets" in fields else ("on-demand",),
        labels=labels,
        taints=read_taints(fields["taints"]) if "taints" in fields else (),
    )
    if "types" not in fields and "offerings" not in fields:
        at.say("saw neither types nor offerings, expected at least one way to buy; add types: […]")
    offerings = read_offerings(fields.get("types"), fields.get("offerings"), facts)
    least, most = read_sizes(fields)
    idle = fields["idle_after"].duration() if "idle_after" in fields else None
    unready = fields["unready_after"].duration() if "unready_after" in fields else None
    priority = fields["priority"].integer(minimum=-(2**31), expected="a whole number; higher is first") if "priority" in fields else None
    pool = Pool(
        name=name,
        offerings=offerings,
        chooser=_choice(fields, "chooser", CHOOSERS),
        min=least or 0,
        max=most,
        spare=read_spare(fields["spare"], offerings) if "spare" in fields else Spare(),
        idle_after=600.0 if idle is None else idle,
        unready_after=UNREADY_AFTER if unready is None else unready,
        min_gpus_per_pod=_large(fields["min_gpus_per_pod"], offerings) if "min_gpus_per_pod" in fields else 0,
        buys_without_gpus="min_gpus_per_pod" in fields or not for_gpus(offerings),
        steering=(fields["steering"].choice(STEERINGS) or "") if "steering" in fields else "",
        priority=priority or 0,
        arch=arch,
        match_labels=labels,
        startup_taints=read_taints(fields["startup_taints"]) if "startup_taints" in fields else (),
        budgets=read_budgets(fields["budgets"]) if "budgets" in fields else (),
    )
    return pool if name else None


def _markets(at: Cursor) -> tuple[str, ...]:
    return tuple(market for item in at.names("market") if (market := item.choice(MARKETS)) is not None)


def _large(at: Cursor, offerings: tuple[Offering, ...]) -> int:
    least = at.integer(minimum=0, expected="a number of GPUs, 0 or more") or 0
    for offering in offerings:
        gpus = gpus_in(offering.allocatable)
        if gpus < least:
            at.wrong(
                f"at most {gpus}, the GPUs of {offering.instance_type}; lower it, or give that type a pool of its own", seen=str(least)
            )
            break
    return least
