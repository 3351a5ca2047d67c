"""The parts of a pool that are read alike wherever they stand: labels, taints, resources, budgets, sizes, headroom."""

import re
from fractions import Fraction

from gpuscaler.model.accelerators import gpus_in
from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Budget, Offering, Spare
from gpuscaler.model.quantities import QuantityError, milli, parse, whole
from gpuscaler.model.schedules import parse_schedule
from gpuscaler.model.taints import Taint
from gpuscaler.settings.cursor import Cursor, did_you_mean

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TAINT_KEYS = ("key", "value", "effect")
BUDGET_KEYS = ("nodes", "reasons", "schedule", "duration")
#: Our reasons, and Karpenter's words for the same.
REASONS = {"idle": "idle", "consolidation": "consolidation", "Empty": "idle", "Underutilized": "consolidation"}
#: Resources without a domain; every other one has one (nvidia.com/gpu).
NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")
_NODES = re.compile(r"(100|[0-9]{1,2})%|[0-9]{1,9}")
_TAINT = re.compile(r"([^=:]+)(?:=([^=:]*))?:([A-Za-z]+)")


def read_labels(at: Cursor, pool: str) -> dict[str, str]:
    """Labels of a pool's nodes. Those that tell machines or pools apart are not the user's to set."""
    labels: dict[str, str] = {}
    for key, value in (at.members() or {}).items():
        text = "" if value.entry.value == "" else value.text("text as a label's value")
        if not is_qualified_name(key):
            value.say(f'saw the label key "{key}", expected name or domain/name in letters, digits, "-", "_" and "."; rename it')
        elif text is None:
            continue
        elif not is_label_value(text):
            value.label_value("a label's value")
        elif key == "kubernetes.io/hostname":
            value.say("a hostname is one machine's own and cannot be a pool's; remove it")
        elif key == "gpuscaler.io/pool" and text != pool:
            value.say(f'saw "{text}", expected "{pool}": this label is the pool\'s name and comes by itself; remove it')
        else:
            labels[key] = text
    return labels


def read_taints(at: Cursor) -> tuple[Taint, ...]:
    taints: dict[tuple[str, str], Taint] = {}
    for item in at.items():
        taint = _taint(item)
        if taint is None:
            continue
        if (taint.key, taint.effect) in taints:
            item.say(f"saw a second taint {taint.key}:{taint.effect}, expected each key and effect once; remove one")
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


def read_resources(at: Cursor) -> Resources:
    """Kubernetes quantities in planning's units: cpu in millicores, the rest in bytes or counts."""
    resources: dict[str, int] = {}
    for name, item in (at.members() or {}).items():
        if not (name in NATIVE or name.startswith("hugepages-") or ("/" in name and is_qualified_name(name))):
            hint = "did you mean nvidia.com/gpu?" if name in ("gpu", "gpus", "nvidia") else f"expected {', '.join(NATIVE)} or domain/name"
            item.say(f"unknown resource; {hint}")
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


def read_budgets(at: Cursor) -> tuple[Budget, ...]:
    return tuple(budget for item in at.items() if (budget := _budget(item)) is not None)


def _budget(at: Cursor) -> Budget | None:
    fields = at.mapping(BUDGET_KEYS, required=("nodes",))
    nodes = _budget_nodes(fields["nodes"]) if "nodes" in fields else None
    reasons: list[str] = []
    if "reasons" in fields:
        for item in fields["reasons"].items():
            reason = item.choice(tuple(REASONS))
            if reason is not None and REASONS[reason] not in reasons:
                reasons.append(REASONS[reason])
    schedule = _schedule(fields["schedule"]) if "schedule" in fields else None
    duration = fields["duration"].duration(positive=True) if "duration" in fields else None
    if ("schedule" in fields) != ("duration" in fields):
        there, missing = ("schedule", "duration") if "schedule" in fields else ("duration", "schedule")
        at.say(f"saw {there} without {missing}, expected both or neither; a schedule opens the budget for its duration: add {missing}")
    return None if nodes is None else Budget(nodes, tuple(reasons), schedule, duration)


def _budget_nodes(at: Cursor) -> str | None:
    value = at.entry.value
    if isinstance(value, str | int) and not isinstance(value, bool) and _NODES.fullmatch(at.entry.raw):
        return at.entry.raw
    at.wrong('a count such as 5 or a share such as "10%"')
    return None


def _schedule(at: Cursor) -> str | None:
    text = at.text('a cron schedule such as "0 9 * * mon-fri"')
    if text is None:
        return None
    try:
        parse_schedule(text)
    except ValueError as error:
        at.wrong(f"a cron schedule in UTC: {error}")
        return None
    return text


def read_sizes(fields: dict[str, Cursor]) -> tuple[int | None, int | None]:
    """(min, max) of a pool; None what is left out, or wrong, which was reported."""
    expected = "a number of machines, 0 or more"
    least = fields["min"].integer(minimum=0, expected=expected) if "min" in fields else None
    most = fields["max"].integer(minimum=0, expected=expected) if "max" in fields else None
    if least is not None and most is not None and least > most:
        fields["min"].wrong(f"at most max, which is {most}; lower min or raise max", seen=str(least))
    return least, most


def read_spare(at: Cursor, offerings: tuple[Offering, ...]) -> Spare:
    if isinstance(at.entry.value, dict):
        fields = at.mapping(("gpus",), required=("gpus",))
        gpus = fields["gpus"].integer(minimum=0, expected="a number of GPUs, 0 or more") if "gpus" in fields else None
        if gpus and offerings and not any(gpus_in(offering.allocatable) for offering in offerings):
            fields["gpus"].wrong("whole GPUs among what the pool's machines offer; write spare: N for machines", seen=str(gpus))
        return Spare(gpus=gpus or 0)
    machines = at.integer(minimum=0, expected="a number of machines, or {gpus: N}")
    return Spare(machines=machines or 0)
