"""Kinds of values for pools: labels, taints, resources, disruption budgets, headroom."""

import re
from fractions import Fraction
from typing import Annotated

from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Budget, Spare
from gpuscaler.model.quantities import QuantityError, milli, parse, whole
from gpuscaler.model.reading.cursor import Cursor, did_you_mean
from gpuscaler.model.schedules import parse_schedule
from gpuscaler.model.taints import Taint
from gpuscaler.settings.fields.kinds import GO_DURATION, LABEL_VALUE, list_of
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext, mapping, nullable, read_attributes, requires_values, schema

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TAINT_KEYS = ("key", "value", "effect")
#: Reasons of removals, and Karpenter's names for them.
REASONS = {"idle": "idle", "consolidation": "consolidation", "Empty": "idle", "Underutilized": "consolidation"}
#: Resources without a domain; all others have one (nvidia.com/gpu).
NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")
_QUALIFIED = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_EMPTY_OR_VALUE = {"type": "string", "pattern": f"^$|{LABEL_VALUE['pattern']}"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_NODES = re.compile(r"(100|[0-9]{1,2})%|[0-9]{1,9}")
_TAINT = re.compile(r"([^=:]+)(?:=([^=:]*))?:([A-Za-z]+)")


def _labels(at: Cursor, _: ReadContext) -> dict[str, str]:
    """Read labels of a pool's nodes. Labels that differ between machines are rejected."""
    labels: dict[str, str] = {}
    for key, value in (at.members() or {}).items():
        text = "" if value.entry.value == "" else value.text("text as a label's value")
        if not is_qualified_name(key):
            value.add_problem(f'saw the label key "{key}", expected name or domain/name in letters, digits, "-", "_" and "."; rename it')
        elif text is None:
            continue
        elif not is_label_value(text):
            value.label_value("a label's value")
        elif key == "kubernetes.io/hostname":
            value.add_problem("a hostname differs between machines and cannot be a pool's label; remove it")
        else:
            labels[key] = text
    return labels


def _taints(at: Cursor, _: ReadContext) -> tuple[Taint, ...]:
    taints: dict[tuple[str, str], Taint] = {}
    for item in at.items():
        taint = _taint(item)
        if taint is None:
            continue
        if (taint.key, taint.effect) in taints:
            item.add_problem(f"saw a second taint {taint.key}:{taint.effect}, expected each key and effect once; remove one")
        taints[(taint.key, taint.effect)] = taint
    return tuple(taints.values())


def _taint(at: Cursor) -> Taint | None:
    if isinstance(at.entry.value, dict):
        return _taint_mapping(at)
    text = at.text("a taint such as key=value:NoSchedule or key:NoSchedule")
    if text is None:
        return None
    parts = _TAINT.fullmatch(text)
    if parts is None or not is_qualified_name(parts[1]) or not is_label_value(parts[2] or ""):
        at.wrong("a taint such as key=value:NoSchedule or key:NoSchedule")
    elif parts[3] not in EFFECTS:
        at.wrong(f"an effect after the colon: {did_you_mean(parts[3], EFFECTS)}")
    else:
        return Taint(parts[1], parts[2] or "", parts[3])
    return None


def _taint_mapping(at: Cursor) -> Taint | None:
    fields = at.mapping(TAINT_KEYS, required=("key", "effect"))
    key = fields["key"].text("a taint's key") if "key" in fields else None
    effect = fields["effect"].choice(EFFECTS) if "effect" in fields else None
    value: str | None = ""
    if "value" in fields and fields["value"].entry.value != "":
        value = fields["value"].label_value("a taint's value")
    if key is not None and not is_qualified_name(key):
        fields["key"].wrong("a taint's key: name or domain/name")
        return None
    return None if key is None or effect is None or value is None else Taint(key, value, effect)


def _resources(at: Cursor, _: ReadContext) -> Resources:
    """Read Kubernetes quantities in the planner's units: cpu in millicores, the rest in bytes or counts."""
    resources: dict[str, int] = {}
    for name, item in (at.members() or {}).items():
        if not (name in NATIVE or name.startswith("hugepages-") or ("/" in name and is_qualified_name(name))):
            hint = "did you mean nvidia.com/gpu?" if name in ("gpu", "gpus", "nvidia") else f"expected {', '.join(NATIVE)} or domain/name"
            item.add_problem(f"unknown resource; {hint}")
            continue
        amount = _quantity(item, name)
        if amount is not None:
            resources[name] = amount
    return resources


def _quantity(at: Cursor, name: str) -> int | None:
    counted = name == "pods" or "/" in name
    expected = "a whole number such as 8" if counted else "a quantity such as 7910m" if name == "cpu" else "a quantity such as 28Gi"
    value = at.entry.value
    amount: Fraction | None = None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            amount = parse(at.entry.raw)
        except QuantityError:
            amount = None
    if amount is None or amount < 0 or (counted and amount.denominator != 1):
        at.wrong(f"{expected}, not negative")
        return None
    units = milli(amount) if name == "cpu" else whole(amount)
    if units >= 2**63:
        at.wrong(f"{expected} below 2^63")
        return None
    return units


def _budget_nodes(at: Cursor, _: ReadContext) -> str | None:
    value = at.entry.value
    if isinstance(value, str | int) and not isinstance(value, bool) and _NODES.fullmatch(at.entry.raw):
        return at.entry.raw
    at.wrong('a count such as 5 or a share such as "10%"')
    return None


def _schedule(at: Cursor, _: ReadContext) -> str | None:
    text = at.text('a cron schedule such as "0 9 * * mon-fri"')
    if text is None:
        return None
    try:
        parse_schedule(text)
    except ValueError as error:
        at.wrong(f"a cron schedule in UTC: {error}")
        return None
    return text


def _reason(at: Cursor, _: ReadContext) -> str | None:
    reason = at.choice(tuple(REASONS))
    return None if reason is None else REASONS[reason]


class BudgetSettings(Group, frozen=True, gc=False):
    """A disruption budget: an entry of a pool's ``budgets``."""

    nodes: Annotated[
        str,
        Kind(
            "count, or a share such as `10%`",
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": 999_999_999},
                    {"type": "string", "pattern": "^((100|[0-9]{1,2})%|[0-9]{1,9})$"},
                ]
            },
            _budget_nodes,
        ),
        Field("the maximum number, or share, of machines", required="one; add nodes: …"),
    ] = ""
    reasons: Annotated[
        tuple[str, ...],
        list_of(Kind("", {"enum": list(REASONS)}, _reason), "list of `idle`, `consolidation`", distinct=True),
        Field("which removals it limits. Karpenter's names `Empty` and `Underutilized` are accepted, too", default="every reason"),
    ] = ()
    schedule: Annotated[
        str | None,
        Kind(
            "cron in UTC: minute, hour, day of month, month, day of week; or `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, "
            "`@yearly`, `@annually`",
            {"type": "string", "minLength": 1},
            _schedule,
        ),
        Field("when the budget opens; needs `duration`", default="always open"),
    ] = None
    duration: Annotated[
        float | None,
        Kind("duration above 0", GO_DURATION, lambda at, _: at.duration(positive=True)),
        Field("how long it stays open; needs `schedule`", default="always open"),
    ] = None

    def check(self, at: Cursor) -> None:
        if at.has("schedule") != at.has("duration"):
            present, missing = ("schedule", "duration") if at.has("schedule") else ("duration", "schedule")
            at.add_problem(
                f"saw {present} without {missing}, expected both or neither; a schedule opens the budget for its duration: add {missing}"
            )


def _budget(at: Cursor, context: ReadContext) -> Budget | None:
    budget = read_attributes(BudgetSettings, at, context)
    return Budget(**budget) if "nodes" in budget else None


def _spare(at: Cursor, _: ReadContext) -> Spare:
    if isinstance(at.entry.value, dict):
        fields = at.mapping(("gpus",), required=("gpus",))
        gpus = fields["gpus"].integer(minimum=0, expected="a number of GPUs, 0 or more") if "gpus" in fields else None
        return Spare(gpus=gpus or 0)
    machines = at.integer(minimum=0, expected="a number of machines, or {gpus: N}")
    return Spare(machines=machines or 0)


LABELS = Kind(
    "mapping of text to text",
    {
        "type": "object",
        "propertyNames": {"pattern": _QUALIFIED, "not": {"const": "kubernetes.io/hostname"}},
        "additionalProperties": _EMPTY_OR_VALUE,
    },
    _labels,
    default="none",
)
TAINTS = Kind(
    "list of [taints](#taints)",
    {
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string", "pattern": f"^[^=:]+(=[^=:]*)?:({'|'.join(EFFECTS)})$"},
                mapping(
                    {
                        "key": {"type": "string", "pattern": _QUALIFIED},
                        "value": nullable(_EMPTY_OR_VALUE),
                        "effect": {"enum": list(EFFECTS)},
                    },
                    required=["key", "effect"],
                ),
            ]
        },
    },
    _taints,
    default="none",
)
RESOURCES = Kind(
    "mapping of resources to quantities",
    {
        "type": "object",
        "propertyNames": {"pattern": "^(cpu|memory|ephemeral-storage|pods|hugepages-.+|[^/]+/[^/]+)$"},
        "additionalProperties": {"type": ["string", "number"]},
    },
    _resources,
)
BUDGETS = list_of(
    Kind(
        "",
        {
            **schema(BudgetSettings),
            "anyOf": [
                requires_values("schedule", "duration"),
                {"properties": {"schedule": {"type": "null"}, "duration": {"type": "null"}}},
            ],
        },
        _budget,
    ),
    "list",
)
SPARE = Kind(
    "machines ≥ 0, or `{gpus: N}`",
    {"anyOf": [_COUNT, mapping({"gpus": _COUNT}, required=["gpus"])]},
    _spare,
    lambda spare: spare.machines,
)
