"""Fallbacks: other offerings that suit a machine of a plan, asked for in the same request in case its spot market has no capacity.

A cloud takes many offerings in one request and grants from the first that has capacity (EC2's CreateFleet, an Auto Scaling group of
several types). A dozen markets without capacity then cost one answer instead of a dozen.
"""

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence, Set

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import ON_DEMAND, SPOT, OfferingKey
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.well_known import GPU_PRODUCT
from gpuscaler.planning.capacity.limits import Fleet, Slack, slack
from gpuscaler.planning.capacity.node_templates import Overhead, Templates
from gpuscaler.planning.plans import Choice, PlannedMachine
from gpuscaler.planning.state import State

#: Spot offerings that would fit, the cheapest first, by the machine's own offering, by :func:`depends_on_others` of its pods, and by their
#: counts per spec.
Known = MutableMapping[tuple[object, ...], tuple[Offering, ...]]


def with_fallbacks(
    machines: Sequence[PlannedMachine], cluster: Cluster, policy: Policy, state: State, have: Mapping[str, Fleet], *, templates: Templates
) -> tuple[PlannedMachine, ...]:
    """``machines`` of a plan with their fallbacks. The limits hold for anything the cloud may grant (I5); ``have`` is the current fleet."""
    if not any(map(may_fall_back, machines)):
        return tuple(machines)
    left = slack(policy, state, have, (machine.keys for machine in machines))
    offerings, cache = policy.sold, templates.fallbacks
    planneds: list[PlannedMachine] = []
    for machine in machines:
        others = alternatives(
            machine,
            cluster,
            offerings,
            overhead=templates.overhead,
            blocked=state.blocked_offerings,
            half_open=state.half_open_offerings,
            cache=cache,
        )
        admitted = within_limits(machine, [offerings[key] for key in others], offerings, left) if others else []
        choices = tuple(Choice(offering.instance_type, offering.market, offering.zone, offering.price) for offering in admitted)
        planneds.append(replace(machine, fallbacks=choices) if choices else machine)
    return tuple(planneds)


def may_fall_back(machine: PlannedMachine) -> bool:
    """Whether a machine may have fallbacks: it is spot or its cloud chooses, and it does not replace a machine with running pods."""
    return machine.purpose != "replacement" and bool(machine.choices or machine.market == SPOT)


def within_limits(
    machine: PlannedMachine, others: Sequence[Offering], offerings: Mapping[OfferingKey, Offering], left: Slack
) -> Sequence[Offering]:
    """Those of ``others`` that the limits admit in place of ``machine``; all or none of a set that the cloud chooses from."""
    admitted = left.admit(offerings[machine.keys[0]], others)
    if not machine.choices:
        return admitted
    keys = {offering.key for offering in admitted}
    cut = {offering.zone for offering in others if offering.key not in keys}
    return [offering for offering in admitted if offering.zone not in cut]


def alternatives(
    machine: PlannedMachine,
    cluster: Cluster,
    offerings: Mapping[OfferingKey, Offering],
    *,
    overhead: Overhead,
    blocked: Set[OfferingKey],
    half_open: Set[OfferingKey],
    cache: Known | None = None,
) -> tuple[OfferingKey, ...]:
    """Spot offerings of the machine's pool that also hold its pods, cheapest first; none for a machine that is not spot.

    A machine that running pods are to move to has none either: other offerings were not evaluated for these pods, so they may be unreliable
    or not worth the move.

    All fallbacks cost less than the cheapest on-demand machine that would hold the pods, and none is ``blocked`` by a breaker. Offerings in
    ``half_open`` come last: when the cloud reaches one of them, probing it costs no extra request. ``overhead`` is that of ``cluster``.
    Pods whose placement depends on other pods stay in the zone, and on the GPU product, that the plan chose for them. ``cache`` caches the
    result for callers that ask repeatedly while offerings and DaemonSets stay the same.

    Where a purchase names a zone and the cloud chooses among the offerings there, the fallbacks are the pool's other zones, each as a
    whole.
    """
    chosen = offerings.get(machine.key) if may_fall_back(machine) else None
    pods = [cluster.pods[key] for key in machine.pods if key in cluster.pods] if chosen is not None else []
    if chosen is None or not pods or len(pods) != len(machine.pods):
        return ()
    bound = any(map(depends_on_others, pods))
    if machine.choices:
        return () if bound else other_zones(machine, [pod.spec for pod in pods], offerings, overhead=overhead, blocked=blocked)
    cache = {} if cache is None else cache
    key = (chosen.key, bound, frozenset(Counter(pod.spec.digest for pod in pods).items()))
    if key not in cache:
        cache[key] = other_offerings(chosen, [pod.spec for pod in pods], offerings, overhead=overhead, bound=bound)
    unblocked = [offering.key for offering in cache[key] if offering.key not in blocked]
    return tuple(sorted(unblocked, key=lambda key: key in half_open))


def other_offerings(
    chosen: Offering, pods: Sequence[PodSpec], offerings: Mapping[OfferingKey, Offering], *, overhead: Overhead, bound: bool
) -> tuple[Offering, ...]:
    """Spot offerings other than ``chosen`` that hold all ``pods`` and cost less than on-demand, cheapest first."""
    wanted = total_requests(pods)
    specs = list({spec.digest: spec for spec in pods}.values())
    fitting = [
        offering for offering in offerings.values() if offering.pool == chosen.pool and is_similar(offering, chosen if bound else None)
    ]
    fitting = [offering for offering in fitting if holds(offering, wanted, overhead) and all(offering.admits(spec) for spec in specs)]
    on_demand_price = min((offering.price for offering in fitting if offering.market == ON_DEMAND), default=float("inf"))
    cheap = (
        offering for offering in fitting if offering.market == SPOT and offering.key != chosen.key and offering.price < on_demand_price
    )
    return tuple(sorted(cheap, key=lambda offering: (offering.price, offering.key)))


def other_zones(
    machine: PlannedMachine,
    pods: Sequence[PodSpec],
    offerings: Mapping[OfferingKey, Offering],
    *,
    overhead: Overhead,
    blocked: Set[OfferingKey],
) -> tuple[OfferingKey, ...]:
    """The sets of other zones in which every offering holds ``pods``, cheapest zone first, without sets that are blocked completely.

    Empty for a set that spans all zones of its pool.
    """
    wanted, zones = total_requests(pods), {choice.zone for choice in machine.choices}
    by_zone: dict[str, list[Offering]] = {}
    for offering in offerings.values():
        if offering.pool == machine.pool and offering.zone not in zones:
            by_zone.setdefault(offering.zone, []).append(offering)
    serving = [
        sorted(members, key=lambda offering: (offering.price, offering.key))
        for members in by_zone.values()
        if all(holds(offering, wanted, overhead) and all(offering.admits(spec) for spec in pods) for offering in members)
        and not all(offering.key in blocked for offering in members)
    ]
    return tuple(
        offering.key for members in sorted(serving, key=lambda members: (members[0].price, members[0].key)) for offering in members
    )


def depends_on_others(pod: Pod) -> bool:
    """Whether the place of a pod depends on other pods or on volumes."""
    spec = pod.spec
    return bool(pod.options.gang or spec.spread or spec.affinity or spec.anti_affinity or spec.volumes or spec.preferred_affinity)


def total_requests(specs: Sequence[PodSpec]) -> Mapping[str, int]:
    """The sum of the requests of pods."""
    wanted = {"pods": len(specs)}
    for spec in specs:
        for name, amount in spec.requests.items():
            wanted[name] = wanted.get(name, 0) + amount
    return wanted


def is_similar(offering: Offering, chosen: Offering | None) -> bool:
    """Whether an offering has the zone and GPU product of ``chosen``; always true without ``chosen``."""
    return chosen is None or (offering.zone, _product(offering)) == (chosen.zone, _product(chosen))


def _product(offering: Offering) -> str:
    return offering.product or offering.labels.get(GPU_PRODUCT, "")


def holds(offering: Offering, wanted: Mapping[str, int], overhead: Overhead) -> bool:
    """Whether a new machine of ``offering`` has room for the requests ``wanted`` in addition to its DaemonSets."""
    taken = overhead.on(Node("", offering.labels, offering.allocatable, taints=offering.taints)) if overhead.daemons else {}
    return all(offering.allocatable.get(name, 0) - taken.get(name, 0) >= amount for name, amount in wanted.items())
