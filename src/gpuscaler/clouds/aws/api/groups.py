"""Decodes Auto Scaling groups from DescribeAutoScalingGroups, one group at a time."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gpuscaler.clouds.aws.api.spelling import LIFECYCLES, PROCESSES, is_same_word, respelled

Reply = Mapping[str, Any]

#: Lifecycle states of machines that exist or are starting; in any other state, including unknown ones, a machine is leaving or not in use.
LAUNCHING_STATES = ("Pending", "Pending:Wait", "Pending:Proceed")
PRESENT_STATES = (*LAUNCHING_STATES, "InService")


class GroupError(ValueError):
    """A group that cannot be a pool; the message names what was seen and expected."""


class IncompleteGroupError(GroupError):
    """Something that is needed to make the group a pool could not be read; the group itself may be fine."""


class TemplateRef(Struct, frozen=True, gc=False):
    """A launch template by id (or name), and a version: a number, ``$Latest`` or ``$Default``."""

    id: str
    name: str
    version: str


class TypeChoice(Struct, frozen=True):
    """One entry of a mixed-instances policy. It has ``instance_type``, ``requirements`` or neither; in the last case the template decides.

    ``weight`` is how many units of the group's capacity one machine provides.
    """

    instance_type: str = ""
    weight: int = 1
    template: TemplateRef | None = None
    requirements: Mapping[str, Any] | None = None
    image: str = ""


class MarketShares(Struct, frozen=True, gc=False):
    """How a mixed group divides between markets: the first ``base`` units on demand, then ``on_demand`` percent of the rest."""

    base: int = 0
    on_demand: int = 100
    spot_max_price: float | None = None
    spot_strategy: str = ""

    @property
    def markets(self) -> tuple[str, ...]:
        if self.on_demand >= 100:
            return ("on-demand",)
        return ("spot",) if self.on_demand <= 0 and self.base <= 0 else ("spot", "on-demand")


class Machine(Struct, frozen=True, gc=False):
    """A machine that the group lists."""

    id: str
    instance_type: str
    zone: str
    state: str
    healthy: bool = True
    protected: bool = False
    weight: int = 1


class Group(Struct, frozen=True):
    """An Auto Scaling group. Sizes are in the group's units, which are machines unless a choice has a weight."""

    name: str
    region: str
    arn: str
    tags: Mapping[str, str]
    min: int
    max: int
    desired: int
    zones: tuple[str, ...]
    template: TemplateRef | None = None
    configuration: str = ""
    choices: tuple[TypeChoice, ...] = ()
    shares: MarketShares | None = None
    machines: tuple[Machine, ...] = ()
    suspended: tuple[str, ...] = ()
    protected: bool = False
    capacity_rebalance: bool = False
    lifetime: int = 0
    operator: str = ""
    unit: str = "units"
    reservations: tuple[str, ...] = ()
    reserved_only: bool = False
    warm_pool: bool = False
    deleting: bool = False

    @property
    def present_count(self) -> int:
        return sum(machine.state in PRESENT_STATES for machine in self.machines)

    @property
    def surplus(self) -> int:
        """By how many units the group exceeds its desired capacity, for example while it launches a replacement before ending a machine."""
        return sum(machine.weight for machine in self.machines if machine.state in PRESENT_STATES) - self.desired

    @property
    def templates(self) -> tuple[TemplateRef, ...]:
        """All launch templates that a machine of the group may be made from."""
        template_refs = [self.template, *(choice.template for choice in self.choices)]
        return tuple(dict.fromkeys(template_ref for template_ref in template_refs if template_ref is not None))


def tags_of(reply: Reply) -> dict[str, str]:
    """Tags as a mapping; entries that are not text are left out."""
    listed = reply.get("Tags")
    pairs = ((tag.get("Key"), tag.get("Value", "")) for tag in (listed if isinstance(listed, list) else ()) if isinstance(tag, dict))
    return {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, str)}


def group_of(reply: Reply, region: str) -> Group:
    """One entry of ``AutoScalingGroups``. Raises :class:`GroupError` if the entry is malformed."""
    try:
        return _group(reply, region)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GroupError(f"saw {type(error).__name__}: {error}, expected a group as DescribeAutoScalingGroups gives it") from error


def _group(reply: Reply, region: str) -> Group:
    mixed = reply.get("MixedInstancesPolicy") or {}
    launch = mixed.get("LaunchTemplate") or {}
    base = launch.get("LaunchTemplateSpecification") or reply.get("LaunchTemplate")
    reserved = reply.get("CapacityReservationSpecification") or {}
    target = reserved.get("CapacityReservationTarget") or {}
    return Group(
        name=reply["AutoScalingGroupName"],
        region=region,
        arn=reply.get("AutoScalingGroupARN", ""),
        tags=tags_of(reply),
        min=int(reply["MinSize"]),
        max=int(reply["MaxSize"]),
        desired=int(reply["DesiredCapacity"]),
        zones=tuple(reply.get("AvailabilityZones") or ()),
        template=_template(base),
        configuration=reply.get("LaunchConfigurationName") or "",
        choices=tuple(_choice(entry) for entry in launch.get("Overrides") or ()),
        shares=_shares(mixed.get("InstancesDistribution") or {}) if mixed else None,
        machines=tuple(_machine(entry) for entry in reply.get("Instances") or ()),
        suspended=tuple(sorted(respelled(process["ProcessName"], PROCESSES) for process in reply.get("SuspendedProcesses") or ())),
        protected=bool(reply.get("NewInstancesProtectedFromScaleIn")),
        capacity_rebalance=bool(reply.get("CapacityRebalance")),
        lifetime=int(reply.get("MaxInstanceLifetime") or 0),
        operator=(reply.get("Operator") or {}).get("Principal", ""),
        unit=respelled(reply.get("DesiredCapacityType"), ("units",)) or "units",
        reservations=tuple(target.get("CapacityReservationIds") or ()),
        reserved_only=is_same_word(reserved.get("CapacityReservationPreference"), "capacity-reservations-only"),
        warm_pool=bool(reply.get("WarmPoolConfiguration")),
        deleting=bool(reply.get("Status")),
    )


def _template(reply: Reply | None) -> TemplateRef | None:
    if not reply:
        return None
    return TemplateRef(reply.get("LaunchTemplateId", ""), reply.get("LaunchTemplateName", ""), reply.get("Version") or "$Default")


def _choice(reply: Reply) -> TypeChoice:
    return TypeChoice(
        instance_type=reply.get("InstanceType") or "",
        weight=max(int(reply.get("WeightedCapacity") or 1), 1),
        template=_template(reply.get("LaunchTemplateSpecification")),
        requirements=reply.get("InstanceRequirements") or None,
        image=reply.get("ImageId") or "",
    )


def _shares(reply: Reply) -> MarketShares:
    on_demand = reply.get("OnDemandPercentageAboveBaseCapacity")
    ceiling = reply.get("SpotMaxPrice")
    return MarketShares(
        base=int(reply.get("OnDemandBaseCapacity") or 0),
        on_demand=100 if on_demand is None else int(on_demand),
        spot_max_price=float(ceiling) if ceiling else None,
        spot_strategy=reply.get("SpotAllocationStrategy") or "",
    )


def _machine(reply: Reply) -> Machine:
    return Machine(
        id=reply["InstanceId"],
        instance_type=reply.get("InstanceType", "").lower(),
        zone=reply.get("AvailabilityZone", ""),
        state=respelled(reply.get("LifecycleState"), LIFECYCLES),
        healthy=is_same_word(reply.get("HealthStatus", "Healthy"), "Healthy"),
        protected=bool(reply.get("ProtectedFromScaleIn")),
        weight=max(int(reply.get("WeightedCapacity") or 1), 1),
    )
