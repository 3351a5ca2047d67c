"""The replicas that each kind of metric asks for."""

import pytest
from msgspec.structs import replace
from tests.simulation.horizontal.kit import CPU, LOAD, NOW, QUEUE, Json, autoscaler, decide, pods, reasons, samples, series

from gpuscaler.simulation.horizontal.specs import Container, ObjectSample, PodSamples, ReplicaPod, Sample, Unavailable

AWAY = Unavailable("unable to fetch metrics from custom metrics API: the server is currently unable to handle the request")


def of_object(**target: str) -> Json:
    described = {"kind": "Service", "name": "front", "apiVersion": "v1"}
    return {"type": "Object", "object": {"metric": {"name": "requests"}, "describedObject": described, "target": target}}


@pytest.mark.parametrize(("load", "expected"), [(20, 4), (15, 3), (11, 2), (10.9, 2), (9.1, 2), (5, 1), (11.1, 3)])
def test_replicas_are_set_so_that_the_average_over_pods_meets_the_target(load: float, expected: int) -> None:
    assert decide(autoscaler(), samples(load, load), running=2).recommendation == expected


def test_a_pod_without_a_sample_counts_as_idle_when_scaling_up() -> None:
    assert decide(autoscaler(), samples(30, 30), running=3).desired == 6


def test_a_pod_without_a_sample_counts_as_meeting_the_target_when_scaling_down() -> None:
    scaler, running = autoscaler(behavior={"scaleDown": {"stabilizationWindowSeconds": 0}}), pods(4)

    assert decide(scaler, samples(5, 5, 5), running=running).desired == 3


def test_a_pending_pod_counts_as_idle_when_scaling_up_and_is_ignored_when_scaling_down() -> None:
    running = [*pods(2), ReplicaPod("p2", phase="Pending")]

    assert decide(autoscaler(), samples(13, 13), running=running).desired == 3
    assert decide(autoscaler(behavior={"scaleDown": {"stabilizationWindowSeconds": 0}}), samples(5, 5), running=running).desired == 1


def test_replicas_stay_if_pods_without_samples_would_reverse_the_direction() -> None:
    assert decide(autoscaler(), samples(12), running=3).desired == 3


def test_failed_and_terminating_pods_do_not_count() -> None:
    running = [*pods(2), ReplicaPod("p2", phase="Failed"), ReplicaPod("p3", deleting=True)]

    assert decide(autoscaler(), samples(20, 20, 500, 500), running=running).desired == 4


def test_utilization_is_relative_to_the_requests_of_pods() -> None:
    scaler, used = autoscaler(CPU), PodSamples({"p0": Sample(80, NOW), "p1": Sample(70, NOW)})

    outcome = decide(scaler, used, running=2)

    assert outcome.desired == 3
    assert outcome.current[0] is not None
    assert (outcome.current[0].average_utilization, outcome.current[0].average_value) == (75, 75)


def test_the_cpu_of_a_starting_pod_is_ignored() -> None:
    starting = pods(1, started=NOW - 60, ready_since=NOW - 30)[0]
    running = [*pods(1), replace(starting, name="p1")]
    used = PodSamples({"p0": Sample(80, NOW), "p1": Sample(900, NOW)})

    assert decide(autoscaler(CPU), used, running=running).desired == 2


def test_the_memory_of_a_starting_pod_counts() -> None:
    memory = {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1k"}}}
    running = pods(2, started=NOW - 60, ready_since=NOW - 30)

    assert decide(autoscaler(memory), samples(2000, 4000), running=running).recommendation == 6


def test_a_container_metric_uses_only_the_named_container() -> None:
    source = {"name": "cpu", "container": "main", "target": {"type": "Utilization", "averageUtilization": 50}}
    scaler = autoscaler({"type": "ContainerResource", "containerResource": source})
    containers = (Container("main", {"cpu": 100}), Container("sidecar"))

    assert decide(scaler, PodSamples({"p0": Sample(100, NOW)}), running=pods(1, containers=containers)).desired == 2


def test_the_error_for_utilization_names_a_pod_without_a_request() -> None:
    outcome = decide(autoscaler(CPU), PodSamples({"p0": Sample(80, NOW)}), running=pods(1, containers=(Container("main"),)))

    assert outcome.desired == 1
    assert "missing request for cpu in container main of Pod p0" in outcome.error


def test_an_object_metric_targets_its_value_or_its_average_per_replica() -> None:
    assert decide(autoscaler(of_object(type="AverageValue", averageValue="10")), ObjectSample(45_000), running=2).recommendation == 5
    assert decide(autoscaler(of_object(type="Value", value="10")), ObjectSample(20_000), running=2).desired == 4


def test_the_series_of_an_external_metric_are_summed() -> None:
    assert decide(autoscaler(QUEUE), series(20, 15), running=1).desired == 4


def test_a_sum_of_series_beyond_64_bits_recommends_the_maximum_replicas() -> None:
    outcome = decide(autoscaler(QUEUE), series(9e15, 9e15), running=5)

    assert outcome.recommendation == 2**31 - 1
    assert outcome.desired == 10


def test_an_external_metric_scales_a_target_from_zero_and_back() -> None:
    scaler = autoscaler(QUEUE, minReplicas=0, behavior={"scaleDown": {"stabilizationWindowSeconds": 0}})

    assert decide(scaler, series(25), running=0).desired == 3
    assert decide(scaler, series(0), running=2).desired == 0


def test_a_target_with_zero_replicas_is_not_scaled_if_the_minimum_is_not_zero() -> None:
    outcome = decide(autoscaler(), samples(), running=0)

    assert outcome.desired == 0
    assert reasons(outcome)["ScalingActive"] == "False ScalingDisabled"


def test_the_highest_recommendation_of_several_metrics_is_used() -> None:
    assert decide(autoscaler(LOAD, QUEUE), [samples(20, 20), series(70)], running=2).recommendation == 7


def test_an_unavailable_metric_prevents_scaling_down_but_not_up() -> None:
    scaler = autoscaler(LOAD, QUEUE)
    up = decide(scaler, [samples(20, 20), AWAY], running=2)
    down = decide(scaler, [samples(1, 1), AWAY], running=2)

    assert up.desired == 4
    assert up.error.startswith("invalid metrics (1 invalid out of 2)")
    assert down.desired == 2
    assert reasons(down)["ScalingActive"] == "False FailedGetExternalMetric"


def test_replicas_stay_if_no_metric_is_available_and_the_condition_gives_the_reason() -> None:
    outcome = decide(autoscaler(), AWAY, running=2)

    assert outcome.desired == 2
    assert outcome.recommendation is None
    assert reasons(outcome) == {"AbleToScale": "True SucceededGetScale", "ScalingActive": "False FailedGetPodsMetric"}
    assert outcome.conditions[1].message == f"the HPA was unable to compute the replica count: unable to get metric load: {AWAY.message}"


def test_a_metric_without_samples_of_ready_pods_counts_as_unavailable() -> None:
    assert "did not receive metrics for targeted pods" in decide(autoscaler(), samples(), running=2).error


def test_metric_values_of_the_wrong_kind_raise_a_programming_error() -> None:
    with pytest.raises(TypeError, match="saw SeriesSamples, expected PodSamples"):
        decide(autoscaler(), series(1), running=1)


def test_fewer_values_than_metrics_raise_a_programming_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        decide(autoscaler(LOAD, QUEUE), [samples(1)], running=1)
