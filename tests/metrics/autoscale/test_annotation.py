"""Valid annotations, and the errors for invalid ones."""

import pytest

from gpuscaler.metrics.autoscale.annotation import PROFILES, AnnotationError, Autoscale, MetricTarget, parse_annotation


def test_the_signal_duty_cycle_targets_the_average_value_of_the_current_duty_cycle_metric() -> None:
    assert parse_annotation("duty_cycle=60,min=1,max=8") == Autoscale((MetricTarget("Pods", ("duty_cycle_current",), "60"),), 1, 8)


def test_the_minimum_defaults_to_one_replica() -> None:
    assert parse_annotation(" duty_cycle = 60 , max = 8 ").minimum == 1


def test_each_target_of_an_annotation_becomes_a_metric() -> None:
    wanted = parse_annotation("duty_cycle=60,memory_used=60Gi,external=queue_length:10,max=8")
    assert [(aim.kind, aim.candidates[0], aim.target) for aim in wanted.metric_targets] == [
        ("Pods", "duty_cycle_current", "60"),
        ("Pods", "memory_used_bytes_current", "64424509440"),
        ("External", "queue_length", "10"),
    ]


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_profile_sets_a_metric_its_target_value_and_a_scaling_behaviour(name: str) -> None:
    wanted = parse_annotation(f"profile={name},max=4")
    assert wanted.metric_targets == (PROFILES[name].metric_target,)
    assert wanted.behavior == PROFILES[name].behavior
    assert parse_annotation(f"profile={name},target=7,max=4").metric_targets[0].target == "7"


def test_a_signal_that_exists_without_replicas_allows_a_minimum_of_zero() -> None:
    assert parse_annotation("external=queue_length:10,min=0,max=8").minimum == 0
    assert parse_annotation("duty_cycle=60,external=queue_length:10,min=0,max=8").minimum == 0


@pytest.mark.parametrize(
    "aim", ["duty_cycle=60", "profile=llm", "external=vllm_num_requests_waiting:5", "external=vllm:num_requests_waiting:5"]
)
def test_a_signal_that_replicas_report_does_not_allow_a_minimum_of_zero(aim: str) -> None:
    with pytest.raises(AnnotationError, match="nothing would start the first replica again"):
        parse_annotation(f"{aim},min=0,max=8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected KEY=VALUE"),
        ("duty_cycle", "expected KEY=VALUE"),
        ("duty_cycle=60;max=8", "expected a quantity"),
        ("=60,max=8", "saw a value of 3 characters in part 1, expected KEY=VALUE"),
        ("max=8,password=", "saw a value of 9 characters in part 2, expected KEY=VALUE"),
        ("duty_cicle=60,max=8", "saw an unknown key of 10 characters in part 1, expected one of profile, .*; did you mean duty_cycle"),
        ("max=8,hunter2=60", "saw an unknown key of 7 characters in part 2, expected one of profile, target, duty_cycle, .*, max$"),
        ("duty_cycle=60,duty_cycle=70,max=8", "saw duty_cycle twice"),
        ("duty_cycle=60", "saw no max"),
        ("max=8", "saw nothing to scale by"),
        ("duty_cycle=0,max=8", "above 0"),
        ("duty_cycle=-5,max=8", "above 0"),
        ("duty_cycle=160,max=8", "at most 100"),
        ("duty_cycle=many,max=8", "expected a quantity"),
        ("duty_cycle=60,max=two", "max: saw a value of 3 characters, expected a whole number"),
        ("duty_cycle=60,max=-1", "max: saw a value of 2 characters"),
        ("duty_cycle=60,max=99999999999", "whole number of replicas"),
        ("duty_cycle=60,min=9,max=8", "saw max=8 below min=9"),
        ("external=queue_length:1,min=0,max=0", "saw max=0"),
        ("external=queue_length,max=8", "expected NAME:N"),
        ("profile=training,max=8", "expected one of inference, llm, batch"),
        ("target=7,max=8", "without a profile"),
    ],
)
def test_an_invalid_value_raises_an_error_that_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        parse_annotation(text)
