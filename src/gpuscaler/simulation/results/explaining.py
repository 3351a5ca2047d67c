"""The difference between two sets of pools, in words."""

from collections.abc import Sequence

import msgspec

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.measures.waits import FRACTION, GANGS, NO_GPU, Wait
from gpuscaler.simulation.results.comparing import Change, Difference, OfferingChange, ServedByOne, WaitChange
from gpuscaler.simulation.results.figures import SECONDS, format_figure, single_value
from gpuscaler.simulation.world.meter import UnservedReason

#: Contributions named individually; the rest is added up.
SHOWN = 6
#: Smaller amounts in dollars are not mentioned.
NEGLIGIBLE = 0.005

#: Figures that are mentioned when they differ, besides cost and waits.
MENTIONED = (
    ("evictions", "evictions"),
    ("lost_gpu_hours", "GPU-hours lost to evictions"),
    ("gpu_hours_idle", "GPU-hours idle"),
    ("capacity_errors", "capacity errors"),
)


def explain(difference: Difference) -> list[str]:
    """Return sentences, the most important first."""
    counted = [f"Pods are counted over all {difference.seeds} seeds together."] if difference.seeds > 1 else []
    return [
        *_cost(difference),
        *_served(difference),
        *_machines(difference),
        *_holders(difference),
        *_waits(difference),
        *_other_figures(difference),
        *counted,
    ]


def pool_changes(a: Policy, b: Policy) -> list[str]:
    """Describe how the pools of ``b`` differ from those of ``a``."""
    pools = [{pool.name: pool for pool in policy.pools} for policy in (a, b)]
    lines = [
        f"only {name} has the pool {pool}"
        for name, own, other in (("A", *pools), ("B", *reversed(pools)))
        for pool in own
        if pool not in other
    ]
    for name, pool in pools[0].items():
        if name in pools[1]:
            lines += _pool_changes(pool, pools[1][name])
    for field in ("limits", "preferences", "min_saving"):
        before, after = (msgspec.to_builtins(getattr(policy, field, None)) for policy in (a, b))
        if before != after:
            lines.append(
                f"{field}: {_format_value(_differing_entries(before, after))} → {_format_value(_differing_entries(after, before))}"
            )
    return lines


def _differing_entries(value: object, other: object) -> object:
    """The entries of a mapping that differ from the other one; anything else unchanged."""
    if not (isinstance(value, dict) and isinstance(other, dict)):
        return value
    return {key: inner for key, inner in value.items() if other.get(key) != inner}


def _pool_changes(a: Pool, b: Pool) -> list[str]:
    offerings = [{offering.key: offering for offering in pool.offerings} for pool in (a, b)]
    lines = []
    for name, own, other in (("A", *offerings), ("B", *reversed(offerings))):
        extra = sorted({f"{key[2]} {key[1]} in {key[3]}" for key in own if key not in other})
        if extra:
            lines.append(f"pool {a.name}: only {name} has {_join_names(extra)}")
    prices = [key for key, offering in offerings[0].items() if key in offerings[1] and offering.price != offerings[1][key].price]
    if prices:
        lines.append(
            f"pool {a.name}: {len(prices)} {'offering has a different price' if len(prices) == 1 else 'offerings have different prices'}"
        )
    if a.idle_after != b.idle_after:
        lines.append(f"pool {a.name}: idle_after: {a.idle_after:g} s → {b.idle_after:g} s")
    for field in Pool.__struct_fields__:
        before, after = getattr(a, field), getattr(b, field)
        if field not in {"offerings", "idle_after"} and before != after:
            lines.append(
                f"pool {a.name}: {field}: {_format_value(msgspec.to_builtins(before))} → {_format_value(msgspec.to_builtins(after))}"
            )
    return lines


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value(inner)}" for key, inner in value.items() if inner is not None) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _cost(difference: Difference) -> list[str]:
    change = difference.cost.difference or 0.0
    a, b = difference.cost.a or 0.0, difference.cost.b or 0.0
    if abs(change) < NEGLIGIBLE:
        return [f"B costs the same as A: ${b:,.2f}."]
    part = "" if not a else f" ({change / a:+.1%})" if abs(change / a) >= 0.0005 else " (less than 0.1 %)"
    text = f"B costs ${abs(change):,.2f} {'less' if change < 0 else 'more'} than A: ${b:,.2f} instead of ${a:,.2f}{part}"
    if difference.sd is None:
        return [f"{text}, with one seed."]
    spread = f"on average over {difference.seeds} seeds (standard deviation ${difference.sd:,.2f})"
    return [f"{text}, {spread}; B costs less with {difference.cheaper} of them."]


def _machines(difference: Difference) -> list[str]:
    """Break the difference down by offering; the contributions add up to it."""
    parts = [_describe_machine(row) for row in difference.offerings if abs(row.cost.difference or 0.0) >= NEGLIGIBLE]
    rest = sum(row.cost.difference or 0.0 for row in difference.offerings[SHOWN:])
    if len(parts) > SHOWN:
        parts[SHOWN:] = [f"{_dollars(rest)} {len(parts) - SHOWN} more"]
    return [f"By machine: {'; '.join(parts)}."] if parts else []


def _describe_machine(row: OfferingChange) -> str:
    hours = f"{row.hours.a or 0.0:,.1f} → {row.hours.b or 0.0:,.1f} hours"
    return f"{_signed(row.cost)} {row.instance_type} {row.market} in {row.zone} (pool {row.pool}, {hours})"


def _holders(difference: Difference) -> list[str]:
    parts = [
        f"{_signed(row.cost)} {'held by ' + _pods(row.pod_class) if row.pod_class is not None else 'unattributed: boot and idle time'}"
        for row in difference.classes
        if abs(row.cost.difference or 0.0) >= NEGLIGIBLE
    ]
    return [f"By kind of pods: {'; '.join(parts)}."] if parts else []


def _waits(difference: Difference) -> list[str]:
    changed = [row for row in difference.waits if row.longer or row.shorter]
    if not changed:
        return ["No pod's wait changes noticeably."]
    return [_describe_wait(row) for row in changed]


def _describe_wait(row: WaitChange) -> str:
    verb = "wait longer" if row.longer > row.shorter else "wait less" if row.shorter > row.longer else "wait differently"
    percentiles = ", ".join(
        f"{title} {_seconds(row.a, field)} → {_seconds(row.b, field)}" for field, title in (("p50", "median"), ("p95", "p95"))
    )
    pods = _pods(row.pod_class)
    return f"{pods[0].upper()}{pods[1:]} {verb}: {percentiles}; of {row.pods:,} pods, {row.longer:,} longer and {row.shorter:,} less."


def _served(difference: Difference) -> list[str]:
    lines = []
    for name, other, rows, reasons in (
        ("A", "B", difference.only_a, difference.why_not_b),
        ("B", "A", difference.only_b, difference.why_not_a),
    ):
        if rows:
            parts = "; ".join(_describe_served(row) for row in rows)
            lines.append(f"Run only with {name}: {parts}." + _reasons(other, reasons))
    return lines


def _describe_served(row: ServedByOne) -> str:
    more = ", …" if row.pods > len(row.some) else ""
    pods = _pods(row.pod_class) if row.pods > 1 else _pods(row.pod_class).replace("pods", "pod", 1)
    return f"{row.pods:,} {pods} ({', '.join(row.some)}{more})"


def _reasons(name: str, reasons: Sequence[UnservedReason]) -> str:
    if not reasons:
        return ""
    return f" With {name} {reasons[0].pods:,} {'pod' if reasons[0].pods == 1 else 'pods'} never ran because of: {reasons[0].reason}."


def _other_figures(difference: Difference) -> list[str]:
    parts = []
    for key, title in MENTIONED:
        change = difference.figures[key]
        if change.a is not None and change.b is not None and _number(change.a) != _number(change.b):
            parts.append(f"{title} {_number(change.a)} → {_number(change.b)}")
    return [f"Also: {', '.join(parts)}."] if parts else []


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _pods(pod_class: str) -> str:
    """Name pods of a kind in a sentence."""
    if pod_class == GANGS:
        return "pods in gangs"
    if pod_class == NO_GPU:
        return "pods without a GPU"
    return f"pods with {pod_class}" if pod_class != FRACTION else "pods with a part of a GPU"


def _signed(change: Change) -> str:
    return _dollars(change.difference or 0.0)


def _dollars(value: float) -> str:
    return f"{'-' if value < 0 else '+'}${abs(value):,.2f}"


def _seconds(wait: Wait, field: str) -> str:
    return format_figure(SECONDS, single_value(getattr(wait, field), at_least=field in wait.at_least))


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
