"""Hand-written cases with results that Kubernetes documents: the oracle must give them, and our side must agree."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance.asking import Oracle, OracleError
from tests.conformance_hpa.__main__ import differences, misreadings
from tests.conformance_hpa.building import horizontal
from tests.conformance_hpa.cases import draw_case
from tests.conformance_hpa.kubernetes import as_objects
from tests.conformance_hpa.objects import draw_object

pytestmark = pytest.mark.conformance

Json = dict[str, Any]

SETTINGS = {"tolerance": 0.1, "stabilization": 300, "cpuInitialization": 300, "initialReadinessDelay": 30}
RUNNING = {"phase": "Running", "deleting": False, "ready": "True", "readySince": -600, "started": -900, "containers": []}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle(horizontal()) as running:
        yield running


def case(*steps: Json, **spec: Any) -> Json:
    """A service of 1 to 10 replicas with a target of 10 of the metric ``load`` per replica."""
    target = {"type": "AverageValue", "averageValue": "10"}
    metrics = [{"type": "Pods", "pods": {"metric": {"name": "load"}, "target": target}}]
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serving"}
    return {
        "autoscaler": {"spec": {"scaleTargetRef": reference, "maxReplicas": 10, "metrics": metrics, **spec}},
        "settings": SETTINGS,
        "steps": list(steps),
    }


def at(seconds: float, *loads: int, replicas: int | None = None) -> Json:
    """The observations at ``seconds``: one running pod for each load."""
    pods = [{"name": f"p{number}", **RUNNING} for number in range(len(loads))]
    samples = {f"p{number}": {"value": load * 1000, "at": seconds, "window": 60} for number, load in enumerate(loads)}
    return {"at": seconds, "replicas": replicas, "observed": None, "pods": pods, "metrics": {"load": {"pods": samples}}}


def replicas(oracle: Oracle, asked: Json) -> list[int]:
    assert list(differences(oracle, asked, Counter())) == []
    return [step["replicas"] for step in oracle.ask(as_objects(asked))["steps"]]


def test_the_replicas_follow_the_average(oracle: Oracle) -> None:
    assert replicas(oracle, case(at(0, 20, 16, replicas=2))) == [4]


def test_within_the_tolerance_nothing_changes(oracle: Oracle) -> None:
    assert replicas(oracle, case(at(0, 11, 11, replicas=2))) == [2]


def test_virtual_time_passes_between_steps_so_that_the_stabilisation_window_ends(oracle: Oracle) -> None:
    assert replicas(oracle, case(at(0, 10, 10, replicas=2), at(15, 1, 1), at(300, 1, 1), at(301, 1, 1))) == [2, 2, 2, 1]


def test_the_rate_of_a_behaviour_applies_over_its_period(oracle: Oracle) -> None:
    rules = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}

    assert replicas(oracle, case(at(0, 90, replicas=1), at(15, 90), at(60, 90), behavior={"scaleUp": rules})) == [2, 2, 3]


def test_a_case_that_cannot_be_read_is_refused_and_the_next_one_answered(oracle: Oracle) -> None:
    with pytest.raises(OracleError, match="cannot unmarshal"):
        oracle.ask({"steps": 7})

    assert replicas(oracle, case(at(0, 20, replicas=1))) == [2]


def test_random_cases_find_no_difference(oracle: Oracle) -> None:
    assert [number for number in range(50) if list(differences(oracle, draw_case(7, number), Counter()))] == []


def test_the_api_server_rejects_invalid_objects_and_fills_in_defaults(oracle: Oracle) -> None:
    taken: Json = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a", "namespace": "b"}}
    taken["spec"] = case()["autoscaler"]["spec"]
    refused = {**taken, "spec": {**taken["spec"], "minReplicas": 11}}

    assert oracle.ask({"read": taken})["kept"]["spec"]["minReplicas"] == 1
    assert "spec.maxReplicas" in oracle.ask({"read": refused})["refused"][0]
    assert list(misreadings(oracle, taken, Counter())) == list(misreadings(oracle, refused, Counter())) == []


def test_random_objects_are_read_like_the_api_server_reads_them(oracle: Oracle) -> None:
    assert [number for number in range(200) if list(misreadings(oracle, draw_object(7, number), Counter()))] == []
