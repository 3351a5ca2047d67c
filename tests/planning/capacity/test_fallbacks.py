"""Fallbacks of a spot machine of a plan."""

from collections.abc import Set

from msgspec.structs import replace
from tests.planning.building import NOW, affinity, daemon, node, offering, pods, pool, spec, spread

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Limits, Policy
from gpuscaler.planning.capacity.fallbacks import Known, alternatives
from gpuscaler.planning.capacity.node_templates import Overhead
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Choice, PlannedMachine
from gpuscaler.planning.state import State

SMALL = offering("g.1", 1.0, market="spot", gpus=1, cpu=4, zone="z1")
TWIN = offering("g.1", 1.1, market="spot", gpus=1, cpu=4, zone="z2")
LARGE = offering("g.2", 1.8, market="spot", gpus=2, cpu=8, zone="z1")
DEAR = offering("g.8", 9.0, market="spot", gpus=8, cpu=64, zone="z1")
FIXED = offering("g.1", 3.0, gpus=1, cpu=4, zone="z1")
MENU = {offering.key: offering for offering in pool(SMALL, TWIN, LARGE, DEAR, FIXED).offerings}
CHOSEN = SMALL.key


def fallbacks_behind(
    machine: PlannedMachine, cluster: Cluster, *, blocked: Set[OfferingKey] = frozenset(), half_open: Set[OfferingKey] = frozenset()
) -> tuple[OfferingKey, ...]:
    overhead = Overhead(cluster)
    offerings: Known = {}
    answers = {alternatives(machine, cluster, MENU, overhead=overhead, blocked=blocked, half_open=half_open)}
    # The result without open breakers is cached, and changes nothing.
    alternatives(machine, cluster, MENU, overhead=overhead, blocked=frozenset(), half_open=frozenset(), cache=offerings)
    answers.add(alternatives(machine, cluster, MENU, overhead=overhead, blocked=blocked, half_open=half_open, cache=offerings))
    assert len(answers) == 1
    return answers.pop()


def fallback_types(
    of: PodSpec | None = None, count: int = 1, *, blocked: tuple[str, ...] = (), half_open: tuple[str, ...] = (), **machine: object
) -> list[str]:
    """Types and zones of the fallbacks of a g.1 on spot in z1."""
    waiting = pods("a", count, of or spec(gpus=1, cpu=2))
    bought = PlannedMachine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=tuple(pod.key for pod in waiting), **machine)  # type: ignore[arg-type]
    names = {f"{key[2]}/{key[3]}": key for key in MENU if key[1] == "spot"}
    keys = fallbacks_behind(
        bought, Cluster.of(waiting), blocked={names[name] for name in blocked}, half_open={names[name] for name in half_open}
    )
    return [f"{kind}/{zone}" for _, _, kind, zone in keys]


def test_fallbacks_are_spot_offerings_that_fit_below_the_on_demand_price_cheapest_first() -> None:
    assert fallback_types() == ["g.1/z2", "g.2/z1"]


def test_offerings_too_small_for_all_pods_of_the_machine_are_no_fallbacks() -> None:
    assert fallback_types(count=2) == ["g.2/z1", "g.8/z1"]


def test_blocked_offerings_are_no_fallbacks_and_half_open_ones_come_last() -> None:
    assert fallback_types(blocked=("g.2/z1",)) == ["g.1/z2"]
    assert fallback_types(half_open=("g.1/z2",)) == ["g.2/z1", "g.1/z2"]


def test_fallbacks_of_pods_with_rules_about_other_pods_stay_in_their_zone() -> None:
    assert fallback_types(spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),))) == ["g.2/z1"]


def test_fallbacks_of_pods_with_rules_about_other_pods_keep_the_gpu_product() -> None:
    menu = {key: replace(offering, product="H100" if offering.instance_type == "g.2" else "A100") for key, offering in MENU.items()}
    bound = spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),))
    waiting = pods("a", 1, bound)
    machine = PlannedMachine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=tuple(pod.key for pod in waiting))
    cluster = Cluster.of(waiting)

    keys = alternatives(machine, cluster, menu, overhead=Overhead(cluster), blocked=frozenset(), half_open=frozenset())

    assert keys == ()


def test_offerings_that_the_pods_do_not_admit_are_no_fallbacks() -> None:
    assert fallback_types(spec(gpus=1, cpu=2, node_affinity=affinity(("topology.kubernetes.io/zone", "In", "z2")))) == ["g.1/z2"]


def test_machines_without_pods_or_chosen_by_the_cloud_have_no_fallbacks() -> None:
    every = tuple(Choice(offering.instance_type, offering.market, offering.zone, offering.price) for offering in MENU.values())
    assert fallback_types(choices=every) == []
    assert fallback_types(count=0) == []


IN_Z1 = tuple(
    Choice(offering.instance_type, offering.market, offering.zone, offering.price) for offering in MENU.values() if offering.zone == "z1"
)


def test_offering_sets_of_other_zones_are_fallbacks_if_a_purchase_names_a_zone() -> None:
    assert fallback_types(choices=IN_Z1) == ["g.1/z2"]
    assert fallback_types(choices=IN_Z1, blocked=("g.1/z2",)) == []


def test_a_set_is_a_fallback_only_if_the_pods_fit_every_member() -> None:
    assert fallback_types(count=2, choices=IN_Z1) == []
    assert fallback_types(spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),)), choices=IN_Z1) == []


def test_fallbacks_must_also_hold_the_daemonset_pods() -> None:
    waiting = pods("a", 1, spec(gpus=1, cpu=3.5))
    bought = PlannedMachine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=(waiting[0].key,))
    crowded = Cluster.of([*waiting, daemon("agent", spec(cpu=1))])
    assert [key[2] for key in fallbacks_behind(bought, crowded)] == ["g.2", "g.8"]


def test_a_plan_has_fallbacks_with_prices_within_the_limits_and_no_retired_ones() -> None:
    retired = offering("g.3", 1.5, market="spot", gpus=1, cpu=4, zone="z1", count=0)
    waiting = Cluster.of(pods("a", 1, spec(gpus=1, cpu=2)))

    free = plan(waiting, State(), Policy((pool(*MENU.values(), retired),)), NOW)
    limited = plan(waiting, State(), Policy((pool(*MENU.values(), retired),), limits=Limits(gpus=1)), NOW)

    (machine,), (held,) = free.machines, limited.machines
    assert machine.fallbacks == (Choice("g.1", "spot", "z2", 1.1), Choice("g.2", "spot", "z1", 1.8))
    assert machine.requested == (CHOSEN, TWIN.key, LARGE.key)
    assert held.fallbacks == (Choice("g.1", "spot", "z2", 1.1),)


def test_on_demand_machines_have_no_fallbacks() -> None:
    waiting = pods("a", 1, spec(gpus=1, cpu=2))
    bought = PlannedMachine("new-1", FIXED.pool, "g.1", "on-demand", "z1", 3.0, pods=(waiting[0].key,))
    assert fallbacks_behind(bought, Cluster.of([node("n"), *waiting])) == ()
