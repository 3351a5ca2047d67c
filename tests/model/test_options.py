"""Annotations and labels of pods, typed."""

import re

import msgspec
import pytest

from gpuscaler.model.options import PodAnnotations, pod_options
from gpuscaler.model.pods import NO_OPTIONS, PodOptions

CA = "cluster-autoscaler.kubernetes.io/"


def options(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, workload: str = "") -> PodOptions:
    parsed, warnings = pod_options(msgspec.convert(annotations or {}, PodAnnotations), labels or {}, workload)
    assert not warnings
    return parsed


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpuscaler.io/market", "spot, on-demand", PodOptions(market=("on-demand", "spot"))),
        ("gpuscaler.io/market", "any", NO_OPTIONS),
        ("gpuscaler.io/spot-wait", "10m", PodOptions(spot_wait=600.0)),
        ("gpuscaler.io/deadline", "2026-01-31T12:00:00+01:00", PodOptions(deadline=1769857200.0)),
        ("gpuscaler.io/expected-duration", "2h", PodOptions(expected_duration=7200.0)),
        ("gpuscaler.io/restart-cost", "1h", PodOptions(restart_cost=3600.0)),
        ("gpuscaler.io/grace", "0s", PodOptions(grace=0.0)),
        ("gpuscaler.io/run-for", "90s", PodOptions(run_for=90.0)),
        ("gpuscaler.io/gang-topology", "any", PodOptions(gang_topology="any")),
        (f"{CA}safe-to-evict", "false", PodOptions(safe_to_evict=False)),
        (f"{CA}safe-to-evict", "true", PodOptions(safe_to_evict=True)),
        (f"{CA}safe-to-evict-local-volumes", "b, a,", PodOptions(safe_to_evict_local_volumes=("a", "b"))),
        (f"{CA}pod-scale-up-delay", "30s", PodOptions(scale_up_delay=30.0)),
        ("karpenter.sh/do-not-disrupt", "true", PodOptions(do_not_disrupt=True)),
        ("karpenter.sh/do-not-disrupt", "5m", PodOptions(do_not_disrupt=300.0)),
        ("gpuscaler.io/disruption", "allow", PodOptions(disruption="allow")),
        ("gpuscaler.io/disruption", " never", PodOptions(disruption="never")),
        ("kubernetes.io/config.mirror", "0123", PodOptions(mirror=True)),
        ("example.com/other", "anything", NO_OPTIONS),
    ],
)
def test_each_pod_annotation_is_parsed_to_its_type(name: str, value: str, expected: PodOptions) -> None:
    assert options({name: value}) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpuscaler.io/market", "spot,cheap", "spot, on-demand and reserved"),
        ("gpuscaler.io/market", "", "spot, on-demand and reserved"),
        ("gpuscaler.io/spot-wait", "soon", "a duration such as"),
        ("gpuscaler.io/spot-wait", "-1s", "zero or more"),
        ("gpuscaler.io/deadline", "tomorrow", "an RFC 3339 time"),
        ("gpuscaler.io/deadline", "2026-01-31T12:00:00", "an RFC 3339 time"),
        ("gpuscaler.io/gang-topology", "rack", "zone or any"),
        (f"{CA}safe-to-evict", "yes", '"true" or "false"'),
        ("karpenter.sh/do-not-disrupt", "1 hour", "a duration"),
        ("gpuscaler.io/disruption", "yes", "allow or never"),
        ("gpuscaler.io/gang-size", "4", "gpuscaler.io/gang as well"),
    ],
)
def test_an_unreadable_annotation_is_ignored_with_a_warning(name: str, value: str, expected: str) -> None:
    parsed, (warning,) = pod_options(msgspec.convert({name: value}, PodAnnotations), {})
    assert parsed == NO_OPTIONS
    assert re.match(rf"{name}: saw a value of {len(value)} characters?, expected ", warning)
    assert expected in warning


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "many", "99999999999"])
def test_a_gang_of_an_unreadable_size_is_still_a_gang(size: str) -> None:
    annotations = msgspec.convert({"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": size}, PodAnnotations)
    parsed, (warning,) = pod_options(annotations, {})
    assert (parsed.gang, parsed.gang_size) == ("g", 0)
    assert "a whole number of at least 1" in warning


@pytest.mark.parametrize(
    ("annotations", "labels", "workload", "gang"),
    [
        ({"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "4"}, {}, "", ("g", 4, "annotation")),
        ({}, {}, "train/workers/0", ("train/workers/0", 0, "workload")),
        ({}, {"scheduling.x-k8s.io/pod-group": "g"}, "", ("g", 0, "coscheduling")),
        ({}, {"pod-group.scheduling.sigs.k8s.io": "g"}, "", ("g", 0, "coscheduling")),
        ({"scheduling.k8s.io/group-name": "g"}, {}, "", ("g", 0, "volcano")),
        ({"scheduling.volcano.sh/group-name": "g"}, {}, "", ("g", 0, "volcano")),
        ({"kueue.x-k8s.io/pod-group-total-count": "8"}, {"kueue.x-k8s.io/pod-group-name": "g"}, "", ("g", 8, "kueue")),
        ({}, {"jobset.sigs.k8s.io/jobset-name": "g"}, "", ("g", 0, "jobset")),
        ({"gpuscaler.io/gang": "ours"}, {"jobset.sigs.k8s.io/jobset-name": "theirs"}, "too", ("ours", 0, "annotation")),
        ({"kueue.x-k8s.io/pod-group-total-count": "8"}, {}, "", ("", 0, "")),
    ],
)
def test_gangs_are_recognised_by_the_labels_of_every_project(
    annotations: dict[str, str], labels: dict[str, str], workload: str, gang: tuple[str, int, str]
) -> None:
    pod_options = options(annotations, labels, workload)
    assert (pod_options.gang, pod_options.gang_size, pod_options.gang_source) == gang


def test_the_label_of_openai_protects_a_pod_unless_its_value_is_false() -> None:
    assert options(labels={"openai/do-not-drain": "true"}).do_not_drain
    assert not options(labels={"openai/do-not-drain": "False"}).do_not_drain


@pytest.mark.parametrize(
    ("name", "field", "most"),
    [
        ("gpuscaler.io/grace", "grace", 3600.0),
        ("gpuscaler.io/spot-wait", "spot_wait", 2_592_000.0),
        ("gpuscaler.io/expected-duration", "expected_duration", 2_592_000.0),
        ("gpuscaler.io/restart-cost", "restart_cost", 2_592_000.0),
        ("gpuscaler.io/run-for", "run_for", 2_592_000.0),
        ("cluster-autoscaler.kubernetes.io/pod-scale-up-delay", "scale_up_delay", 2_592_000.0),
        ("karpenter.sh/do-not-disrupt", "do_not_disrupt", 2_592_000.0),
    ],
)
def test_every_duration_in_a_pod_annotation_is_limited_with_a_warning(name: str, field: str, most: float) -> None:
    parsed, (warning,) = pod_options(msgspec.convert({name: "2500000h"}, PodAnnotations), {})

    assert getattr(parsed, field) == most
    assert warning.startswith(f"{name}: saw '2500000h', expected at most {most:g} s")
    assert warning.endswith("cut to it")


@pytest.mark.parametrize(("given", "most", "left"), [("90m", 7200.0, 5400.0), ("90m", 60.0, 60.0), ("9000h", 1e12, 2_592_000.0)])
def test_the_grace_of_a_pod_is_limited_by_the_setting_max_grace(given: str, most: float, left: float) -> None:
    parsed, _ = pod_options(msgspec.convert({"gpuscaler.io/grace": given}, PodAnnotations), {}, max_grace=most)

    assert parsed.grace == left


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2300-01-01T00:00:00Z"])
def test_a_deadline_out_of_range_is_reported_and_ignored(text: str) -> None:
    parsed, (warning,) = pod_options(msgspec.convert({"gpuscaler.io/deadline": text}, PodAnnotations), {})

    assert parsed.deadline is None
    assert "a time between the years 1970 and 2200" in warning
