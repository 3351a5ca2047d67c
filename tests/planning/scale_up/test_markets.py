"""The markets in which machines are bought for a pod: waits for spot, deadlines, and skipping untried spot after refusals."""

from typing import Any

import msgspec
import pytest
from tests.planning.building import NOW, node, offering, placed, planned, pod, pods, pool, reasons, spec, unplaced

from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Limits, Policy, Pool
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.scale_up.markets import CHANGEOVER_SECONDS, changed_pools, next_market_change
from gpuscaler.planning.state import State
from gpuscaler.planning.state.offering_events import Changed

SPOT, ON_DEMAND = offering(price=0.3, market="spot"), offering(price=1.0)
BOTH = pool(SPOT, ON_DEMAND)
OTHER = pool(offering(pool="other"))
DRY = State(blocked_offerings=frozenset({SPOT.key}))
HOUR = 3600.0


def waiting(seconds: float = 60.0, name: str = "p", **options: Any) -> Pod:
    """A pod that has been unschedulable for the given time."""
    return pod(name, created=NOW - 7200, unschedulable=True, unschedulable_since=NOW - seconds, options=options)


def markets(made: Plan) -> list[str]:
    return sorted(machine.market for machine in made.machines)


def test_a_pod_takes_on_demand_at_once_when_spot_has_no_capacity() -> None:
    assert markets(planned([waiting(0.0)], BOTH, state=DRY)) == ["on-demand"]


def test_a_pod_that_waits_for_spot_does_not_take_on_demand() -> None:
    made = planned([waiting(60.0, spot_wait=600.0)], BOTH, state=DRY)

    assert (markets(made), unplaced(made)) == ([], ["p"])


def test_the_reason_of_an_unplaced_pod_says_until_when_it_waits_for_spot() -> None:
    (reason,) = reasons(planned([waiting(60.0, spot_wait=600.0)], BOTH, state=DRY), "p")

    assert reason.excluded_by == "market"
    assert "is on-demand" in reason.detail
    assert "the pod waits for spot until 2023-11-14 22:22:20 UTC (gpuscaler.io/spot-wait)" in reason.detail


def test_a_pod_takes_on_demand_once_its_spot_wait_is_over() -> None:
    assert markets(planned([waiting(600.0, spot_wait=600.0)], BOTH, state=DRY)) == ["on-demand"]


def test_a_pod_that_waits_for_spot_takes_spot_when_it_is_available() -> None:
    assert markets(planned([waiting(60.0, spot_wait=600.0)], BOTH)) == ["spot"]


def test_a_pod_that_waits_for_spot_uses_existing_machines_of_any_market() -> None:
    assert placed(planned([node("a", ON_DEMAND), waiting(60.0, spot_wait=600.0)], BOTH, state=DRY)) == {"p": "a"}


def test_the_spot_wait_of_each_pod_in_a_class_counts_from_its_own_start() -> None:
    made = planned([waiting(601.0, "old", spot_wait=600.0), waiting(599.0, "new", spot_wait=600.0)], BOTH, state=DRY)

    assert ([machine.pods for machine in made.machines], unplaced(made)) == ([("default/old",)], ["new"])


def test_no_pod_waits_for_spot_if_no_pool_offers_spot() -> None:
    assert markets(planned([waiting(0.0, spot_wait=600.0)], pool(ON_DEMAND))) == ["on-demand"]


def test_the_spot_wait_of_a_gang_ends_with_that_of_its_first_member() -> None:
    gang = {"gang": "train", "gang_size": 2, "gang_source": "annotation", "spot_wait": 600.0}
    early, late = waiting(601.0, "a", **gang), waiting(1.0, "b", **gang)

    assert markets(planned([early, late], BOTH, state=DRY)) == ["on-demand", "on-demand"]


def test_a_gang_tries_untried_spot_for_half_a_minute() -> None:
    gang = {"gang": "train", "gang_size": 2, "gang_source": "annotation"}

    def bought(seconds: float) -> list[str]:
        pods = [waiting(seconds, name, **gang) for name in "ab"]
        return markets(planned(pods, BOTH, state=State(skip_untried_spot_since=NOW - seconds + 1.0)))

    assert bought(29.0) == ["spot", "spot"]
    assert bought(30.0) == ["on-demand", "on-demand"]


def test_pods_pending_since_the_first_spot_refusal_skip_untried_spot_for_on_demand() -> None:
    made = planned([waiting(9.0, "old"), waiting(1.0, "new")], BOTH, state=State(skip_untried_spot_since=NOW - 8.0))

    assert {machine.pods[0]: machine.market for machine in made.machines} == {"default/old": "on-demand", "default/new": "spot"}


def test_a_pod_that_skips_untried_spot_takes_recently_granted_spot() -> None:
    both = pool(offering("untried", 0.3, market="spot"), offering("had", 0.4, market="spot"), ON_DEMAND)
    had = both.offerings[1].key
    made = planned([waiting(9.0)], both, state=State(skip_untried_spot_since=NOW - 8.0, proven_offerings=frozenset({had})))

    assert [(machine.market, machine.instance_type) for machine in made.machines] == [("spot", "had")]


def test_a_granted_spot_offering_that_is_too_small_does_not_keep_a_pod_from_on_demand() -> None:
    big = offering("od.8", 9.0, gpus=8)
    both = pool(SPOT, offering("g.8", 2.0, market="spot", gpus=8), big)
    state = State(skip_untried_spot_since=NOW - 8.0, proven_offerings=frozenset({SPOT.key}))
    made = planned([pod("p", spec(gpus=8), created=NOW - 9.0)], both, state=state)

    assert [machine.instance_type for machine in made.machines] == ["od.8"]


def test_a_pod_without_the_condition_skips_untried_spot_by_its_age() -> None:
    assert markets(planned(pods("p", 1, created=NOW - 9.0), BOTH, state=State(skip_untried_spot_since=NOW - 8.0))) == ["on-demand"]


def test_a_pod_that_admits_only_spot_continues_to_try_spot() -> None:
    assert markets(planned([waiting(9.0, market=("spot",))], BOTH, state=State(skip_untried_spot_since=NOW - 8.0))) == ["spot"]


def test_spot_is_still_tried_if_no_on_demand_machine_fits() -> None:
    big = offering("g.8", price=2.0, market="spot", gpus=8)
    made = planned(
        [pod("p", spec(gpus=8), created=NOW - 9.0)],
        pool(big, ON_DEMAND),
        state=State(skip_untried_spot_since=NOW - 8.0),
    )

    assert markets(made) == ["spot"]


def test_spot_is_still_tried_if_on_demand_is_also_refused() -> None:
    state = State(skip_untried_spot_since=NOW - 8.0, blocked_offerings=frozenset({ON_DEMAND.key}))

    assert markets(planned([waiting(9.0)], BOTH, state=state)) == ["spot"]


def test_spot_is_still_tried_if_the_limits_admit_no_on_demand_machine() -> None:
    dear = pool(offering("od", 1.0, pool="dear"), max=0)

    assert markets(planned([waiting(9.0)], pool(SPOT), dear, state=State(skip_untried_spot_since=NOW - 8.0))) == ["spot"]


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
def test_a_pool_counts_as_changed_only_if_what_it_buys_changes(after: tuple[Pool, ...], pools: list[str]) -> None:
    assert [changed.pool for changed in changed_pools(Policy((BOTH, OTHER)), Policy(after), NOW)] == pools


def test_a_change_of_settings_outside_pools_counts_as_a_change_of_all_pools() -> None:
    assert changed_pools(Policy((BOTH,)), Policy((BOTH,), limits=Limits(gpus=8)), NOW) == (Changed(NOW),)


def deadline(hours_left: float, *, work: float = 2.0, **options: Any) -> Pod:
    """A pod with ``work`` hours of work that must be done in ``hours_left`` hours."""
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


def test_a_pod_with_a_deadline_needs_time_for_two_boots_and_a_late_reclaim_to_use_spot() -> None:
    # There is no decision before the pod is back: its work is delayed by the first boot, by the lost work, and by the second boot.
    spare = 2 * CHANGEOVER_SECONDS + 600.0

    assert markets(planned([deadline(2.0 + (spare - 1.0) / HOUR)], BOTH)) == ["on-demand"]
    assert markets(planned([deadline(2.0 + (spare + 1.0) / HOUR)], BOTH)) == ["spot"]


def test_a_pod_with_a_deadline_that_restarts_from_scratch_needs_twice_its_duration_for_spot() -> None:
    spare = 2 * CHANGEOVER_SECONDS / HOUR + 0.05

    assert markets(planned([deadline(4.0 + spare - 0.1, restart_cost=None)], BOTH)) == ["on-demand"]
    assert markets(planned([deadline(4.0 + spare, restart_cost=None)], BOTH)) == ["spot"]


def test_a_pod_with_a_deadline_but_no_duration_gets_on_demand() -> None:
    assert markets(planned([deadline(99.0, expected_duration=None)], BOTH)) == ["on-demand"]


def test_a_pod_past_its_deadline_gets_on_demand() -> None:
    assert markets(planned([deadline(-1.0)], BOTH)) == ["on-demand"]


def test_a_pod_that_admits_only_spot_stays_on_spot_regardless_of_its_deadline() -> None:
    assert markets(planned([deadline(2.1, market=("spot",))], BOTH)) == ["spot"]


def test_reserved_machines_are_used_regardless_of_deadline_and_spot_wait() -> None:
    reserved = offering("r.1", price=0.0, market="reserved", count=1)

    for pending_pod in (deadline(2.1), deadline(9.0), waiting(60.0, spot_wait=600.0)):
        assert markets(planned([pending_pod], pool(reserved, ON_DEMAND, SPOT), state=DRY)) == ["reserved"]


def test_work_already_done_leaves_a_pod_more_time_before_its_deadline() -> None:
    late = deadline(2.2)

    assert markets(planned([late], BOTH, state=State(progress={"default/p": 1.0 * HOUR}))) == ["spot"]
    assert markets(planned([late], BOTH, state=State(progress={"default/other": 1.0 * HOUR}))) == ["on-demand"]
    assert next_market_change([late], NOW, {"default/p": 1.0 * HOUR}) == pytest.approx(NOW + 1.2 * HOUR - 600.0 - 1800.0, abs=0.01)


def test_the_reason_of_an_unplaced_pod_says_that_its_deadline_leaves_time_to_wait() -> None:
    (reason,) = reasons(planned([deadline(4.0)], BOTH, state=DRY), "p")

    assert "its deadline at 2023-11-15 02:13:20 UTC leaves time to wait for spot" in reason.detail


def test_the_next_market_change_is_the_first_time_at_which_markets_change() -> None:
    pod, other = waiting(60.0, spot_wait=600.0), deadline(8.0, work=4.0)
    latest = 8.0 * HOUR - 4.0 * HOUR - 600.0

    assert next_market_change([pod, other], NOW) == pytest.approx(NOW + 540.0, abs=0.01)
    assert next_market_change([other], NOW) == pytest.approx(NOW + latest - 0.2 * 4.0 * HOUR, abs=0.01)
    assert next_market_change([other], NOW + latest - 2800.0) == pytest.approx(NOW + latest - 1800.0, abs=0.01)
    assert next_market_change([other, waiting()], NOW + 8.0 * HOUR) is None


@pytest.mark.parametrize(
    "of", [waiting(60.0, spot_wait=600.0), deadline(4.0), deadline(8.0, work=4.0)], ids=["wait", "a short one's deadline", "deadline"]
)
def test_markets_of_pods_change_exactly_at_the_predicted_time(of: Pod) -> None:
    moment = next_market_change([of], NOW)
    assert moment is not None

    def at(now: float) -> str:
        from gpuscaler.model.cluster import Cluster
        from gpuscaler.model.pools import Policy
        from gpuscaler.planning.planner import plan

        return "".join(markets(plan(Cluster.of([of]), DRY, Policy((BOTH,)), now)))

    assert [at(moment - 0.01), at(moment)] == ["", "on-demand"]
