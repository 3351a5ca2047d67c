"""Limits on the speed and range of a target's changes."""

from typing import Any

import pytest
from tests.simulation.horizontal.kit import NOW, Json, autoscaler, decide, reasons, samples

from gpuscaler.simulation.horizontal import History, Outcome
from gpuscaler.simulation.horizontal.specs import Autoscaler


def follow(autoscaler: Autoscaler, *loads: tuple[float, float], replicas: int = 1) -> list[Outcome]:
    """Take steps at the given seconds, each with that total load, spread over the existing replicas."""
    history, outcomes = History(), []
    for seconds, load in loads:
        share = [load / replicas] * replicas
        outcome = decide(autoscaler, samples(*share), running=replicas, history=history, now=NOW + seconds)
        outcomes.append(outcome)
        history, replicas = outcome.history, outcome.desired
    return outcomes


def sizes(autoscaler: Autoscaler, *loads: tuple[float, float], replicas: int = 1) -> list[int]:
    return [outcome.desired for outcome in follow(autoscaler, *loads, replicas=replicas)]


def rules(**fields: Any) -> Json:
    return {"behavior": {"scaleUp": fields}}


def down(**fields: Any) -> Json:
    return {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, **fields}}}


def pods_per(seconds: int, value: int) -> Json:
    return {"type": "Pods", "value": value, "periodSeconds": seconds}


def percent_per(seconds: int, value: int) -> Json:
    return {"type": "Percent", "value": value, "periodSeconds": seconds}


def test_without_a_behaviour_one_step_at_most_doubles_the_replicas_or_reaches_four() -> None:
    scaler = autoscaler(maxReplicas=100)

    assert sizes(scaler, (0, 1000), (15, 1000), (30, 1000)) == [4, 8, 16]
    assert reasons(follow(scaler, (0, 1000))[0])["ScalingLimited"] == "True ScaleUpLimit"


def test_minimum_and_maximum_replicas_apply_and_a_condition_reports_them() -> None:
    scaler = autoscaler(minReplicas=2, behavior={"scaleDown": {"stabilizationWindowSeconds": 0}})
    above, below = follow(scaler, (0, 900), replicas=9)[0], follow(scaler, (0, 1), replicas=9)[0]

    assert (above.desired, reasons(above)["ScalingLimited"]) == (10, "True TooManyReplicas")
    assert (below.desired, reasons(below)["ScalingLimited"]) == (2, "True TooFewReplicas")


@pytest.mark.parametrize(
    ("replicas", "expected", "reason"),
    [(12, 10, "Current number of replicas above Spec.MaxReplicas"), (1, 3, "Current number of replicas below Spec.MinReplicas")],
)
def test_a_target_outside_its_limits_is_corrected_without_reading_metrics(replicas: int, expected: int, reason: str) -> None:
    outcome = decide(autoscaler(minReplicas=3), samples(), running=replicas)

    assert (outcome.desired, outcome.reason) == (expected, reason)


def test_scaling_down_uses_the_highest_recommendation_of_the_last_five_minutes() -> None:
    assert sizes(autoscaler(), (0, 40), (15, 10), (299, 10), (300, 10), (301, 10), replicas=4) == [4, 4, 4, 4, 1]


def test_scaling_up_waits_for_its_own_stabilization_window() -> None:
    scaler = autoscaler(**rules(stabilizationWindowSeconds=60))
    outcomes = follow(scaler, (0, 10), (15, 40), (45, 50), (75, 50))

    assert [outcome.desired for outcome in outcomes] == [1, 1, 1, 5]
    assert reasons(outcomes[1])["AbleToScale"] == "True ScaleUpStabilized"


def test_a_policy_counts_the_replicas_added_in_its_period() -> None:
    scaler = autoscaler(**rules(policies=[pods_per(60, 2)]))

    assert sizes(scaler, (0, 100), (15, 100), (59, 100), (60, 100)) == [3, 3, 3, 5]


def test_the_most_permissive_policy_applies_unless_select_policy_is_min() -> None:
    policies = [pods_per(15, 1), percent_per(15, 100)]

    assert sizes(autoscaler(**rules(policies=policies)), (0, 100), replicas=3) == [6]
    assert sizes(autoscaler(**rules(policies=policies, selectPolicy="Min")), (0, 100), replicas=3) == [4]


def test_a_disabled_direction_does_not_scale() -> None:
    outcome = follow(autoscaler(**rules(selectPolicy="Disabled")), (0, 100), replicas=3)[0]

    assert (outcome.desired, reasons(outcome)["ScalingLimited"]) == (3, "True ScaleUpLimit")


def test_percentages_are_rounded_so_that_more_replicas_remain_in_both_directions() -> None:
    assert sizes(autoscaler(**rules(policies=[percent_per(15, 10)])), (0, 100), replicas=1) == [2]
    assert sizes(autoscaler(**down(policies=[percent_per(15, 10)])), (0, 1), replicas=9) == [8]


def test_scaling_down_is_limited_by_earlier_changes() -> None:
    scaler = autoscaler(**down(policies=[pods_per(60, 1)]))
    outcomes = follow(scaler, (0, 1), (15, 1), (60, 1), replicas=5)

    assert [outcome.desired for outcome in outcomes] == [4, 4, 3]
    assert reasons(outcomes[1])["ScalingLimited"] == "True ScaleDownLimit"


def test_a_tolerance_applies_only_in_its_direction() -> None:
    scaler = autoscaler(behavior={"scaleUp": {"tolerance": "0.5"}, "scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": 0}})

    assert sizes(scaler, (0, 56), replicas=4) == [4]
    assert sizes(scaler, (0, 61), replicas=4) == [7]
    assert sizes(scaler, (0, 29.9), replicas=4) == [3]


def test_conditions_keep_the_time_at_which_their_status_changed() -> None:
    outcomes = follow(autoscaler(), (0, 10), (15, 10), (30, 500))

    assert [condition.since for condition in outcomes[1].conditions] == [NOW, NOW, NOW]
    assert {condition.type: condition.since for condition in outcomes[2].conditions}["ScalingLimited"] == NOW + 30
    assert outcomes[2].reason == "pods metric load above target"
    assert reasons(outcomes[2])["AbleToScale"] == "True SucceededRescale"
