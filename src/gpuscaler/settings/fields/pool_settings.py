"""The keys of pools and of their offerings."""

from collections.abc import Mapping
from typing import Annotated

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.overrides import EVERY_POOL
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import STEERINGS, UNREADY_AFTER, Budget, Spare
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import POOL_LABEL
from gpuscaler.settings.fields.kinds import FLAG, Duration, amount, choice, count, format_options, integer, label_value, names
from gpuscaler.settings.fields.pool_kinds import BUDGETS, LABELS, RESOURCES, SPARE, TAINTS
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext, schema

CHOOSERS = ("buyer", "cloud")
ARCHITECTURES = ("amd64", "arm64", "ppc64le", "s390x")
_POOL_NAME = label_value("a pool's name")
_DOLLARS = "dollars per hour above 0 (0 only if all is reserved)"


class OfferingSettings(Group, frozen=True, gc=False):
    """An entry of ``offerings``."""

    type: Annotated[
        str,
        label_value("an instance type"),
        Field("instance type; a name that the catalogue does not have needs `price` and `resources`", required="one; add type: …"),
    ] = ""
    market: Annotated[str, choice(MARKETS), Field("the market", default="each of the pool's `markets`")] = ""
    zone: Annotated[str, label_value("a zone"), Field("the zone", default="each of the pool's `zones`")] = ""
    price: Annotated[
        float | None,
        amount("US dollars per hour, above 0; `0` where the market is `reserved`", _DOLLARS),
        Field(
            "price of a machine, in every market and zone of the entry",
            default="the [catalogue's](catalogue.md) list price in the zone's region",
        ),
    ] = None
    resources: Annotated[
        Resources | None,
        RESOURCES,
        Field(
            "what a node offers to pods: kubelet reservations are subtracted, DaemonSets are not. Overrides the catalogue resource by "
            "resource. An unknown type needs `cpu` and `memory`, and gets 110 `pods` if that is not set",
            default="the catalogue's allocatable resources",
        ),
    ] = None

    def check_price(self, at: Cursor, *, free: bool) -> None:
        """Report a price of 0 unless the machines are already paid for (``free``)."""
        if self.price == 0 and not free:
            at.descend("price").wrong(_DOLLARS)


def _unread(at: Cursor, _: ReadContext) -> Cursor:
    return at


class PoolSettings(Group, frozen=True, gc=False):
    """An entry of ``pools``. ``types`` and ``offerings`` are cursors into the file, since they can only be read together."""

    name: Annotated[
        str,
        _POOL_NAME,
        Field("also the node label `gpuscaler.io/pool`; unique", type="text, a label value", required="one; add name: …"),
    ] = ""
    types: Annotated[
        Cursor | None,
        Kind("list of instance types", names("instance type", "").schema, _unread, default="none"),
        Field("the short form: each type in each of `markets` and `zones`, at the catalogue's price. Exact names, no patterns"),
    ] = None
    markets: Annotated[
        tuple[str, ...],
        Kind(
            f"list of {format_options(MARKETS)}",
            {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": list(MARKETS)}},
            lambda at, _: tuple(market for item in at.names("market") if (market := item.choice(MARKETS)) is not None),
            list,
        ),
        Field("markets to buy `types` in, and the default for offerings without `market`"),
    ] = ("on-demand",)
    zones: Annotated[
        tuple[str, ...],
        names("zone", "list of zones"),
        Field(
            "zones to buy `types` in, and the default for offerings without `zone`",
            default="none: the cloud places the machine anywhere in the region, and its node template has no zone label",
        ),
    ] = ("",)
    offerings: Annotated[
        Cursor | None,
        Kind("list", {"type": "array", "minItems": 1, "items": schema(OfferingSettings)}, _unread, default="none"),
        Field("the exact form, [below](#an-offering)"),
    ] = None
    chooser: Annotated[
        str,
        choice(CHOOSERS),
        Field("what chooses among the offerings: gpuscaler, or the cloud (a mixed group over several types or zones)"),
    ] = "buyer"
    min: Annotated[int, count(0, "a number of machines, 0 or more"), Field("minimum number of machines")] = 0
    max: Annotated[
        int | None,
        count(0, "a number of machines, 0 or more"),
        Field("maximum number of machines; not below `min`", default="no maximum"),
    ] = None
    spare: Annotated[Spare, SPARE, Field("headroom to keep: whole empty machines, or unused GPUs")] = Spare()
    idle_after: Annotated[Duration, Field("how long a machine is idle before it is removed; `0`: removed immediately")] = 600.0
    unready_after: Annotated[
        Duration,
        Field(
            "how long the node of a machine may be not Ready before the machine is "
            "[ended](../how-to/why-does-a-node-stay.md#a-node-that-is-not-ready); `0`: never"
        ),
    ] = UNREADY_AFTER
    steering: Annotated[str, choice(STEERINGS), Field("how pods get to the pool's machines", default="`steering` of the file")] = ""
    closed: Annotated[
        bool,
        FLAG,
        Field(
            "[keeps the machines closed](#machines-kept-for-large-pods) to all pods except those that a plan places there, and places pods "
            "only on the smallest size of machine of the pool that holds them"
        ),
    ] = False
    min_gpus_per_pod: Annotated[
        int,
        count(0, "a number of GPUs, 0 or more"),
        Field(
            "[keeps the machines](#machines-kept-for-large-pods) for pods that request at least this many GPUs; every type of the pool "
            "must have at least as many",
            default="not set: no machine is bought for pods without GPUs if all types of the pool have GPUs; `0`: any pod",
        ),
    ] = 0
    priority: Annotated[
        int,
        integer("a whole number; higher is first"),
        Field(
            "pools with a higher priority are filled first; among equal priorities, cost decides. "
            "[A ConfigMap of Cluster Autoscaler](#priorities-of-cluster-autoscaler) takes precedence"
        ),
    ] = 0
    arch: Annotated[
        str | None,
        choice(ARCHITECTURES),
        Field(
            "with `arm64`, the pool's machines serve any pod; if the key is not set, arm64 machines serve only pods with a selector or "
            "affinity for arm64. The key also sets the architecture of types that the catalogue does not have",
            default="the architecture of the types",
        ),
    ] = None
    labels: Annotated[
        Mapping[str, str],
        LABELS,
        Field(
            "node labels in addition to the [well-known ones](#well-known-labels), which they override. In plans from "
            "files, nodes without `gpuscaler.io/pool` belong to the pool with matching labels and types"
        ),
    ] = {}
    taints: Annotated[tuple[Taint, ...], TAINTS, Field("taints that stay on the nodes")] = ()
    startup_taints: Annotated[tuple[Taint, ...], TAINTS, Field("taints that another program removes once the node is set up")] = ()
    budgets: Annotated[tuple[Budget, ...], BUDGETS, Field("[disruption budgets](#disruption-budgets)", default="no budget")] = ()

    def check(self, at: Cursor) -> None:
        if self.max is not None and self.min > self.max:
            at.descend("min").wrong(f"at most max, which is {self.max}; lower min or raise max", seen=str(self.min))
        own = self.labels.get(POOL_LABEL, self.name)
        if self.name and own != self.name:
            at.descend("labels", POOL_LABEL).add_problem(
                f'saw "{own}", expected "{self.name}": this label is the pool\'s name and comes by itself; remove it'
            )


def _override_name(at: Cursor, context: ReadContext) -> str | None:
    name: str | None = EVERY_POOL if at.entry.value == EVERY_POOL else _POOL_NAME.read(at, context)
    return name


class OverrideSettings(PoolSettings, frozen=True, gc=False):
    """An entry of ``pools`` that overrides a pool found in an account, or every pool."""

    name: Annotated[
        str,
        Kind("text", {"anyOf": [_POOL_NAME.schema, {"const": EVERY_POOL}]}, _override_name, _POOL_NAME.show),
        Field("the name of a pool, or `*` for every pool", required="that of a pool, or '*' for every pool; add name: …"),
    ] = ""

    def check(self, at: Cursor) -> None:
        """Report labels, taints and prices of every pool: its machines differ from those of others."""
        super().check(at)
        for key in ("labels", "taints", "offerings") if self.name == EVERY_POOL else ():
            if at.has(key):
                at.descend(key).add_problem(f'saw {key} of every pool ("{EVERY_POOL}"), expected them of one pool; name the pool')
