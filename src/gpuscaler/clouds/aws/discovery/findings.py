"""Problems of a group: settings that conflict with an autoscaler, each in one sentence that says what to do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.aws.discovery.ownership import EKS_NODEGROUP
from gpuscaler.clouds.aws.templates.launches import Launch
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup
from gpuscaler.clouds.discovery.hints import hints_of
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT

#: What to do about nodes that register without the arriving taint.
TAINT_ADVICE = "add it to the taints of the node group, or to --register-with-taints in the user data"


class LaunchOptionLike(Protocol):
    """One instance type of the group, its weight, and its launch template or configuration."""

    @property
    def instance_type(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def launch(self) -> Launch: ...


def findings_of(
    group: Group, options: Sequence[LaunchOptionLike], types: Mapping[str, InstanceType], nodegroup: Nodegroup | None = None
) -> tuple[str, ...]:
    """Sentences, the most harmful first. ``nodegroup`` is the EKS node group that the group belongs to, if any."""
    taints = nodegroup.taints if nodegroup is not None else _kops_taints(group)
    promised = hints_of(group.tags).taints
    return (
        *_processes(group),
        *_machines(group),
        *_disks(options),
        *_user_data(options, taints, promised),
        *_launch_options(group, options, types),
    )


def _kops_taints(group: Group) -> tuple[Taint, ...]:
    """Taints of a kOps instance group: kOps configures them outside of user data and repeats them in tags."""
    return hints_of(group.tags).taints if "kops.k8s.io/instancegroup" in group.tags else ()


def _user_data(options: Sequence[LaunchOptionLike], taints: Sequence[Taint], promised: Sequence[Taint]) -> Iterator[str]:
    """Problems with node registration. EKS registers nodes with ``taints``, unless a later kubelet flag replaces them.

    ``promised`` are the taints of tags, which do not put a taint on any node.
    """
    for source, unusable, own in dict.fromkeys((option.launch.source, option.launch.unusable, option.launch.taints) for option in options):
        if unusable:
            yield f"no kubelet starts with the user data of its {source}: {unusable}; correct the user data"
        lost = [taint for taint in taints if own is not None and taint not in own]
        if lost:
            text = f"the user data of its {source} replaces the taint {', '.join(map(str, lost))} of its node group"
            remedy = f"leave the flag out, and give {ARRIVING_TAINT} to the node group"
            yield f"{text}: the kubelet uses only its last --register-with-taints; {remedy}"
        if missing := [taint for taint in promised if own is not None and taint not in own and taint not in lost]:
            text = f"its tags promise the taint {', '.join(map(str, missing))}, which the user data of its {source} does not set"
            yield f"{text}: pods that do not tolerate it can run on its machines; add it to --register-with-taints"
    on_nodegroup = any(taint.key == ARRIVING_TAINT for taint in taints)
    launches = [option.launch for option in options]
    # EKS passes the taints of a node group as a flag, which overrides the kubelet's configuration file.
    file_applies = not taints
    registered = (
        launch.unusable or (launch.arriving and (file_applies or launch.taints is not None)) or (on_nodegroup and launch.taints is None)
        for launch in launches
    )
    if not all(registered):
        taint = f"{ARRIVING_TAINT}:NoSchedule"
        yield f"its user data does not register nodes with the taint {taint}: pods may land elsewhere than planned; add the taint"


def _processes(group: Group) -> Iterator[str]:
    if "Launch" in group.suspended:
        yield "the process Launch is suspended, so no machine is ever launched; resume it"
    if "Terminate" in group.suspended:
        yield "the process Terminate is suspended, so machines are never ended; resume it"
    if group.operator:
        yield f"only {group.operator} may change the group, so buying may be refused"
    if len(group.zones) > 1 and EKS_NODEGROUP in group.tags:
        text = "EKS balances its zones, which ends machines with running pods, even if AZRebalance is suspended"
        yield f"{text}; make a node group for each zone"
    elif len(group.zones) > 1 and "AZRebalance" not in group.suspended:
        yield "AZRebalance ends machines with running pods to balance zones; suspend it"
    # EKS sets it on its groups of spot machines, and it cannot be switched off there.
    if group.capacity_rebalance and EKS_NODEGROUP not in group.tags:
        yield "CapacityRebalance replaces machines that gpuscaler replaces as well; switch CapacityRebalance off"


def _machines(group: Group) -> Iterator[str]:
    if not group.protected:
        yield "new machines are not protected from scale-in, so lowering the group's size may end busy machines; turn the protection on"
    if group.lifetime:
        yield f"machines are replaced after {group.lifetime / 86_400:.0f} days (MaxInstanceLifetime), even with running pods; unset it"
    if group.warm_pool:
        yield "it has a warm pool; the machines there are not counted"
    if group.desired > group.max or group.desired < group.min:
        yield f"its desired capacity {group.desired} is outside of {group.min} to {group.max}"


def _disks(options: Sequence[LaunchOptionLike]) -> Iterator[str]:
    """Disks that may outlive their machine: gpuscaler deletes no disks; EC2 deletes them, or they stay and are billed."""
    for source, kept_disks, undecided_disks in dict.fromkeys(
        (option.launch.source, option.launch.kept_disks, option.launch.undecided_disks) for option in options
    ):
        if kept_disks:
            text = f"its {source} has DeleteOnTermination false for {', '.join(kept_disks)}"
            yield f"{text}: each ended machine leaves a disk that is billed; set it to true"
        if undecided_disks:
            text = f"its {source} does not give DeleteOnTermination for {', '.join(undecided_disks)}"
            yield f"{text}: each ended machine may leave a disk that is billed; set it to true"


def _launch_options(group: Group, options: Sequence[LaunchOptionLike], types: Mapping[str, InstanceType]) -> Iterator[str]:
    if any(option.launch.outdated for option in options):
        yield f"it has a launch configuration ({group.configuration}), which is outdated; move it to a launch template"
    counts = sorted({types[option.instance_type].gpus for option in options if option.instance_type in types})
    if len(counts) > 1:
        yield f"its types have {', '.join(map(str, counts))} GPUs, and AWS chooses among them; make a separate group for each number"
    weights = sorted({option.weight for option in options})
    if weights != [1]:
        yield f"machines count as {', '.join(map(str, weights))} units (WeightedCapacity); sizes are converted to machines, by the largest"
    if any(option.launch.reservation_groups for option in options):
        yield "its launch template targets a group of capacity reservations, so reserved machines count as purchases; name the reservations"
    shares = group.shares
    if shares is None:
        ceilings = [option.launch.spot_max_price for option in options if option.launch.spot_max_price is not None]
    else:
        ceilings = [] if shares.spot_max_price is None else [shares.spot_max_price]
        if "spot" in shares.markets and shares.spot_strategy == "lowest-price":
            yield "the spot strategy lowest-price gets the machines that are interrupted most; set price-capacity-optimized"
        if len(shares.markets) > 1:
            yield f"AWS divides the group between markets: the first {shares.base} on demand, then {shares.on_demand} % of the rest"
    if ceilings:
        yield f"its maximum spot price is ${min(ceilings):g}, above which nothing is granted; remove the maximum"
