"""Builds a pool from a group and its region: offerings, node template, findings. Pure."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.groups import Group, GroupError, IncompleteGroupError, TemplateRef, TypeChoice
from gpuscaler.clouds.aws.discovery.findings import findings_of
from gpuscaler.clouds.aws.prices.choosing import YUAN_PER_DOLLAR, Tariff, in_yuan
from gpuscaler.clouds.aws.prices.reservations import ACTIVE, EXPIRED, Reservation
from gpuscaler.clouds.aws.templates.launches import Launch
from gpuscaler.clouds.aws.templates.node_templates import NodeTemplate
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup
from gpuscaler.clouds.discovery.hints import Hints, hints_of
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.aside import Skipped
from gpuscaler.model.labels import label_value_of
from gpuscaler.model.pools import BY_SIZE, UNREADY_AFTER, Offering, Pool, all_have_gpus, is_scattered
from gpuscaler.model.well_known import POOL_LABEL

#: How machines of a group are bought; ``auto`` in the settings takes the first way that the group allows.
LAUNCH, DESIRED, FLEET = "launch-instances", "desired-capacity", "fleet"
SCATTERED = (
    "AWS chooses the zone of each machine, so pods bound to one zone (a volume, a gang of one zone) cannot use it; make one group per zone"
)
NO_FLEETS = "aws.launch is fleet, and machines of fleets do not belong to the group"


class RegionData(Struct, frozen=True):
    """What is known of one region.

    ``launches`` is by launch template, ``configurations`` by name; ``matching`` lists the types that meet requirements, by
    :func:`requirements_key`; ``offered`` lists the zones that offer a type, if known.
    """

    region: str
    launches: Mapping[TemplateRef, Launch] = {}
    configurations: Mapping[str, Launch] = {}
    types: Mapping[str, InstanceType] = {}
    matching: Mapping[str, tuple[str, ...]] = {}
    offered: Mapping[str, frozenset[str]] = {}
    nodegroups: Mapping[str, Nodegroup] = {}
    reservations: Mapping[str, Reservation] = {}
    tariff: Tariff = Tariff("")


class AwsPool(Struct, frozen=True):
    """A pool, the group it was read from, and how the group was found: see :mod:`gpuscaler.clouds.aws.discovery.ownership`.

    ``weights`` are units of the group's capacity by instance type, for groups in which a machine counts as more than one. ``ends`` is when
    EC2 begins to end the machines of a reservation, by its id, in seconds since the epoch, for reservations whose machines EC2 ends.
    ``tagged`` are the fields of the pool that tags of the group set.
    """

    pool: Pool
    group: Group
    source: str
    warnings: tuple[str, ...] = ()
    weights: Mapping[str, int] = {}
    launch: str = DESIRED
    ends: Mapping[str, float] = {}
    tagged: tuple[str, ...] = ()

    @property
    def default_name(self) -> str:
        """The pool's name unless a tag gives another one: that of its group, as a label value."""
        return default_name_of(self.group)

    @property
    def has_accelerators(self) -> bool:
        """Whether any of its machines has accelerators."""
        return any(amount > 0 and is_device(name) for offering in self.pool.offerings for name, amount in offering.allocatable.items())

    @property
    def bought_by(self) -> str:
        """How machines are really bought: never through fleets, since a fleet's machines would not belong to the group."""
        return DESIRED if self.launch == FLEET else self.launch


class LaunchOption(NamedTuple):
    """One instance type of a group, and the launch template or configuration of its machines."""

    instance_type: str
    weight: int
    launch: Launch


def requirements_key(requirements: Mapping[str, object]) -> str:
    """A key that is equal for equal requirements."""
    return msgspec.json.encode(requirements, order="deterministic").decode()


def launch_options_of(group: Group, region_data: RegionData) -> tuple[LaunchOption, ...]:
    """All types that the group can launch. Raises :class:`GroupError` if they cannot be determined."""
    base = _base_launch(group, region_data)
    options = [option for choice in group.choices for option in _options_of_choice(choice, base, region_data)] or list(
        _options_of_launch(base, 1, region_data)
    )
    if not options:
        raise GroupError("saw no instance type in its launch template and its overrides, expected one")
    return tuple({option.instance_type: option for option in reversed(options)}.values())[::-1]


def _base_launch(group: Group, region_data: RegionData) -> Launch:
    if group.template is not None:
        launch = region_data.launches.get(group.template)
        if launch is None:
            raise IncompleteGroupError(f"its launch template {group.template.name or group.template.id} could not be read")
        return launch
    if group.configuration:
        launch = region_data.configurations.get(group.configuration)
        if launch is None:
            raise IncompleteGroupError(f"its launch configuration {group.configuration} could not be read")
        return launch
    raise GroupError("saw neither a launch template nor a launch configuration, expected one")


def _options_of_choice(choice: TypeChoice, base: Launch, region_data: RegionData) -> tuple[LaunchOption, ...]:
    launch = region_data.launches.get(choice.template) if choice.template is not None else base
    if launch is None:
        raise IncompleteGroupError(f"the launch template of an override, {choice.template}, could not be read")
    if choice.image:
        launch = msgspec.structs.replace(launch, image=choice.image)
    if choice.instance_type:
        return (LaunchOption(choice.instance_type, choice.weight, launch),)
    if choice.requirements is not None:
        launch = msgspec.structs.replace(launch, requirements=choice.requirements, instance_type="")
    return _options_of_launch(launch, choice.weight, region_data)


def _options_of_launch(launch: Launch, weight: int, region_data: RegionData) -> tuple[LaunchOption, ...]:
    if launch.instance_type:
        return (LaunchOption(launch.instance_type, weight, launch),)
    if launch.requirements is None:
        return ()
    return tuple(LaunchOption(name, weight, launch) for name in region_data.matching.get(requirements_key(launch.requirements), ()))


def choose_way_to_buy(group: Group, setting: str) -> str:
    """How machines of the group are bought: as ``aws.launch`` of the settings (``setting``) says, if the group allows it.

    LaunchInstances needs a launch template, and a mixed group must be entirely spot or entirely on demand.
    """
    if setting in (DESIRED, FLEET) and not (setting == FLEET and group.template is None):
        return setting
    pure = group.shares is None or len(group.shares.markets) == 1
    return LAUNCH if group.template is not None and pure else DESIRED


def pool_of(group: Group, source: str, region_data: RegionData, *, name: str = "", launch: str = "auto") -> AwsPool:
    """The group as a pool called ``name``, or by its own name. Raises :class:`GroupError` if it cannot be a pool."""
    if group.deleting:
        raise GroupError("it is being deleted")
    if group.unit != "units":
        raise GroupError(f"its capacity is counted in {group.unit}, expected units: machines")
    hints = hints_of(group.tags)
    options = launch_options_of(group, region_data)
    # The reason why a group has no offerings comes before its other findings.
    warnings = [*_unusable_reservations(group, options, region_data)]
    name = name or pool_name(group, hints)
    template = NodeTemplate(name, group.region, hints, region_data.nodegroups.get(group.name), openai=source == "kops")
    offerings = _offerings(group, options, region_data, template, warnings)
    warnings = warnings or ([] if offerings else ["saw no availability zone, expected one"])
    warnings += [*hints.warnings, *findings_of(group, options, region_data.types, region_data.nodegroups.get(group.name))]
    retired = tuple(_retired_offerings(group, options[0].launch, region_data, template, {offering.instance_type for offering in offerings}))
    if not offerings and not retired:
        unread = any(region_data.reservations.get(ident) is None for option in options for ident in reservation_ids(group, option.launch))
        raise (IncompleteGroupError if unread else GroupError)("; ".join(dict.fromkeys(warnings)))
    if name != group.name:
        warnings.append(f"the pool is called {name} here")
    weights = {option.instance_type: option.weight for option in options}
    way_to_buy = choose_way_to_buy(group, launch)
    if way_to_buy == FLEET:
        warnings.append(f"{NO_FLEETS}: its desired capacity is raised instead; set launch to auto")
    pool = _pool(group, offerings or retired, template, max(weights.values()), launch=way_to_buy)
    balances = balances_zones(group, managed=source == "eks" or group.name in region_data.nodegroups)
    pool = msgspec.structs.replace(pool, offerings=(*offerings, *retired), revision=_revision(group, options), balances=balances)
    if is_scattered(pool):
        warnings.append(SCATTERED)
    known_reservations = [region_data.reservations.get(ident) for option in options for ident in reservation_ids(group, option.launch)]
    ends = {
        reservation.id: reservation.ending_begins_at
        for reservation in known_reservations
        if reservation is not None and reservation.ending_begins_at
    }
    return AwsPool(pool, group, source, tuple(dict.fromkeys(warnings)), weights, way_to_buy, ends, hints.tagged)


def _offerings(
    group: Group, options: tuple[LaunchOption, ...], region_data: RegionData, template: NodeTemplate, warnings: list[str]
) -> tuple[Offering, ...]:
    offerings: list[Offering] = []
    for option in options:
        kind = region_data.types.get(option.instance_type)
        if kind is None:
            warnings.append(f"region {region_data.region} does not offer type {option.instance_type}; the type is not used there")
            continue
        missing = [zone for zone in group.zones if zone not in region_data.offered.get(option.instance_type, group.zones)]
        if missing:
            warnings.append(f"{option.instance_type} is not offered in {', '.join(missing)}; the type is not used there")
        offerings += _reserved_offerings(group, option, kind, region_data, template)
        for zone in group.zones:
            for market in markets_of(group, option.launch) if zone not in missing else ():
                price = region_data.tariff.price_of(option.instance_type, market, zone, kind)
                if price.warning:
                    warnings.append(price.warning)
                offering = template.offering(option.launch, kind, market=market, zone=zone, price=price.price)
                offerings.append(msgspec.structs.replace(offering, price_from=price.price_from))
    warnings += _price_warnings(offerings, region_data.region)
    return tuple(offerings)


def _retired_offerings(
    group: Group, launch: Launch, region_data: RegionData, template: NodeTemplate, sold: Collection[str]
) -> Iterator[Offering]:
    """Offerings of machines that the group has but no longer launches, because its launch template changed or its reservation ended.

    They are counted at their price while they exist, and ended when idle.
    """
    for name in dict.fromkeys(machine.instance_type for machine in group.machines):
        kind = region_data.types.get(name) if name not in sold else None
        for market, zone in product(("on-demand", "spot"), group.zones if kind is not None else ()):
            price = region_data.tariff.price_of(name, market, zone, kind)
            offering = template.offering(launch, region_data.types[name], market=market, zone=zone, price=price.price)
            yield msgspec.structs.replace(offering, price_from=price.price_from, count=0)


def _price_warnings(offerings: Sequence[Offering], region: str) -> Iterator[str]:
    """Warnings about prices that come from another region, or are in another currency."""
    by_region: dict[str, dict[str, None]] = {}
    for offering in offerings:
        if offering.price_from not in ("", BY_SIZE):
            by_region.setdefault(offering.price_from, {})[offering.instance_type] = None
    for other, names in sorted(by_region.items()):
        yield f"no price of {', '.join(names)} in {region} is known; the price in {other} is used: add it to aws.prices"
    if in_yuan(region) and offerings:
        yield f"prices in {region} are in yuan; {YUAN_PER_DOLLAR:g} yuan count as a dollar"


def reservation_ids(group: Group, launch: Launch) -> tuple[str, ...]:
    """Ids of the reservations that machines are launched into."""
    return (*launch.reservations, *group.reservations)


def _unusable_reservations(group: Group, options: tuple[LaunchOption, ...], region_data: RegionData) -> Iterator[str]:
    for ident in dict.fromkeys(ident for option in options for ident in reservation_ids(group, option.launch)):
        reservation = region_data.reservations.get(ident)
        if reservation is None:
            yield f"its capacity reservation {ident} could not be read, so it is not used"
        elif not reservation.is_usable(region_data.tariff.now):
            yield (
                f"its capacity reservation {ident} is "
                f"{'over' if reservation.state in (ACTIVE, EXPIRED) else reservation.state}; it is not used"
            )


def _reserved_offerings(
    group: Group, option: LaunchOption, kind: InstanceType, region_data: RegionData, template: NodeTemplate
) -> Iterator[Offering]:
    """Reserved capacity that is already paid for: an offering for each zone, with the number of free machines.

    EC2 chooses which of several reservations a machine goes into, so a plan assumes the one that ends first.
    """
    free: dict[str, list[Reservation]] = {}
    for reservation in map(region_data.reservations.get, reservation_ids(group, option.launch)):
        if (
            reservation is not None
            and reservation.is_usable(region_data.tariff.now)
            and reservation.instance_type == kind.name
            and reservation.zone in group.zones
        ):
            free.setdefault(reservation.zone, []).append(reservation)
    for zone, reservations in free.items():
        offering = template.offering(option.launch, kind, market="reserved", zone=zone, price=0.0)
        ends = min(
            (reservation.ending_begins_at for reservation in reservations if reservation.ending_begins_at and reservation.available),
            default=0.0,
        )
        yield msgspec.structs.replace(offering, count=sum(reservation.available for reservation in reservations), ends=ends)


def _pool(group: Group, offerings: tuple[Offering, ...], template: NodeTemplate, weight: int, *, launch: str) -> Pool:
    """The pool. LaunchInstances names a zone, in which AWS chooses the instance type; otherwise AWS chooses among all offerings."""
    kinds = {(offering.market, offering.instance_type) for offering in offerings}
    is_single = len(offerings) == 1 or (launch == LAUNCH and len(kinds) == 1)
    names_zone = launch == LAUNCH and not is_single and len({offering.zone for offering in offerings}) > 1
    (arch, *others) = {offering.labels["kubernetes.io/arch"] for offering in offerings}
    idle, unready = template.hints.idle_after, template.hints.unready_after
    return Pool(
        name=template.pool,
        offerings=offerings,
        chooser="buyer" if is_single else "cloud",
        names_zone=names_zone,
        min=-(-group.min // weight),
        max=group.max // weight,
        idle_after=600.0 if idle is None else idle,
        unready_after=UNREADY_AFTER if unready is None else unready,
        arch=None if others else arch,
        match_labels=template.identifying_labels(group.zones),
        configured_labels=template.configured_labels(),
        buys_without_gpus=not all_have_gpus(offerings),
        divides=launch != LAUNCH and len({offering.market for offering in offerings if offering.market != "reserved"}) > 1,
    )


def balances_zones(group: Group, *, managed: bool) -> bool:
    """Whether the group ends machines to balance zones. Managed node groups do, even if the process is suspended.

    Source: aws/containers-roadmap#1453.
    """
    return len(set(group.zones)) > 1 and (managed or "AZRebalance" not in group.suspended)


def _revision(group: Group, options: tuple[LaunchOption, ...]) -> str:
    """A hash that changes with the group's launch templates and its suspended processes."""
    parts = (sorted(group.suspended), sorted({option.launch.digest for option in options}))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def pool_name(group: Group, hints: Hints) -> str:
    """The pool label of its nodes, else the group's name, made a valid label value."""
    return hints.labels.get(POOL_LABEL, "") or default_name_of(group)


def default_name_of(group: Group) -> str:
    """The name of the pool of ``group`` unless a tag gives another one, as a label value."""
    return label_value_of(group.name, "group")


def markets_of(group: Group, launch: Launch) -> tuple[str, ...]:
    """Markets that machines are bought in, apart from reservations: none if only reservations are used."""
    if group.reserved_only or launch.reservations or launch.market == "capacity-block":
        return ()
    if group.shares is not None:
        return group.shares.markets
    return ("spot",) if launch.market == "spot" else ("on-demand",)


def skipped_group(group: str, region: str, reason: str) -> Skipped:
    return Skipped(f"AutoScalingGroup {region}/{group}", reason)
