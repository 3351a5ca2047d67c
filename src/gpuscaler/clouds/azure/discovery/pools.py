"""Builds a pool from a scale set or an agent pool and its location: offerings, limits, findings. Pure."""

import hashlib
from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.clouds.azure.discovery.findings import conflict_of, findings_of, quota_findings, taint_advice
from gpuscaler.clouds.azure.discovery.offerings import LocationData, OfferingBuilder, PriceSource
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.documents.reservations import Reservation
from gpuscaler.clouds.azure.documents.resources import MACHINES, AgentPool, ScaleSet, is_word
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.azure.templates.node_templates import NodeTemplate
from gpuscaler.clouds.azure.templates.tags import tag_hints
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.labels import label_value_of
from gpuscaler.model.pools import UNREADY_AFTER, Offering, Pool, all_have_gpus, is_scattered
from gpuscaler.model.well_known import POOL_LABEL

#: How machines of a pool are bought: by the capacity of its scale set, or by the count of its agent pool.
SCALE_SET, AGENT_POOL = "scale-set", "agent-pool"
#: ``azure.api`` of the settings.
AUTO, BY_SCALE_SET, BY_AGENT_POOL = "auto", "vmss", "agentpool"
#: The largest scale set, and the largest one in a single placement group. The largest node pool of AKS is as large as the first.
LARGEST, LARGEST_PLACED = 1000, 100
#: Tags of Cluster Autoscaler's discovery with the limits of a scale set.
_MIN_TAG, _MAX_TAG = "min", "max"
SCATTERED = (
    "Azure chooses the zone of each machine, so pods bound to one zone (a volume, a gang of one zone) cannot use it; make one pool per zone"
)


class PoolError(ValueError):
    """A scale set or agent pool cannot be a pool. ``incomplete`` means that a part of it could not be read now."""

    def __init__(self, reason: str, *, incomplete: bool = False) -> None:
        super().__init__(reason)
        self.incomplete = incomplete


class AzurePool(Struct, frozen=True):
    """A pool, and the scale set or agent pool (or both) that it was read from.

    ``source`` says how it was found: see :mod:`gpuscaler.clouds.azure.discovery.ownership`. ``way`` is :data:`SCALE_SET` or
    :data:`AGENT_POOL`. ``skus`` is by name of a size as offerings have it. ``reservations`` are those that its machines may use.
    ``tagged`` are the fields of the pool that tags set.
    """

    pool: Pool
    source: str
    subscription: str
    location: str
    scale_set: ScaleSet | None = None
    agent_pool: AgentPool | None = None
    way: str = SCALE_SET
    skus: Mapping[str, Sku] = {}
    warnings: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    tagged: tuple[str, ...] = ()

    @property
    def resources(self) -> PoolResources:
        return PoolResources(self.scale_set, self.agent_pool)

    @property
    def id(self) -> str:
        """The folded resource id of its agent pool, else of its scale set."""
        return self.resources.id

    @property
    def default_name(self) -> str:
        """The pool's name unless a tag gives another one: that of its agent pool, else of its scale set, as a label value."""
        return default_name_of(self.resources)

    @property
    def resource_group(self) -> str:
        """The resource group of its machines."""
        if self.scale_set is not None:
            return self.scale_set.group
        return self.agent_pool.node_resource_group if self.agent_pool is not None else ""

    @property
    def capacity(self) -> int:
        """The number of machines that it is set to."""
        return self.resources.capacity

    @property
    def taint_advice(self) -> str:
        """What to do about nodes of the pool that register without the arriving taint."""
        return taint_advice(self.resources, self.pool.offerings[0].taints)

    @property
    def has_accelerators(self) -> bool:
        """Whether any of its machines has accelerators."""
        return any(amount > 0 and is_device(name) for offering in self.pool.offerings for name, amount in offering.allocatable.items())


def default_name_of(resources: PoolResources) -> str:
    """The name of the pool of these resources unless a tag gives another one, as a label value."""
    return label_value_of(resources.own_name, "pool")


def way_of(resources: PoolResources, api: str) -> str:
    """How machines are bought: as ``azure.api`` of the settings says, if it is possible.

    Only an agent pool's own API changes virtual machines without a scale set, and pools in a locked node resource group.
    """
    agent_pool = resources.agent_pool
    if agent_pool is None:
        return SCALE_SET
    if resources.scale_set is None or is_word(agent_pool.kind, MACHINES) or api == BY_AGENT_POOL:
        return AGENT_POOL
    return AGENT_POOL if resources.locked and api != BY_SCALE_SET else SCALE_SET


def pool_of(resources: PoolResources, source: str, location_data: LocationData, prices: PriceSource, *, api: str = AUTO) -> AzurePool:
    """The pool of these resources. Raises :class:`PoolError` if they cannot be a pool."""
    if conflict := conflict_of(resources):
        raise PoolError(conflict)
    hints = tag_hints(resources.tags)
    name = hints.labels.get(POOL_LABEL, "") or default_name_of(resources)
    disk = resources.scale_set.disk_gib if resources.scale_set is not None else 0
    template = NodeTemplate(name, resources.location, hints, resources.agent_pool, disk)
    builder = OfferingBuilder(resources, location_data, template, prices)
    sold = builder.sold_offerings()
    offerings = (*sold, *builder.retired_offerings(sold))
    if not offerings:
        raise PoolError("; ".join(builder.warnings) or "saw no size of machines, expected one", incomplete=builder.incomplete)
    pool, limit_warnings = _assembled(resources, sold, offerings, template)
    way = way_of(resources, api)
    warnings = [*builder.warnings, *hints.warnings, *limit_warnings]
    warnings += findings_of(resources, builder.skus.values(), template.taints(resources.markets[0]), by_scale_set=way == SCALE_SET)
    if sold:
        selling = [builder.skus[size] for size in resources.sizes if size in builder.skus]
        warnings += quota_findings(selling, resources.markets, location_data.usages)
    if is_scattered(pool):
        warnings.append(SCATTERED)
    if name != resources.own_name:
        warnings.append(f"the pool is called {name} here")
    return AzurePool(
        pool=pool,
        source=source,
        subscription=resources.subscription,
        location=resources.location,
        scale_set=resources.scale_set,
        agent_pool=resources.agent_pool,
        way=way,
        skus=builder.skus,
        warnings=tuple(dict.fromkeys(warnings)),
        reservations=builder.reservations,
        tagged=(*hints.tagged, *_tagged_limits(resources)),
    )


def _assembled(
    resources: PoolResources, sold: tuple[Offering, ...], offerings: tuple[Offering, ...], template: NodeTemplate
) -> tuple[Pool, list[str]]:
    """(the pool, warnings about its limits). Azure chooses among zones, sizes of a SKU profile, and markets of a mix."""
    least, most, warnings = _limits(resources)
    by_cloud = len(resources.zones) > 1 or bool(resources.scale_set and (len(resources.scale_set.sizes) > 1 or resources.scale_set.mix))
    (arch, *others) = {offering.labels["kubernetes.io/arch"] for offering in sold or offerings}
    idle, unready = template.hints.idle_after, template.hints.unready_after
    pool = Pool(
        name=template.pool,
        offerings=offerings,
        chooser="cloud" if by_cloud else "buyer",
        min=least,
        max=most,
        idle_after=600.0 if idle is None else idle,
        unready_after=UNREADY_AFTER if unready is None else unready,
        arch=None if others else arch,
        match_labels=template.identifying_labels(resources.zones),
        configured_labels=template.configured_labels(),
        revision=_revision(resources),
        buys_without_gpus=not all_have_gpus(sold or offerings),
        divides=resources.scale_set is not None and resources.scale_set.mix is not None,
    )
    return pool, warnings


def _tagged_limits(resources: PoolResources) -> tuple[str, ...]:
    return () if resources.agent_pool is not None else tuple(tag for tag in (_MIN_TAG, _MAX_TAG) if tag in resources.tags)


def _limits(resources: PoolResources) -> tuple[int, int, list[str]]:
    """(minimum, maximum, warnings): what Azure allows, and Cluster Autoscaler's tags on a scale set that AKS does not manage.

    AKS needs at least one node in a pool of mode System.
    """
    scale_set, agent_pool = resources.scale_set, resources.agent_pool
    most = LARGEST_PLACED if scale_set is not None and scale_set.single_placement else LARGEST
    if agent_pool is not None:
        return int(is_word(agent_pool.mode, "System")), most, []
    warnings, limits = [], {_MIN_TAG: 0, _MAX_TAG: most}
    for tag, default in list(limits.items()):
        text = resources.tags.get(tag)
        if text is None:
            continue
        if text.isascii() and text.isdecimal() and len(text) < 7:
            limits[tag] = min(int(text), most)
        else:
            warnings.append(f"the tag {tag} is {text[:20]}, expected a number of machines; {default} is used")
    return limits[_MIN_TAG], limits[_MAX_TAG], warnings


def _revision(resources: PoolResources) -> str:
    """A hash that changes with the configuration of new machines."""
    parts = [resources.scale_set.revision if resources.scale_set is not None else ""]
    parts += [resources.agent_pool.revision if resources.agent_pool is not None else ""]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
