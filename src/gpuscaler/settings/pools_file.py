"""The pools file: strict YAML to :class:`~gpuscaler.model.pools.Policy`. All keys are described in ``docs/reference/pools-file.md``.

A run file is a pools file with a few more keys, so the same functions read both.
"""

from pathlib import Path
from typing import Annotated

from gpuscaler.model.options import LONGEST, MAX_GRACE
from gpuscaler.model.pools import BIND, STEERINGS, Limits, Policy
from gpuscaler.model.reading.cursor import MAX_VALUES, Cursor, Report, TooMuchError
from gpuscaler.model.reading.document import Entry, describe, read_document
from gpuscaler.model.reading.errors import Problem, SettingsError
from gpuscaler.settings.fields.kinds import Duration, amount, choice, count, integer, label_value, names
from gpuscaler.settings.fields.table import NO_CONTEXT, Field, Group, Kind, ReadContext, keys_of, read_attributes, schema, values
from gpuscaler.settings.pools import read_pools
from gpuscaler.settings.run_settings import RunSettings, has_account_pools, read_run

#: What to do about a file with Kubernetes objects, unless the command reads them elsewhere.
REMEDY = "name such a file"
PREFERENCES = ("ignore", "respect")
_MACHINES = count(0, "a whole number, 0 or more")


class LimitSettings(Group, frozen=True, gc=False):
    """The mapping ``limits``."""

    gpus: Annotated[
        int | None,
        _MACHINES,
        Field(
            "GPUs in all pools. Counts devices, even if they are shared or sliced (then by the label `nvidia.com/gpu.count`)",
            default="no limit",
        ),
    ] = None
    machines: Annotated[int | None, _MACHINES, Field("machines in all pools", default="no limit")] = None
    dollars_per_hour: Annotated[
        float | None, amount("number ≥ 0", "dollars per hour, 0 or more"), Field("sum of the prices of all machines", default="no limit")
    ] = None
    machines_per_minute: Annotated[int | None, _MACHINES, Field("machines bought within any minute", default="no limit")] = None
    fruitless_per_hour: Annotated[
        int,
        count(1, "a whole number, 1 or more"),
        Field(
            "how many machines of a pool may be fruitless within an hour: machines that ended before they opened, or on which none of the "
            "pods ran that they were bought for. After that many, nothing more is bought in the pool until the hour is over"
        ),
    ] = 10


def _limits(at: Cursor, context: ReadContext) -> Limits:
    return Limits() if at.entry.value == "none" else Limits(**read_attributes(LimitSettings, at, context))


class PolicySettings(Group, frozen=True, gc=False):
    """The keys of a pools file. ``pools`` is a cursor into the file: what its entries mean depends on the other keys."""

    pools: Annotated[
        Cursor | None,
        Kind("list", {"type": "array"}, lambda at, _: at),
        Field("the [pools](#a-pool)", default="required, at least one"),
    ] = None
    limits: Annotated[
        Limits,
        Kind("mapping or `none`", {"anyOf": [schema(LimitSettings), {"const": "none"}]}, _limits),
        Field(
            "[limits](#limits) over all pools",
            default="none; with `gpuscaler run`, $100 an hour if some pool has no `max` either",
        ),
    ] = Limits()
    region: Annotated[
        str,
        label_value("a region such as us-east-1"),
        Field(
            "region for prices and for the region labels, for zones without a region in their name",
            default="from each zone's name",
        ),
    ] = ""
    preferences: Annotated[
        str,
        choice(PREFERENCES),
        Field("whether preferred affinity and `ScheduleAnyway` only break ties (`ignore`), or may cost extra machines (`respect`)"),
    ] = "ignore"
    schedulers: Annotated[
        tuple[str, ...], names("scheduler name", "list of text"), Field("only pods of these schedulers are considered")
    ] = ("default-scheduler",)
    priority_cutoff: Annotated[
        int,
        integer("a pod priority: a whole number of 32 bits"),
        Field("pods with a lower priority are expendable and never cause a purchase"),
    ] = -10
    min_saving: Annotated[
        float,
        amount("US dollars per hour, ≥ 0", "dollars per hour, 0 or more"),
        Field("a consolidation that saves less than this is not carried out"),
    ] = 0.0
    steering: Annotated[
        str,
        choice(STEERINGS),
        Field(
            "how pods get to [the machines promised to them](../explanation/how-the-controller-acts.md#binding). Set `nominate` if the "
            "default scheduler has additional filters (plug-ins, extenders)"
        ),
    ] = BIND
    bind_schedulers: Annotated[
        tuple[str, ...],
        names("scheduler name", "list of text"),
        Field("only pods of these schedulers are bound; pods of others are nominated"),
    ] = ("default-scheduler",)
    max_grace: Annotated[
        Duration,
        Field(
            "the longest time that a pod gets to save its work (`gpuscaler.io/grace`); a longer time is cut to this, with a warning on the "
            "pod. A changed value applies to pods that are read after the change"
        ),
    ] = MAX_GRACE


TOP_KEYS = (*keys_of(PolicySettings), *keys_of(RunSettings))


def load_policy(path: str | Path) -> Policy:
    """Load the policy in the file at ``path``. Raises :class:`SettingsError` with all mistakes, or if the pools are in a cloud account."""
    settings = load_settings(path)
    if settings.has_account_pools:
        problem = (
            f"saw {settings.cloud}, whose pools come from the account, expected a file with pools; "
            "name such a file (gpuscaler pools lists the account)"
        )
        raise SettingsError(str(path), (Problem("cloud", None, problem),))
    return settings.policy


def parse_policy(text: str, source: str = "pools file") -> Policy:
    """Parse the policy in ``text``; ``source`` names it in messages. Raises :class:`SettingsError` with all mistakes."""
    return parse_settings(text, source).policy


def load_settings(path: str | Path, *, remedy: str = REMEDY) -> RunSettings:
    """Load the settings in the file at ``path``; paths are relative to its folder. Raises :class:`SettingsError` with all mistakes.

    ``remedy`` says what to do if the file holds Kubernetes objects instead: that depends on the command.
    """
    return decode_settings(read_settings(path), path, remedy=remedy)


def read_settings(path: str | Path) -> bytes:
    """Read the bytes of the file at ``path``. Raises :class:`SettingsError` if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); expected a pools file or a run file: check the path and its permissions"
        raise SettingsError(str(path), (Problem("", None, problem),)) from error


def decode_settings(data: bytes, path: str | Path, *, remedy: str = REMEDY) -> RunSettings:
    """Parse the settings in ``data``, the content of the file at ``path``. Raises :class:`SettingsError`."""
    return parse_settings(decode_text(data, path), str(path), folder=Path(path).parent, remedy=remedy)


def decode_text(data: bytes, path: str | Path) -> str:
    """Return the text in ``data``, the content of the file at ``path``. Raises :class:`SettingsError`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"saw the byte 0x{data[error.start]:02x}, expected UTF-8 text; save the file as UTF-8"
        raise SettingsError(str(path), (Problem("", line, problem),)) from error


def parse_settings(text: str, source: str = "run file", *, folder: Path | None = None, first: int = 1, remedy: str = REMEDY) -> RunSettings:
    """Parse the settings in ``text``; paths are relative to ``folder``. Raises :class:`SettingsError`.

    ``source`` names the text in messages; ``first`` is the line of ``source`` at which it begins. ``remedy`` is that of
    :func:`load_settings`.
    """
    root, problems = read_document(text, first=first)
    if root is not None and (kind := _kubernetes_kind(root)):
        # Alone: a manifest has many documents, and splitting it would not make it a pools file.
        problem = f"saw a Kubernetes object (kind {kind}), expected a pools file or a run file; {remedy}"
        raise SettingsError(source, (Problem("", root.line, problem),))
    report = Report(problems)
    settings = None
    if root is not None and root.value is not None:
        try:
            settings = _settings(_run_file(Cursor("", root, report)), folder or Path())
        except TooMuchError:
            report.add(Problem("", None, f"expands to more than {MAX_VALUES:,} values; use fewer anchors, types, markets or zones"))
    elif not problems:
        report.add(Problem("", None, "is empty, expected a mapping with the key pools; see the reference of the pools file"))
    if settings is None or report.problems:
        raise SettingsError(source, report.problems)
    return settings


def _kubernetes_kind(root: Entry) -> str:
    """Return the kind of a Kubernetes object that was passed instead of a pools file; empty for anything else."""
    members = root.value
    return describe(members["kind"]) if isinstance(members, dict) and {"apiVersion", "kind"} <= members.keys() else ""


def _run_file(top: Cursor) -> Cursor:
    """Return the run file in ``top``: in values of the Helm chart, which have none of its keys, it is the mapping ``config``."""
    members = top.entry.value
    if isinstance(members, dict) and "config" in members and members.keys().isdisjoint(TOP_KEYS):
        return Cursor("config", members["config"], top.report)
    return top


def _settings(top: Cursor, folder: Path) -> RunSettings:
    fields = top.mapping(TOP_KEYS)
    if isinstance(top.entry.value, dict) and "pools" not in fields and not has_account_pools(fields):
        top.add_problem("saw no pools, expected one; add pools: …")
    settings = values(PolicySettings, fields, NO_CONTEXT)
    pools = read_pools(fields["pools"], settings.get("region", "")) if "pools" in fields and not has_account_pools(fields) else ()
    grace = min(settings.get("max_grace", MAX_GRACE), LONGEST)
    return read_run(fields, Policy(**{**settings, "pools": pools, "max_grace": grace}), folder)
