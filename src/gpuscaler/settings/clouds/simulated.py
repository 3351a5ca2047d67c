"""The simulated cloud: the keys of a run file below ``simulated``."""

from collections.abc import Callable, Collection
from typing import Annotated

from msgspec import Struct

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.pools import Policy
from gpuscaler.model.reading.cursor import Cursor, did_you_mean
from gpuscaler.settings.fields.kinds import (
    GO_DURATION,
    LABEL_VALUE,
    Duration,
    Flag,
    Share,
    choice,
    count,
    duration_text,
    format_options,
    list_of,
    path,
)
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext, read, schema


class Span(Struct, frozen=True, gc=False):
    """A random time in seconds: never below ``low`` or above ``high``, most often near ``mode``."""

    low: float
    mode: float
    high: float


def _span(at: Cursor, _: ReadContext) -> Span | None:
    """Read one duration, which never varies, or three."""
    if not isinstance(at.entry.value, list):
        always = at.duration()
        return None if always is None else Span(always, always, always)
    durations = [item.duration() for item in at.items()]
    if len(durations) != 3:
        at.wrong("one duration, or the shortest, the typical and the longest in [ ]", seen=f"a list of {len(durations)}")
        return None
    low, mode, high = durations
    if low is None or mode is None or high is None:
        return None
    if not low <= mode <= high:
        at.wrong("the shortest, the typical and the longest in this order", seen=", ".join(item.entry.raw for item in at.items()))
        return None
    return Span(low, mode, high)


Time = Annotated[
    Span,
    Kind(
        "time",
        {"anyOf": [GO_DURATION, {"type": "array", "minItems": 3, "maxItems": 3, "items": GO_DURATION}]},
        _span,
        lambda span: [duration_text(span.low), duration_text(span.mode), duration_text(span.high)],
    ),
]


def _name_in_pools(key: str, words: str, names: Callable[[Policy], Collection[str]]) -> Kind:
    """A name that occurs in the pools: of a pool, type, market or zone, depending on ``key``."""

    def read(at: Cursor, context: ReadContext) -> str | None:
        text, allowed = at.label_value(f"a {key} of the pools"), names(context.policy)
        if text is not None and text not in allowed:
            at.wrong(f"a {key} of the pools; {did_you_mean(text, sorted(allowed))}")
        return text

    return Kind(words, LABEL_VALUE, read)


_TYPE = _name_in_pools(
    "type", "instance type of the pools", lambda policy: {offering.instance_type for offering in policy.offerings.values()}
)


class Dry(Group, frozen=True, gc=False):
    """Offerings without capacity; an empty attribute matches all."""

    pool: Annotated[
        str, _name_in_pools("pool", "name of a pool", lambda policy: {pool.name for pool in policy.pools}), Field("the pool", default="all")
    ] = ""
    type: Annotated[str, _TYPE, Field("the instance type", default="all")] = ""
    market: Annotated[
        str, _name_in_pools("market", format_options(MARKETS), lambda _: set(MARKETS)), Field("the market", default="all")
    ] = ""
    zone: Annotated[
        str,
        _name_in_pools("zone", "zone of the pools", lambda policy: {offering.zone for offering in policy.offerings.values()} - {""}),
        Field("the zone", default="all"),
    ] = ""


def _dry(at: Cursor, context: ReadContext) -> tuple[tuple[Dry, ...], str] | None:
    """Read the list, or the path of a file with series."""
    if isinstance(at.entry.value, list):
        return tuple(read(Dry, item, context) for item in at.items()), ""
    if isinstance(at.entry.value, str):
        return (), _SERIES.read(at, context) or ""
    at.wrong("a list such as [{market: spot, zone: us-east-1a}], or the path of a file of spot series")
    return None


_SERIES = path("the path of a file of spot series")
_DRY = Kind("list, or path", {"anyOf": [_SERIES.schema, {"type": "array", "items": schema(Dry)}]}, _dry, default="nothing")


class MachineQuota(Group, frozen=True, gc=False):
    """At most ``machines`` of ``types`` in ``market`` at a time; an empty attribute means all."""

    machines: Annotated[
        int,
        count(0, "a number of machines, 0 or more"),
        Field("maximum number of machines at a time", required="the maximum number; add machines: 4"),
    ] = 0
    types: Annotated[
        tuple[str, ...],
        list_of(_TYPE, "list of instance types of the pools", minItems=1, uniqueItems=True),
        Field("the types that count together", default="all"),
    ] = ()
    market: Annotated[str, choice(MARKETS), Field("the market", default="all")] = ""


class Reclaim(Group, frozen=True, gc=False):
    """How spot machines are reclaimed after their market ran dry. Times are in seconds; a share ``without_notice`` gets no notice."""

    after: Annotated[Time, Field("time from when the market runs dry until the machine gets its notice")] = Span(0.0, 0.0, 180.0)
    notice: Annotated[Duration, Field("how long before its end a machine gets its notice")] = 120.0
    without_notice: Annotated[Share, Field("share of machines that get no notice")] = 0.05


def _resource(at: Cursor, _: ReadContext) -> str | None:
    text = at.text("the name of a resource such as nvidia.com/gpu")
    if text is not None and "/" not in text:
        at.wrong("the name of an extended resource, such as nvidia.com/gpu: native resources of kubelets are always present")
    return text


class AbsentResource(Group, frozen=True, gc=False):
    """The share ``share`` of the machines of ``type`` (empty: all) never shows ``resource``."""

    resource: Annotated[
        str,
        Kind("name of an extended resource", {"type": "string", "pattern": "/"}, _resource),
        Field(
            "the resource that is promised and never shown, such as `vpc.amazonaws.com/efa`",
            required="the name of a resource such as nvidia.com/gpu; add resource: nvidia.com/gpu",
        ),
    ] = ""
    type: Annotated[str, _TYPE, Field("the instance type", default="all")] = ""
    share: Annotated[Share, Field("share of these machines that never show the resource")] = 1.0


class SimulatedFaults(Group, frozen=True, gc=False):
    """Faults of machines and calls of the simulated cloud; times in seconds, 0 for never."""

    never_registers: Annotated[Share, Field("machines that run but never become nodes")] = 0.0
    impaired: Annotated[Share, Field("among the machines of `never_registers`: those that the cloud itself reports as broken")] = 0.0
    never_visible: Annotated[Share, Field("machines whose device plugins run but never show a device")] = 0.0
    partial_grants: Annotated[Share, Field("orders of several spot machines that are granted only in part")] = 0.0
    throttled: Annotated[Share, Field("calls that are refused because there are too many")] = 0.0
    lost: Annotated[Share, Field("calls that never get an answer; half of them take effect")] = 0.0
    stale: Annotated[Duration, Field("how old the list of machines is")] = 0.0
    plugin_restarts: Annotated[Duration, Field("average time until the device plugins of a node restart; `0s`: never")] = 0.0
    plugin_away: Annotated[Duration, Field("how long the devices are missing after such a restart")] = 45.0
    kubelet_stops: Annotated[
        Duration,
        Field(
            "average time until the kubelet of a node stops for good: its Lease goes stale, and the node becomes unreachable; `0s`: never"
        ),
    ] = 0.0
    tokens: Annotated[Flag, Field("`false`: the cloud has no idempotency tokens, so a repeated order buys again")] = True
    absent: Annotated[tuple[AbsentResource, ...], Field("[resources that machines are sold with and never show](#absent-resources)")] = ()


class Simulated(Group, frozen=True, gc=False):
    """The simulated cloud. ``series`` is the path of a file of spot markets over time; empty if ``dry`` is a list."""

    boot: Annotated[Time, Field("time from the cloud's answer to a Ready node")] = Span(150.0, 200.0, 240.0)
    device_plugin_delay: Annotated[
        Time, Field("time from when the pod of the device plugin runs on a node until pods can use the GPUs")
    ] = Span(30.0, 45.0, 60.0)
    capacity_error_delay: Annotated[Time, Field("how long the cloud takes to answer an order, with machines or with a capacity error")] = (
        Span(1.0, 1.5, 5.0)
    )
    image_pull: Annotated[
        Time, Field("how long the first pod of a machine waits for its image; the image of a device plugin takes a tenth of that")
    ] = Span(10.0, 30.0, 90.0)
    dry: Annotated[
        tuple[Dry, ...],
        _DRY,
        Field(
            "[what cannot be bought](#what-cannot-be-bought), or the path of [a file of spot markets over time](spot-markets.md)",
            into=("dry", "series"),
        ),
    ] = ()
    series: str = ""
    quotas: Annotated[tuple[MachineQuota, ...], Field("[how many machines the account may have](#quotas)")] = ()
    reclaim: Annotated[Reclaim, Field("[how spot machines are reclaimed](#reclaim)")] = Reclaim()
    faults: Annotated[SimulatedFaults, Field("[what goes wrong with machines and calls](#faults)", default="nothing fails")] = (
        SimulatedFaults()
    )
    seed: Annotated[int, count(0, "a whole number, 0 or more"), Field("seed of all random choices")] = 0
    kubelet: Annotated[
        Flag,
        Field(
            "whether the simulated cloud runs the pods on its nodes and renews the Leases; `false` if another program does, such as kwok"
        ),
    ] = True
