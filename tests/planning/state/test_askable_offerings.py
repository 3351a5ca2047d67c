"""Purchases of the planner while breakers are open or half-open."""

from functools import reduce

from tests.planning.building import NOW, ZONE, node, offering, planned, pod, pods, pool, reasons, spec, term, zones

from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import State
from gpuscaler.planning.state.askable_offerings import with_breakers
from gpuscaler.planning.state.breakers import Breakers, step
from gpuscaler.planning.state.offering_events import QUOTA, Failed, Refused

SPOT = zones(price=0.3, market="spot", names=("z1", "z2"))
ON_DEMAND = offering(price=1.0)


def state(policy: Policy, breakers: Breakers, now: float) -> State:
    return with_breakers(State(), breakers, [offering.key for pool in policy.pools for offering in pool.offerings], now)


def bought(refused: int, seconds: float) -> list[str]:
    """Markets bought the given seconds after the first ``refused`` spot offerings ran out of capacity."""
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Refused(offering.key, NOW) for offering in SPOT[:refused]], Breakers())
    made = planned(pods("p", 3), policy.pools[0], state=state(policy, breakers, NOW + seconds))
    return sorted(f"{machine.market} {machine.zone}" for machine in made.machines)


def test_the_next_offering_is_bought_when_the_first_has_no_capacity() -> None:
    assert bought(1, 1.0) == ["spot z2"] * 3


def test_on_demand_is_bought_when_spot_has_no_capacity() -> None:
    assert bought(2, 1.0) == ["on-demand z1"] * 3


def test_a_probe_after_a_lack_of_capacity_requests_all_needed_machines() -> None:
    assert bought(2, 200.0) == ["spot z1", "spot z1", "spot z1"]


def test_a_probe_after_failed_machines_requests_one_machine() -> None:
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Failed(offering.key, NOW) for offering in SPOT for _ in range(2)], Breakers())

    made = planned(pods("p", 3), policy.pools[0], state=state(policy, breakers, NOW + 700.0))

    assert sorted(f"{machine.market} {machine.zone}" for machine in made.machines) == ["on-demand z1", "spot z1", "spot z2"]


def test_a_probe_of_an_offering_set_after_a_used_up_quota_requests_one_machine() -> None:
    policy = Policy((pool(*SPOT, chooser="cloud"), pool(offering(price=1.0, pool="dear"))))
    breakers = reduce(step, [Refused(offering.key, NOW, QUOTA) for offering in SPOT], Breakers())

    made = planned(pods("p", 3), *policy.pools, state=state(policy, breakers, NOW + 700.0))

    assert sorted(machine.pool for machine in made.machines) == ["dear", "dear", "main"]


def moved(state: State) -> list[str]:
    """Markets of the machines bought to replace an expensive one that runs an evictable pod."""
    runs = pod("p", on="a", created=NOW - 7200, started=NOW - 7200, options={"restart_cost": 60.0})
    made = planned([node("a", ON_DEMAND), runs], pool(*SPOT, ON_DEMAND), state=state)
    return [machine.market for machine in made.machines]


def test_pods_on_demand_move_back_to_spot() -> None:
    assert moved(State()) == ["spot"]


def test_no_pod_moves_to_recently_refused_spot() -> None:
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Refused(offering.key, NOW) for offering in SPOT], Breakers())

    assert moved(state(policy, breakers, NOW + 600.0)) == []
    assert moved(state(policy, breakers, NOW + 1201.0)) == ["spot"]


def test_no_pod_moves_to_an_offering_set_whose_members_were_all_recently_refused() -> None:
    spot = pool(*zones(price=0.3, market="spot", pool="spot", names=("z1", "z2")), chooser="cloud")
    runs = pod("p", on="a", created=NOW - 7200, started=NOW - 7200, options={"restart_cost": 60.0})

    def markets(state: State) -> list[str]:
        return [machine.market for machine in planned([node("a", ON_DEMAND), runs], spot, pool(ON_DEMAND), state=state).machines]

    assert markets(State()) == ["spot"]
    assert markets(State(no_moves_to=frozenset({spot.offerings[0].key}))) == ["spot"]
    assert markets(State(no_moves_to=frozenset(offering.key for offering in spot.offerings))) == []


def test_the_reason_of_an_unplaced_pod_contains_the_clouds_message() -> None:
    policy = Policy((pool(*SPOT),))
    breakers = reduce(step, [Refused(offering.key, NOW - 60, detail="InsufficientInstanceCapacity") for offering in SPOT], Breakers())

    (reason,) = reasons(planned([pod("p")], policy.pools[0], state=state(policy, breakers, NOW)), "p")

    assert reason.excluded_by == "market"
    assert reason.detail.startswith("no offering of this pool can be bought now: spot g.1 z1: no capacity since 22:12:20 UTC (Insufficient")
    assert reason.detail.endswith(" UTC")


def test_of_zones_at_one_price_one_without_recent_refusals_is_preferred() -> None:
    fresh = State(no_moves_to=frozenset({SPOT[0].key}))

    assert [machine.zone for machine in planned([pod("p")], pool(*SPOT)).machines] == ["z1"]
    assert [machine.zone for machine in planned([pod("p")], pool(*SPOT), state=fresh).machines] == ["z2"]


def test_a_probe_is_sent_only_if_no_other_zone_at_its_price_exists() -> None:
    def asked(probes: int, wanted: int) -> list[str]:
        three = zones(price=0.3, market="spot", names=("z1", "z2", "z3"))
        state = State(probed_offerings=frozenset(offering.key for offering in three[:probes]))
        return sorted(machine.zone for machine in planned(pods("p", wanted), pool(*three), state=state).machines)

    assert asked(2, 1) == ["z3"]
    assert asked(2, 3) == ["z3", "z3", "z3"]
    assert asked(3, 2) == ["z1", "z2"]


def test_probes_without_recent_refusals_come_first_and_each_is_sent_once() -> None:
    def asked(wanted: int) -> list[str]:
        three = zones(price=0.3, market="spot", names=("z1", "z2", "z3"))
        keys = [offering.key for offering in three]
        state = State(probed_offerings=frozenset(keys), no_moves_to=frozenset(keys[:2]))
        return sorted(machine.zone for machine in planned(pods("p", wanted), pool(*three), state=state).machines)

    assert asked(1) == ["z3"]
    assert asked(3) == ["z1", "z2", "z3"]


def test_a_more_expensive_zone_is_not_preferred_for_its_lack_of_recent_refusals() -> None:
    near, far = offering(price=0.3, market="spot"), offering(price=0.31, market="spot", zone="z2")
    fresh = State(no_moves_to=frozenset({near.key}))

    assert [machine.zone for machine in planned([pod("p")], pool(near, far), state=fresh).machines] == ["z1"]


def test_preferences_of_pods_count_more_than_a_lack_of_recent_refusals() -> None:
    likes = spec(gpus=1, preferred_nodes=((1, term((ZONE, "In", "z1"))),))
    fresh = State(no_moves_to=frozenset({SPOT[0].key}))

    assert [machine.zone for machine in planned([pod("p", likes)], pool(*SPOT), state=fresh).machines] == ["z1"]
