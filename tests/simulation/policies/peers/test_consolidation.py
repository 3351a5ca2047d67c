"""The nodes with pods that Karpenter's model removes or replaces: the rules of its source as scenarios."""

import pytest
from tests.simulation.policies.peers.moving import LONG, SHORT, machine, pool, recorded, wave
from tests.simulation.policies.peers.recording import dry
from tests.simulation.pools import GIB

from gpuscaler.model.pools import Offering, Policy
from gpuscaler.simulation.policies.peers.karpenter import Karpenter
from gpuscaler.simulation.policies.peers.settings import KarpenterSettings
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping
from gpuscaler.simulation.world.meter import Result

G8 = machine("g8", 8, 8.0)
ALONE = pool(G8)


def removal_times(result: Result) -> list[float]:
    """When nodes with pods were removed, in seconds since the run began."""
    times = [
        decision.at - result.began for decision in result.decisions if decision.kind == "remove" and decision.why.startswith("its pods fit")
    ]
    return [at for at in times if at < LONG]


def shrinking(policy: Policy, *, long: int = 1, of: int = 8, **options: object) -> tuple[list[tuple[str, ...]], Result]:
    """``of`` pods come together, and all but ``long`` end after a while. Returns the types and markets of each purchase after that."""
    settings = options.pop("settings", None)
    assert settings is None or isinstance(settings, KarpenterSettings)
    recording, result = recorded(wave("a", 0.0, long=long, of=of), policy, Karpenter(policy, settings), **options)
    bought = [tuple(f"{key[1]} {key[2]}" for key in purchase.offerings) for at, purchase in recording.purchases if at > SHORT]
    return bought, result


@pytest.mark.parametrize(("first", "second", "goes"), [(3, 5, 1), (4, 4, 1), (3, 6, 0)])
def test_a_node_is_removed_if_its_pods_fit_on_the_others_despite_high_utilization(first: int, second: int, goes: int) -> None:
    jobs = wave("a", 0.0, long=first) + wave("b", 400.0, long=second)
    _, result = recorded(jobs, ALONE, Karpenter(ALONE))
    assert len(removal_times(result)) == goes
    # The search runs within ten seconds, and the removal follows after a validation of fifteen.
    assert all(SHORT < at <= SHORT + 400.0 for at in removal_times(result))
    assert result.unserved == 0


def test_karpenter_does_not_move_pods_whose_owner_forbids_it() -> None:
    jobs = wave("a", 0.0, long=3) + wave("b", 400.0, long=5)
    _, result = recorded(jobs, ALONE, Karpenter(ALONE), shaping=Shaping())
    assert (removal_times(result), result.evictions) == ([], 0)


def test_a_node_is_drained_once_its_cheaper_replacement_is_open() -> None:
    bought, result = shrinking(pool(G8, machine("g1", 1, 1.5), machine("g2", 2, 2.0)))
    assert bought == [("on-demand g1", "on-demand g2")]
    (removed_at,) = removal_times(result)
    opened = [decision.at - result.began for decision in result.decisions if decision.kind == "buy"][-1] + 120.0
    assert removed_at == pytest.approx(opened, abs=0.1)
    assert result.evictions == 1


@pytest.mark.parametrize(("price", "replaced"), [(7.99, True), (8.0, False), (9.0, False)])
def test_a_node_is_replaced_only_by_a_cheaper_one(price: float, replaced: bool) -> None:
    bought, _ = shrinking(pool(G8, machine("other", 4, price)))
    assert bool(bought) is replaced


def test_a_node_is_replaced_only_by_a_type_that_is_cheaper_in_every_possible_zone() -> None:
    zones = [machine("g1", 1, 1.5), machine("g1", 1, 9.0, zone="z1")]
    bought, _ = shrinking(pool(G8, *zones))
    assert bought == []


def spaced_jobs(number: int) -> list[Job]:
    """Pods of one GPU that come so far apart that each gets a machine of its own."""
    return [Job(f"p{index}", 400.0 * index, LONG - 400.0 * index, gpus=1, cpu_milli=1000, memory=GIB) for index in range(number)]


@pytest.mark.parametrize(
    ("prices", "machines"),
    [
        ((3.0, 5.0), ["g4"]),  # two for 6.00 are replaced by one for 5.00, which takes the third pod too
        ((2.0, 6.5), []),  # three for 6.00
    ],
)
def test_several_nodes_are_replaced_by_one_that_costs_less_than_their_sum(prices: tuple[float, float], machines: list[str]) -> None:
    policy = pool(machine("g1", 1, prices[0]), machine("g4", 4, prices[1]))
    recording, result = recorded(spaced_jobs(3), policy, Karpenter(policy, KarpenterSettings(budget=1.0)))
    replacing = [purchase for at, purchase in recording.purchases if at < LONG and purchase.why.startswith("cheaper")]
    assert [key[2] for purchase in replacing for key in purchase.offerings] == machines
    assert len({name for name, count in _removed_together(recording.removals).items() if count > 1}) == len(machines)
    assert result.unserved == 0


def _removed_together(removals: list[tuple[float, str]]) -> dict[float, int]:
    return {moment: sum(at == moment for at, _ in removals) for moment, _ in removals if moment < LONG}


def test_a_budget_of_a_tenth_removes_one_node_of_ten_at_a_time() -> None:
    # Ten nodes keep one pod each, which fit on two.
    jobs = [job for number in range(10) for job in wave(f"w{number}-", 400.0 * number, long=1, short=6000.0)]
    recording, _ = recorded(jobs, ALONE, Karpenter(ALONE))
    together = _removed_together(recording.removals)
    assert set(together.values()) == {1}
    assert len(together) >= 7
    wide, _ = recorded(jobs, ALONE, Karpenter(ALONE, KarpenterSettings(budget=1.0)))
    assert max(_removed_together(wide.removals).values()) >= 5


def spot_types(cheaper: int) -> Policy:
    small = [machine(f"s{number}", 1, 1.0 + number / 100, market="spot") for number in range(cheaper)]
    return pool(machine("g8", 8, 7.0, market="spot"), *small)


@pytest.mark.parametrize(("cheaper", "gate", "types"), [(20, False, []), (14, True, []), (15, True, [15]), (20, True, [15])])
def test_spot_is_replaced_by_spot_only_with_fifteen_cheaper_types_and_the_gate(cheaper: int, gate: bool, types: list[int]) -> None:
    bought, _ = shrinking(spot_types(cheaper), settings=KarpenterSettings(spot_to_spot=gate))
    assert [len(purchase) for purchase in bought] == types


def test_if_a_pool_has_both_markets_an_on_demand_machine_is_replaced_only_by_spot() -> None:
    offerings = [
        offering
        for kind, gpus, price in (("g8", 8, 8.0), ("g1", 1, 1.5))
        for offering in (_spot(kind, gpus, price), machine(kind, gpus, price))
    ]
    policy = pool(*offerings)
    bought, result = shrinking(policy, markets=dry(policy, "spot", until=SHORT + 1000.0))
    # The type it has is cheaper on spot as well. While spot is dry it is not moved to a cheaper type on demand.
    assert set(bought) == {("spot g1", "spot g8")}
    assert len(bought) > 1
    assert [at > SHORT + 1000.0 for at in removal_times(result)] == [True]


def _spot(kind: str, gpus: int, price: float) -> Offering:
    return machine(kind, gpus, price / 2, market="spot")


def test_a_node_and_its_pods_stay_if_its_replacement_is_refused() -> None:
    offerings = [machine("g8", 8, 8.0), machine("g1", 1, 1.5, market="spot"), machine("g1", 1, 3.0)]
    policy = pool(*offerings)
    bought, result = shrinking(policy, markets=dry(policy, "spot"))
    assert bought
    assert set(bought) == {("spot g1",)}
    assert (removal_times(result), result.evictions) == ([], 0)


def test_no_pod_is_moved_to_or_from_a_node_whose_pods_changed_within_consolidate_after() -> None:
    jobs = wave("a", 0.0, long=3) + wave("b", 400.0, long=5)
    _, result = recorded(jobs, ALONE, Karpenter(ALONE, KarpenterSettings(consolidate_after=1800.0)))
    (removed_at,) = removal_times(result)
    ended = SHORT + 122.0
    assert ended + 1800.0 <= removed_at <= ended + 1800.0 + 45.0


def test_when_empty_policy_moves_no_pods() -> None:
    bought, result = shrinking(pool(G8, machine("g1", 1, 1.5)), settings=KarpenterSettings(consolidation_policy="WhenEmpty"))
    assert (bought, removal_times(result)) == ([], [])


@pytest.mark.parametrize(("price", "replaced"), [(3.9, True), (4.1, False)])
def test_policy_balanced_disrupts_a_whole_pool_only_if_it_saves_half_of_its_cost(price: float, replaced: bool) -> None:
    bought, _ = shrinking(pool(G8, machine("g4", 4, price)), settings=KarpenterSettings(consolidation_policy="Balanced"))
    assert bool(bought) is replaced


def test_pending_pods_do_not_use_capacity_reserved_for_moved_pods() -> None:
    # While the smaller machine boots a pod comes that needs all of its GPUs: it gets a machine of its own.
    late = Job("late", SHORT + 200.0, LONG, gpus=1, cpu_milli=64000, memory=GIB)
    policy = pool(machine("g8", 8, 8.0, cpu=64000), machine("g1", 1, 1.5, cpu=64000))
    recording, result = recorded([*wave("a", 0.0, long=1), late], policy, Karpenter(policy))
    assert [len(purchase.machines) for at, purchase in recording.purchases if at > SHORT] == [1, 1]
    assert result.unserved == 0
