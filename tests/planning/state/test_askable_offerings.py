"""What the planner asks for while breakers are open or half-open."""

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
    return with_breakers(State(), breakers, [one.key for its in policy.pools for one in its.offerings], now)


def bought(refused: int, seconds: float) -> list[str]:
    """Markets bought so many seconds after the first ``refused`` spot offerings ran dry."""
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Refused(one.key, NOW) for one in SPOT[:refused]], Breakers())
    made = planned(pods("p", 3), policy.pools[0], state=state(policy, breakers, NOW + seconds))
    return sorted(f"{machine.market} {machine.zone}" for machine in made.machines)


def test_the_next_offering_is_asked_when_the_first_is_dry() -> None:
    assert bought(1, 1.0) == ["spot z2"] * 3


def test_on_demand_is_asked_when_spot_is_dry() -> None:
    assert bought(2, 1.0) == ["on-demand z1"] * 3


def test_an_offering_that_was_dry_a_while_ago_is_asked_for_all_that_is_needed_since_a_refusal_costs_a_second() -> None:
    assert bought(2, 200.0) == ["spot z1", "spot z1", "spot z1"]


def test_an_offering_whose_machines_did_not_come_up_is_asked_for_one() -> None:
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Failed(one.key, NOW) for one in SPOT for _ in range(2)], Breakers())

    made = planned(pods("p", 3), policy.pools[0], state=state(policy, breakers, NOW + 700.0))

    assert sorted(f"{machine.market} {machine.zone}" for machine in made.machines) == ["on-demand z1", "spot z1", "spot z2"]


def test_a_set_is_asked_for_one_machine_while_all_its_members_are_tried_after_a_quota_was_used_up() -> None:
    policy = Policy((pool(*SPOT, chooser="cloud"), pool(offering(price=1.0, pool="dear"))))
    breakers = reduce(step, [Refused(one.key, NOW, QUOTA) for one in SPOT], Breakers())

    made = planned(pods("p", 3), *policy.pools, state=state(policy, breakers, NOW + 700.0))

    assert sorted(machine.pool for machine in made.machines) == ["dear", "dear", "main"]


def moved(state: State) -> list[str]:
    """Markets of the machines bought to replace a dear one on which a pod runs that may move."""
    runs = pod("p", on="a", created=NOW - 7200, started=NOW - 7200, options={"restart_cost": 60.0})
    made = planned([node("a", ON_DEMAND), runs], pool(*SPOT, ON_DEMAND), state=state)
    return [machine.market for machine in made.machines]


def test_pods_on_demand_move_back_to_spot() -> None:
    assert moved(State()) == ["spot"]


def test_nothing_moves_to_spot_that_was_refused_a_short_while_ago() -> None:
    policy = Policy((pool(*SPOT, ON_DEMAND),))
    breakers = reduce(step, [Refused(one.key, NOW) for one in SPOT], Breakers())

    assert moved(state(policy, breakers, NOW + 600.0)) == []
    assert moved(state(policy, breakers, NOW + 1201.0)) == ["spot"]


def test_nothing_moves_to_a_set_all_of_which_was_refused_a_short_while_ago() -> None:
    spot = pool(*zones(price=0.3, market="spot", pool="spot", names=("z1", "z2")), chooser="cloud")
    runs = pod("p", on="a", created=NOW - 7200, started=NOW - 7200, options={"restart_cost": 60.0})

    def markets(found: State) -> list[str]:
        return [machine.market for machine in planned([node("a", ON_DEMAND), runs], spot, pool(ON_DEMAND), state=found).machines]

    assert markets(State()) == ["spot"]
    assert markets(State(unsettled_offerings=frozenset({spot.offerings[0].key}))) == ["spot"]
    assert markets(State(unsettled_offerings=frozenset(one.key for one in spot.offerings))) == []


def test_a_pod_without_a_place_is_told_what_the_cloud_said() -> None:
    policy = Policy((pool(*SPOT),))
    breakers = reduce(step, [Refused(one.key, NOW - 60, detail="InsufficientInstanceCapacity") for one in SPOT], Breakers())

    (reason,) = reasons(planned([pod("p")], policy.pools[0], state=state(policy, breakers, NOW)), "p")

    assert reason.excluded_by == "market"
    assert reason.detail.startswith("no offering of this pool can be bought now: spot g.1 z1: no capacity since 22:12:20 UTC (Insufficient")
    assert reason.detail.endswith(" UTC")


def test_of_zones_at_one_price_a_settled_one_is_bought_in() -> None:
    fresh = State(unsettled_offerings=frozenset({SPOT[0].key}))

    assert [machine.zone for machine in planned([pod("p")], pool(*SPOT)).machines] == ["z1"]
    assert [machine.zone for machine in planned([pod("p")], pool(*SPOT), state=fresh).machines] == ["z2"]


def test_of_zones_at_one_price_a_probe_is_asked_for_only_where_there_is_no_other() -> None:
    def asked(probes: int, wanted: int) -> list[str]:
        three = zones(price=0.3, market="spot", names=("z1", "z2", "z3"))
        known = State(probed_offerings=frozenset(one.key for one in three[:probes]))
        return sorted(machine.zone for machine in planned(pods("p", wanted), pool(*three), state=known).machines)

    assert asked(2, 1) == ["z3"]
    assert asked(2, 3) == ["z3", "z3", "z3"]
    assert asked(3, 2) == ["z1", "z2"]


def test_of_probes_at_one_price_the_settled_come_first_and_each_is_asked_for_once() -> None:
    def asked(wanted: int) -> list[str]:
        three = zones(price=0.3, market="spot", names=("z1", "z2", "z3"))
        keys = [one.key for one in three]
        known = State(probed_offerings=frozenset(keys), unsettled_offerings=frozenset(keys[:2]))
        return sorted(machine.zone for machine in planned(pods("p", wanted), pool(*three), state=known).machines)

    assert asked(1) == ["z3"]
    assert asked(3) == ["z1", "z2", "z3"]


def test_a_dearer_zone_is_not_bought_in_because_it_is_settled() -> None:
    near, far = offering(price=0.3, market="spot"), offering(price=0.31, market="spot", zone="z2")
    fresh = State(unsettled_offerings=frozenset({near.key}))

    assert [machine.zone for machine in planned([pod("p")], pool(near, far), state=fresh).machines] == ["z1"]


def test_what_a_pod_prefers_comes_before_what_is_settled() -> None:
    likes = spec(gpus=1, preferred_nodes=((1, term((ZONE, "In", "z1"))),))
    fresh = State(unsettled_offerings=frozenset({SPOT[0].key}))

    assert [machine.zone for machine in planned([pod("p", likes)], pool(*SPOT), state=fresh).machines] == ["z1"]
