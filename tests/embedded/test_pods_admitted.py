"""A new pod gets the fields set by admission and defaults."""

from typing import Any

import pytest
from tests.embedded.asking import MERGE, PODS, Asker, asker, pod

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def _priority_class(ask: Asker, name: str, value: int, **more: Any) -> None:
    await ask.ok("POST", CLASSES, {"metadata": {"name": name}, "value": value, **more})


async def test_a_new_pod_is_pending_and_tolerates_an_unready_node_for_five_minutes() -> None:
    made = await asker().ok("POST", PODS, {**pod(), "status": {"phase": "Running"}})
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"], spec["terminationGracePeriodSeconds"]) == ("Always", "default-scheduler", 30)
    assert {(item["key"], item["tolerationSeconds"]) for item in spec["tolerations"]} == {
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    }


async def test_a_pod_that_tolerates_everything_gets_no_default_tolerations() -> None:
    made = await asker().ok("POST", PODS, pod(tolerations=[{"operator": "Exists"}]))
    assert made["spec"]["tolerations"] == [{"operator": "Exists"}]


async def test_requests_default_to_limits() -> None:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}, "requests": {"cpu": "1"}}}
    made = await asker().ok("POST", PODS, pod(containers=[container]))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2", "cpu": "1"}
    assert made["status"]["qosClass"] == "Burstable"


async def test_a_pod_with_equal_requests_and_limits_has_the_qos_class_guaranteed() -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    assert (await asker().ok("POST", PODS, pod(containers=[container])))["status"]["qosClass"] == "Guaranteed"


async def test_a_gated_pod_has_a_condition_until_its_gates_are_removed() -> None:
    ask = asker()
    made = await ask.ok("POST", PODS, pod(schedulingGates=[{"name": "g"}]))
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    status, _ = await ask("POST", f"{PODS}/p/binding", {"target": {"name": "n"}})
    assert status == 400
    freed = await ask.ok("PATCH", f"{PODS}/p", {"spec": {"schedulingGates": None}}, media=MERGE)
    assert "schedulingGates" not in freed["spec"]


async def test_the_priority_of_a_pod_comes_from_its_priority_class_or_the_default_one() -> None:
    ask = asker()
    await _priority_class(ask, "high", 1000, preemptionPolicy="Never")
    assert (await ask.ok("POST", PODS, pod("none")))["spec"]["priority"] == 0
    high = (await ask.ok("POST", PODS, pod("high", priorityClassName="high")))["spec"]
    assert (high["priority"], high["preemptionPolicy"]) == (1000, "Never")
    await _priority_class(ask, "usual", 10, globalDefault=True)
    usual = (await ask.ok("POST", PODS, pod("usual")))["spec"]
    assert (usual["priority"], usual["priorityClassName"]) == (10, "usual")
    status, answer = await ask("POST", PODS, pod("x", priorityClassName="absent"))
    assert (status, answer["message"]) == (403, 'pods "x" is forbidden: no PriorityClass with name absent was found')


async def test_the_system_priority_classes_exist_from_the_start() -> None:
    made = await asker().ok("POST", PODS.replace("default", "kube-system"), pod(priorityClassName="system-node-critical"))
    assert made["spec"]["priority"] == 2000001000


async def test_a_runtime_class_adds_its_overhead_and_its_node_selector() -> None:
    ask = asker()
    body = {
        "metadata": {"name": "kata"},
        "handler": "kata",
        "overhead": {"podFixed": {"memory": "160Mi"}},
        "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]},
    }
    await ask.ok("POST", "/apis/node.k8s.io/v1/runtimeclasses", body)
    spec = (await ask.ok("POST", PODS, pod(runtimeClassName="kata")))["spec"]
    assert (spec["overhead"], spec["nodeSelector"]) == ({"memory": "160Mi"}, {"kata": "yes"})
    assert {"key": "kata", "operator": "Exists"} in spec["tolerations"]
    assert (await ask("POST", PODS, pod("q", runtimeClassName="absent")))[0] == 403


@pytest.mark.parametrize(
    ("spec", "field"), [({"containers": []}, "spec.containers"), ({"containers": [{"image": "x"}]}, "spec.containers[0].name")]
)
async def test_a_pod_without_named_containers_is_invalid(spec: dict[str, Any], field: str) -> None:
    status, answer = await asker()("POST", PODS, pod(**spec))
    assert (status, answer["details"]["causes"][0]) == (422, {"reason": "FieldValueRequired", "message": "Required value", "field": field})


@pytest.mark.parametrize("change", [{"nodeName": "n"}, {"priority": 5}, {"nodeSelector": {"a": "b"}}, {"tolerations": []}])
async def test_most_of_a_pods_spec_cannot_be_changed(change: dict[str, Any]) -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    status, answer = await ask("PATCH", f"{PODS}/p", {"spec": change}, media=MERGE)
    assert status == 422
    assert "pod updates may not change fields other than" in answer["message"]


async def test_images_of_a_pod_can_be_changed_and_tolerations_added() -> None:
    ask = asker()
    made = await ask.ok("POST", PODS, pod())
    extra = [*made["spec"]["tolerations"], {"key": "x", "operator": "Exists"}]
    containers = [{**made["spec"]["containers"][0], "image": "busybox:2"}]
    changed = await ask.ok("PATCH", f"{PODS}/p", {"spec": {"tolerations": extra, "containers": containers}}, media=MERGE)
    assert (changed["spec"]["tolerations"], changed["spec"]["containers"][0]["image"]) == (extra, "busybox:2")
