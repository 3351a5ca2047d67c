"""What else is asked for beside a spot machine of a plan."""

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
from gpuscaler.planning.plans import Choice, Machine
from gpuscaler.planning.state import State

SMALL = offering("g.1", 1.0, market="spot", gpus=1, cpu=4, zone="z1")
TWIN = offering("g.1", 1.1, market="spot", gpus=1, cpu=4, zone="z2")
LARGE = offering("g.2", 1.8, market="spot", gpus=2, cpu=8, zone="z1")
DEAR = offering("g.8", 9.0, market="spot", gpus=8, cpu=64, zone="z1")
FIXED = offering("g.1", 3.0, gpus=1, cpu=4, zone="z1")
MENU = {one.key: one for one in pool(SMALL, TWIN, LARGE, DEAR, FIXED).offerings}
CHOSEN = SMALL.key


def behind(
    machine: Machine, cluster: Cluster, *, blocked: Set[OfferingKey] = frozenset(), half_open: Set[OfferingKey] = frozenset()
) -> tuple[OfferingKey, ...]:
    overhead = Overhead(cluster)
    known: Known = {}
    answers = {alternatives(machine, cluster, MENU, overhead=overhead, blocked=blocked, half_open=half_open)}
    # What was found while no breaker was open is kept, and changes nothing.
    alternatives(machine, cluster, MENU, overhead=overhead, blocked=frozenset(), half_open=frozenset(), known=known)
    answers.add(alternatives(machine, cluster, MENU, overhead=overhead, blocked=blocked, half_open=half_open, known=known))
    assert len(answers) == 1
    return answers.pop()


def asked(
    of: PodSpec | None = None, count: int = 1, *, blocked: tuple[str, ...] = (), half_open: tuple[str, ...] = (), **machine: object
) -> list[str]:
    """Types and zones that are asked for behind a g.1 on spot in z1."""
    waiting = pods("a", count, of or spec(gpus=1, cpu=2))
    bought = Machine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=tuple(pod.key for pod in waiting), **machine)  # type: ignore[arg-type]
    names = {f"{key[2]}/{key[3]}": key for key in MENU if key[1] == "spot"}
    found = behind(bought, Cluster.of(waiting), blocked={names[name] for name in blocked}, half_open={names[name] for name in half_open})
    return [f"{kind}/{zone}" for _, _, kind, zone in found]


def test_spot_that_holds_the_pods_and_is_cheaper_than_on_demand_is_asked_for_too_cheapest_first() -> None:
    assert asked() == ["g.1/z2", "g.2/z1"]


def test_what_is_too_small_for_all_the_pods_of_the_machine_is_left_out() -> None:
    assert asked(count=2) == ["g.2/z1", "g.8/z1"]


def test_what_a_breaker_blocks_is_left_out_and_what_it_tries_again_comes_last() -> None:
    assert asked(blocked=("g.2/z1",)) == ["g.1/z2"]
    assert asked(half_open=("g.1/z2",)) == ["g.2/z1", "g.1/z2"]


def test_pods_that_are_placed_with_regard_to_others_stay_in_their_zone() -> None:
    assert asked(spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),))) == ["g.2/z1"]


def test_pods_that_are_placed_with_regard_to_others_stay_on_their_gpu_product_also_where_no_label_tells_it() -> None:
    menu = {key: replace(one, product="H100" if one.instance_type == "g.2" else "A100") for key, one in MENU.items()}
    bound = spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),))
    waiting = pods("a", 1, bound)
    machine = Machine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=tuple(pod.key for pod in waiting))
    cluster = Cluster.of(waiting)

    found = alternatives(machine, cluster, menu, overhead=Overhead(cluster), blocked=frozenset(), half_open=frozenset())

    assert found == ()


def test_what_the_pods_do_not_admit_is_left_out() -> None:
    assert asked(spec(gpus=1, cpu=2, node_affinity=affinity(("topology.kubernetes.io/zone", "In", "z2")))) == ["g.1/z2"]


def test_nothing_is_asked_for_beside_a_machine_that_the_cloud_chooses_or_that_is_for_nobody() -> None:
    every = tuple(Choice(one.instance_type, one.market, one.zone, one.price) for one in MENU.values())
    assert asked(choices=every) == []
    assert asked(count=0) == []


IN_Z1 = tuple(Choice(one.instance_type, one.market, one.zone, one.price) for one in MENU.values() if one.zone == "z1")


def test_where_a_purchase_names_a_zone_the_sets_of_other_zones_are_asked_for_too() -> None:
    assert asked(choices=IN_Z1) == ["g.1/z2"]
    assert asked(choices=IN_Z1, blocked=("g.1/z2",)) == []


def test_the_set_of_another_zone_must_hold_the_pods_whatever_comes_and_pods_bound_to_others_stay() -> None:
    assert asked(count=2, choices=IN_Z1) == []
    assert asked(spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),)), choices=IN_Z1) == []


def test_room_for_daemon_sets_is_left() -> None:
    waiting = pods("a", 1, spec(gpus=1, cpu=3.5))
    bought = Machine("new-1", CHOSEN.pool, "g.1", "spot", "z1", 1.0, pods=(waiting[0].key,))
    crowded = Cluster.of([*waiting, daemon("agent", spec(cpu=1))])
    assert [key[2] for key in behind(bought, crowded)] == ["g.2", "g.8"]


def test_a_plan_tells_fallbacks_with_their_prices_within_the_limits_and_none_that_is_not_sold_any_more() -> None:
    gone = offering("g.3", 1.5, market="spot", gpus=1, cpu=4, zone="z1", count=0)
    waiting = Cluster.of(pods("a", 1, spec(gpus=1, cpu=2)))

    free = plan(waiting, State(), Policy((pool(*MENU.values(), gone),)), NOW)
    limited = plan(waiting, State(), Policy((pool(*MENU.values(), gone),), limits=Limits(gpus=1)), NOW)

    (machine,), (held,) = free.machines, limited.machines
    assert machine.fallbacks == (Choice("g.1", "spot", "z2", 1.1), Choice("g.2", "spot", "z1", 1.8))
    assert machine.requested == (CHOSEN, TWIN.key, LARGE.key)
    assert held.fallbacks == (Choice("g.1", "spot", "z2", 1.1),)


def test_nothing_is_asked_for_beside_on_demand() -> None:
    waiting = pods("a", 1, spec(gpus=1, cpu=2))
    bought = Machine("new-1", FIXED.pool, "g.1", "on-demand", "z1", 3.0, pods=(waiting[0].key,))
    assert behind(bought, Cluster.of([node("n"), *waiting])) == ()
