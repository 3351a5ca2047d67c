"""Which markets pods are bought for in: waiting for spot, keeping deadlines, hurrying when spot was refused."""

from typing import Any

import msgspec
import pytest
from tests.planning.building import NOW, node, offering, placed, planned, pod, pods, pool, reasons, spec, unplaced

from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Limits, Policy, Pool
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.scale_up.markets import CHANGEOVER_SECONDS, changed, next_change
from gpuscaler.planning.state import State
from gpuscaler.planning.state.offering_events import Changed

SPOT, ON_DEMAND = offering(price=0.3, market="spot"), offering(price=1.0)
BOTH = pool(SPOT, ON_DEMAND)
OTHER = pool(offering(pool="other"))
DRY = State(blocked_offerings=frozenset({SPOT.key}))
HOUR = 3600.0


def waiting(seconds: float = 60.0, name: str = "p", **options: Any) -> Pod:
    """A pod that has been unschedulable for so long."""
    return pod(name, created=NOW - 7200, unschedulable=True, unschedulable_since=NOW - seconds, options=options)


def markets(made: Plan) -> list[str]:
    return sorted(machine.market for machine in made.machines)


def test_a_pod_takes_on_demand_at_once_when_spot_is_dry() -> None:
    assert markets(planned([waiting(0.0)], BOTH, state=DRY)) == ["on-demand"]


def test_a_pod_that_waits_for_spot_does_not_take_on_demand() -> None:
    made = planned([waiting(60.0, spot_wait=600.0)], BOTH, state=DRY)

    assert (markets(made), unplaced(made)) == ([], ["p"])


def test_it_says_what_it_waits_for_and_until_when() -> None:
    (reason,) = reasons(planned([waiting(60.0, spot_wait=600.0)], BOTH, state=DRY), "p")

    assert reason.excluded_by == "market"
    assert "is on-demand" in reason.detail
    assert "the pod waits for spot until 2023-11-14 22:22:20 UTC (gpuscaler.io/spot-wait)" in reason.detail


def test_a_wait_for_spot_ends() -> None:
    assert markets(planned([waiting(600.0, spot_wait=600.0)], BOTH, state=DRY)) == ["on-demand"]


def test_a_pod_that_waits_takes_spot_when_it_is_there() -> None:
    assert markets(planned([waiting(60.0, spot_wait=600.0)], BOTH)) == ["spot"]


def test_a_pod_that_waits_takes_room_that_exists_whatever_its_market() -> None:
    assert placed(planned([node("a", ON_DEMAND), waiting(60.0, spot_wait=600.0)], BOTH, state=DRY)) == {"p": "a"}


def test_pods_of_one_class_wait_each_from_its_own_moment() -> None:
    made = planned([waiting(601.0, "old", spot_wait=600.0), waiting(599.0, "new", spot_wait=600.0)], BOTH, state=DRY)

    assert ([machine.pods for machine in made.machines], unplaced(made)) == ([("default/old",)], ["new"])


def test_nobody_waits_for_spot_that_no_pool_has() -> None:
    assert markets(planned([waiting(0.0, spot_wait=600.0)], pool(ON_DEMAND))) == ["on-demand"]


def test_a_gang_waits_as_long_as_its_first_member() -> None:
    gang = {"gang": "train", "gang_size": 2, "gang_source": "annotation", "spot_wait": 600.0}
    early, late = waiting(601.0, "a", **gang), waiting(1.0, "b", **gang)

    assert markets(planned([early, late], BOTH, state=DRY)) == ["on-demand", "on-demand"]


def test_a_gang_tries_spot_for_half_a_minute_since_each_dry_zone_costs_it_an_answer() -> None:
    gang = {"gang": "train", "gang_size": 2, "gang_source": "annotation"}

    def bought(seconds: float) -> list[str]:
        pods = [waiting(seconds, name, **gang) for name in "ab"]
        return markets(planned(pods, BOTH, state=State(hunting=NOW - seconds + 1.0)))

    assert bought(29.0) == ["spot", "spot"]
    assert bought(30.0) == ["on-demand", "on-demand"]


def test_whoever_waits_since_the_hunt_began_takes_on_demand_whatever_spot_is_untried() -> None:
    made = planned([waiting(9.0, "old"), waiting(1.0, "new")], BOTH, state=State(hunting=NOW - 8.0))

    assert {machine.pods[0]: machine.market for machine in made.machines} == {"default/old": "on-demand", "default/new": "spot"}


def test_who_hurries_takes_spot_that_was_granted_lately_and_not_what_is_untried() -> None:
    both = pool(offering("untried", 0.3, market="spot"), offering("had", 0.4, market="spot"), ON_DEMAND)
    had = both.offerings[1].key
    made = planned([waiting(9.0)], both, state=State(hunting=NOW - 8.0, proven_offerings=frozenset({had})))

    assert [(machine.market, machine.instance_type) for machine in made.machines] == [("spot", "had")]


def test_a_grant_of_spot_that_is_too_small_for_a_pod_does_not_keep_it_from_on_demand() -> None:
    big = offering("od.8", 9.0, gpus=8)
    both = pool(SPOT, offering("g.8", 2.0, market="spot", gpus=8), big)
    state = State(hunting=NOW - 8.0, proven_offerings=frozenset({SPOT.key}))
    made = planned([pod("p", spec(gpus=8), created=NOW - 9.0)], both, state=state)

    assert [machine.instance_type for machine in made.machines] == ["od.8"]


def test_a_pod_without_the_condition_hurries_by_its_age() -> None:
    assert markets(planned(pods("p", 1, created=NOW - 9.0), BOTH, state=State(hunting=NOW - 8.0))) == ["on-demand"]


def test_a_pod_for_spot_alone_goes_on_trying_spot() -> None:
    assert markets(planned([waiting(9.0, market=("spot",))], BOTH, state=State(hunting=NOW - 8.0))) == ["spot"]


def test_spot_is_tried_on_where_no_on_demand_machine_will_do() -> None:
    big = offering("g.8", price=2.0, market="spot", gpus=8)
    made = planned(
        [pod("p", spec(gpus=8), created=NOW - 9.0)],
        pool(big, ON_DEMAND),
        state=State(hunting=NOW - 8.0),
    )

    assert markets(made) == ["spot"]


def test_spot_is_tried_on_where_on_demand_is_refused_too() -> None:
    state = State(hunting=NOW - 8.0, blocked_offerings=frozenset({ON_DEMAND.key}))

    assert markets(planned([waiting(9.0)], BOTH, state=state)) == ["spot"]


def test_spot_is_tried_on_where_the_limits_leave_no_on_demand_machine() -> None:
    dear = pool(offering("od", 1.0, pool="dear"), max=0)

    assert markets(planned([waiting(9.0)], pool(SPOT), dear, state=State(hunting=NOW - 8.0))) == ["spot"]


@pytest.mark.parametrize(
    ("after", "pools"),
    [
        ((BOTH, OTHER), []),
        ((msgspec.structs.replace(BOTH, offerings=(SPOT, msgspec.structs.replace(ON_DEMAND, price=2.0, count=3))), OTHER), []),
        ((msgspec.structs.replace(BOTH, revision="2"), OTHER), ["main"]),
        ((msgspec.structs.replace(BOTH, offerings=(SPOT,)), OTHER), ["main"]),
        ((BOTH, OTHER, pool(offering(pool="new"))), []),
        ((BOTH,), []),
    ],
    ids=["nothing", "prices and stocks", "a new template", "other offerings", "a new pool", "a pool less"],
)
def test_only_a_pool_whose_machines_are_other_ones_may_work_where_it_did_not(after: tuple[Pool, ...], pools: list[str]) -> None:
    assert [one.pool for one in changed(Policy((BOTH, OTHER)), Policy(after), NOW)] == pools


def test_a_change_of_anything_but_pools_may_mend_all_of_them() -> None:
    assert changed(Policy((BOTH,)), Policy((BOTH,), limits=Limits(gpus=8)), NOW) == (Changed(NOW),)


def deadline(hours_left: float, *, work: float = 2.0, **options: Any) -> Pod:
    """A pod with so many hours of work that must be done in so many."""
    given = {"deadline": NOW + hours_left * HOUR, "expected_duration": work * HOUR, "restart_cost": 600.0, **options}
    return waiting(60.0, **given)


@pytest.mark.parametrize(
    ("hours_left", "with_spot", "without"),
    [(4.6, "on-demand", "on-demand"), (4.8, "spot", "on-demand"), (6.0, "spot", "")],
    ids=["no time to spare", "some", "plenty"],
)
def test_a_deadline_decides_between_on_demand_spot_and_waiting(hours_left: float, with_spot: str, without: str) -> None:
    assert "".join(markets(planned([deadline(hours_left, work=4.0)], BOTH))) == with_spot
    assert "".join(markets(planned([deadline(hours_left, work=4.0)], BOTH, state=DRY))) == without


def test_spot_leaves_time_for_a_machine_that_boots_long_a_reclaim_at_the_worst_moment_and_another_machine() -> None:
    # Nobody decides again before the pod is back: its work is late by the first boot, by what is lost, and by the second boot.
    spare = 2 * CHANGEOVER_SECONDS + 600.0

    assert markets(planned([deadline(2.0 + (spare - 1.0) / HOUR)], BOTH)) == ["on-demand"]
    assert markets(planned([deadline(2.0 + (spare + 1.0) / HOUR)], BOTH)) == ["spot"]


def test_a_pod_that_a_reclaim_sets_back_to_its_beginning_needs_its_time_twice_for_spot() -> None:
    spare = 2 * CHANGEOVER_SECONDS / HOUR + 0.05

    assert markets(planned([deadline(4.0 + spare - 0.1, restart_cost=None)], BOTH)) == ["on-demand"]
    assert markets(planned([deadline(4.0 + spare, restart_cost=None)], BOTH)) == ["spot"]


def test_a_deadline_without_a_duration_is_kept_on_demand() -> None:
    assert markets(planned([deadline(99.0, expected_duration=None)], BOTH)) == ["on-demand"]


def test_a_deadline_that_is_over_goes_on_demand() -> None:
    assert markets(planned([deadline(-1.0)], BOTH)) == ["on-demand"]


def test_a_pod_for_spot_alone_stays_there_whatever_its_deadline() -> None:
    assert markets(planned([deadline(2.1, market=("spot",))], BOTH)) == ["spot"]


def test_reserved_machines_are_taken_whatever_the_deadline_and_the_wait() -> None:
    reserved = offering("r.1", price=0.0, market="reserved", count=1)

    for one in (deadline(2.1), deadline(9.0), waiting(60.0, spot_wait=600.0)):
        assert markets(planned([one], pool(reserved, ON_DEMAND, SPOT), state=DRY)) == ["reserved"]


def test_what_is_done_already_leaves_time_to_spare() -> None:
    late = deadline(2.2)

    assert markets(planned([late], BOTH, state=State(progress={"default/p": 1.0 * HOUR}))) == ["spot"]
    assert markets(planned([late], BOTH, state=State(progress={"default/other": 1.0 * HOUR}))) == ["on-demand"]
    assert next_change([late], NOW, {"default/p": 1.0 * HOUR}) == pytest.approx(NOW + 1.2 * HOUR - 600.0 - 1800.0, abs=0.01)


def test_why_a_deadline_waits_is_told() -> None:
    (reason,) = reasons(planned([deadline(4.0)], BOTH, state=DRY), "p")

    assert "its deadline at 2023-11-15 02:13:20 UTC leaves time to wait for spot" in reason.detail


def test_the_next_moment_to_look_again_is_the_first_at_which_markets_change() -> None:
    one, other = waiting(60.0, spot_wait=600.0), deadline(8.0, work=4.0)
    latest = 8.0 * HOUR - 4.0 * HOUR - 600.0

    assert next_change([one, other], NOW) == pytest.approx(NOW + 540.0, abs=0.01)
    assert next_change([other], NOW) == pytest.approx(NOW + latest - 0.2 * 4.0 * HOUR, abs=0.01)
    assert next_change([other], NOW + latest - 2800.0) == pytest.approx(NOW + latest - 1800.0, abs=0.01)
    assert next_change([other, waiting()], NOW + 8.0 * HOUR) is None


@pytest.mark.parametrize(
    "of", [waiting(60.0, spot_wait=600.0), deadline(4.0), deadline(8.0, work=4.0)], ids=["wait", "a short one's deadline", "deadline"]
)
def test_nothing_changes_before_the_next_moment_and_something_at_it(of: Pod) -> None:
    moment = next_change([of], NOW)
    assert moment is not None

    def at(now: float) -> str:
        from gpuscaler.model.cluster import Cluster
        from gpuscaler.model.pools import Policy
        from gpuscaler.planning.planner import plan

        return "".join(markets(plan(Cluster.of([of]), DRY, Policy((BOTH,)), now)))

    assert [at(moment - 0.01), at(moment)] == ["", "on-demand"]
