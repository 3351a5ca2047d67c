"""Steps that may be skipped, because they would repeat the previous one."""

import math
import random

import pytest
from tests.simulation.horizontal.kit import CPU, NOW, QUEUE, Json, autoscaler, decide, samples, series

from gpuscaler.simulation.horizontal import History, quiet_until, repeat_outcome
from gpuscaler.simulation.horizontal.specs import Autoscaler, MetricAnswer, Unavailable

TICK, TICKS = 15.0, 400
RULES = [
    {},
    {"stabilizationWindowSeconds": 60},
    {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
    {"policies": [{"type": "Percent", "value": 50, "periodSeconds": 90}, {"type": "Pods", "value": 2, "periodSeconds": 40}]},
    {"selectPolicy": "Disabled"},
    {"stabilizationWindowSeconds": 100, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]},
]


def draw_case(rng: random.Random) -> tuple[Autoscaler, dict[int, MetricAnswer]]:
    """An autoscaler on a queue, and the ticks at which the queue changes."""
    spec: Json = {"minReplicas": rng.choice([0, 1, 3]), "maxReplicas": rng.choice([5, 10, 40])}
    if rng.random() < 0.7:
        spec["behavior"] = {name: rng.choice(RULES) for name in ("scaleUp", "scaleDown") if rng.random() < 0.8}
    changes: dict[int, MetricAnswer] = {0: series(rng.randrange(200))}
    for _ in range(rng.randrange(1, 12)):
        unavailable = rng.random() < 0.15
        changes[rng.randrange(TICKS)] = Unavailable("away") if unavailable else series(rng.choice([0, 5, 40, 90, 95, 104, 200, 390]))
    return autoscaler(QUEUE, **spec), changes


def replicas_over_time(autoscaler: Autoscaler, changes: dict[int, MetricAnswer], *, skipping: bool) -> tuple[list[int], int]:
    """The replicas after every tick, and the number of ticks that were computed."""
    history, replicas, quiet, computed = History(), 3, -math.inf, 0
    answer, sizes = changes[0], []
    outcome = None
    for tick in range(TICKS):
        now = NOW + tick * TICK
        if not skipping or tick in changes or now >= quiet:
            if outcome is not None and skipping:
                history = repeat_outcome(outcome, now - TICK)
            answer = changes.get(tick, answer)
            outcome = decide(autoscaler, answer, running=0, replicas=replicas, history=history, now=now)
            quiet = quiet_until(autoscaler, outcome, replicas=replicas)
            history, replicas = outcome.history, outcome.desired
            computed += 1
        sizes.append(replicas)
    return sizes, computed


@pytest.mark.parametrize("seed", range(150))
def test_skipping_steps_that_would_repeat_the_previous_one_gives_the_same_results(seed: int) -> None:
    autoscaler, changes = draw_case(random.Random(seed))
    every, _ = replicas_over_time(autoscaler, changes, skipping=False)
    some, _ = replicas_over_time(autoscaler, changes, skipping=True)

    assert some == every


def test_most_steps_of_a_steady_autoscaler_are_skipped() -> None:
    computed = sum(replicas_over_time(*draw_case(random.Random(seed)), skipping=True)[1] for seed in range(50))

    assert computed < 0.2 * 50 * TICKS


def test_a_target_with_its_desired_replicas_is_not_computed_again_until_something_changes() -> None:
    assert quiet_until(autoscaler(), decide(autoscaler(), samples(10), running=1), replicas=1) == math.inf


def test_a_target_that_was_just_scaled_is_computed_in_the_next_step() -> None:
    assert quiet_until(autoscaler(), decide(autoscaler(), samples(90), running=1), replicas=1) == -math.inf


def test_a_target_limited_by_a_stabilization_window_is_not_computed_again_before_the_window_ends() -> None:
    high = decide(autoscaler(), samples(10, 10), running=2)
    low = decide(autoscaler(), samples(1, 1), running=2, history=high.history, now=NOW + 15)

    assert quiet_until(autoscaler(), low, replicas=2) == NOW + 300


def test_autoscalers_with_cpu_metrics_are_computed_in_every_step_since_pod_ages_matter() -> None:
    scaler = autoscaler(CPU)

    assert quiet_until(scaler, decide(scaler, samples(0.05), running=1), replicas=1) == -math.inf


def test_an_autoscaler_without_metric_values_is_skipped_until_something_changes() -> None:
    outcome = decide(autoscaler(), Unavailable("away"), running=2)

    assert quiet_until(autoscaler(), outcome, replicas=2) == math.inf
    assert repeat_outcome(outcome, NOW + 60) == outcome.history
