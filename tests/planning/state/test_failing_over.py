"""The loop of planner, cloud and breakers in virtual time: from the first refusal of spot to on-demand, and back."""

from functools import reduce

import pytest
from tests.planning.building import NOW, offering, pod, pool

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.state import State
from gpuscaler.planning.state.askable_offerings import next_openness_change, with_breakers
from gpuscaler.planning.state.breakers import Breakers, step
from gpuscaler.planning.state.offering_events import Asked, Event, Granted, Refused

#: How long the controller collects changes before it plans, and how long a cloud takes to answer.
DEBOUNCE, ANSWER = 0.6, 2.0


def spot(groups: int) -> list[Offering]:
    """Spot groups of one machine type each, with rising prices, all cheaper than on-demand."""
    return [offering(f"spot.{number}", 0.3 + number / 100, market="spot") for number in range(groups)]


def fail_over(groups: int, *, answer: float = ANSWER, wanted: int = 1) -> tuple[float, list[str]]:
    """Seconds from the first refusal until on-demand is requested, and the requested offerings, while no spot has capacity."""
    on_demand = offering("od", 2.0)
    policy = Policy((pool(*spot(groups), on_demand),))
    keys = [offering.key for offering in policy.pools[0].offerings]
    cluster = Cluster.of([pod(f"p-{number}", created=NOW, unschedulable=True, unschedulable_since=NOW) for number in range(wanted)])
    planner, breakers, now, first = Planner(policy), Breakers(), NOW, None
    requested: list[str] = []
    for _ in range(groups + 2):
        made = planner.plan(cluster, with_breakers(State(), breakers, keys, now), now)
        requested += [machine.instance_type for machine in made.machines]
        if all(machine.market == "on-demand" for machine in made.machines):
            assert first is not None
            return now - first, requested
        now += answer
        first = now if first is None else first
        for key in {machine.key for machine in made.machines}:
            breakers = step(step(breakers, Asked(key, now - answer)), Refused(key, now))
        now += DEBOUNCE
    raise AssertionError(f"on-demand was never requested: {requested}")


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 12, 24])
@pytest.mark.parametrize("answer", [0.2, ANSWER, 4.0])
def test_on_demand_is_requested_within_ten_seconds_for_any_number_of_spot_groups(groups: int, answer: float) -> None:
    seconds, requested = fail_over(groups, answer=answer)

    assert seconds <= 10.0
    assert requested[-1] == "od"


def test_every_spot_group_is_requested_once_and_only_for_the_needed_machines() -> None:
    _, requested = fail_over(3, wanted=2)

    assert requested == ["spot.0"] * 2 + ["spot.1"] * 2 + ["spot.2"] * 2 + ["od"] * 2


def test_a_probe_discovers_spot_that_is_available_again() -> None:
    (dry,) = spot(1)
    policy = Policy((pool(dry, offering("od", 2.0)),))
    breakers = step(Breakers(), Refused(dry.key, NOW))
    planner = Planner(policy)

    def asked(now: float, breakers: Breakers, wanted: int) -> list[str]:
        cluster = Cluster.of([pod(f"p-{number}", created=now - 1) for number in range(wanted)])
        made = planner.plan(cluster, with_breakers(State(), breakers, [dry.key], now), now)
        return sorted(machine.market for machine in made.machines)

    moment = next_openness_change(breakers, NOW + 60.0)
    assert moment is not None
    back: list[Event] = [Asked(dry.key, moment), Granted(dry.key, moment + ANSWER)]

    assert asked(moment - 1.0, breakers, 3) == ["on-demand"] * 3
    assert asked(moment, breakers, 3) == ["spot"] * 3
    assert asked(moment + 1.0, step(breakers, back[0]), 3) == ["on-demand"] * 3
    assert asked(moment + ANSWER, reduce(step, back, breakers), 3) == ["spot"] * 3
