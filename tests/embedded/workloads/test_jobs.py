"""Jobs run until enough of their pods have succeeded."""

from typing import Any

import pytest
from tests.embedded.workloads.lab import Lab, lab

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.embedded.workloads.indexes import indexes_of, text_of
from gpuscaler.kube.resources import JOBS, NODES, PODS


async def _conditions(here: Lab, name: str = "train") -> dict[str, str]:
    return {
        condition["type"]: condition.get("reason", "")
        for condition in (await here.status(JOBS, name)).get("conditions", ())
        if condition["status"] == "True"
    }


async def test_a_job_is_complete_when_enough_pods_have_succeeded() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=5, parallelism=2, run_for="60s")
        await here.wait(30.0)
        status = await here.status(JOBS, "train")
        assert (status["active"], status["ready"], len(await here.pods())) == (2, 2, 2)
        await here.wait(200.0)
        status = await here.status(JOBS, "train")
        assert (status["succeeded"], status.get("active"), status["startTime"] < status["completionTime"]) == (5, None, True)
        assert await _conditions(here) == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
        assert len(await here.all()) == 5
        assert not any(pod["metadata"].get("finalizers") for pod in await here.all())


async def test_an_evicted_job_pod_is_replaced_after_a_backoff_and_counts_as_failed() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train")
        await here.wait()
        (pod,) = await here.pods()
        await here.user.evict("default", pod["metadata"]["name"])
        await here.wait()
        assert (await here.all(), (await here.status(JOBS, "train"))["failed"]) == ([], 1)
        await here.wait(10.0)
        (again,) = await here.pods()
        assert again["metadata"]["uid"] != pod["metadata"]["uid"]


async def test_pods_of_vanished_machines_are_replaced_elsewhere_and_counted_once() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=4, parallelism=4, run_for="100s", backoffLimit=4)
        await here.wait(20.0)
        await here.user.delete(NODES, "a")
        await here.node("b")
        await here.wait(30.0)
        assert [pod["spec"]["nodeName"] for pod in await here.pods()] == ["b"] * 4
        await here.wait(150.0)
        status = await here.status(JOBS, "train")
        assert (status["succeeded"], status["failed"]) == (4, 4)


async def test_succeeded_pods_stay_counted_when_their_node_is_deleted() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=16, parallelism=8, run_for="50s")
        await here.wait(70.0)
        await here.user.delete(NODES, "a")
        await here.wait(30.0)
        status = await here.status(JOBS, "train")
        assert (status["succeeded"], status["failed"]) == (8, 8)


async def test_too_many_failures_fail_the_job_and_end_its_pods() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=2, parallelism=2, backoffLimit=1)
        for _ in range(2):
            await here.wait(25.0)
            (first, *_) = await here.pods()
            await here.fail(first)
        await here.wait()
        assert await _conditions(here) == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
        assert await here.pods() == []
        assert (await here.status(JOBS, "train"))["failed"] == 2


async def test_disruptions_that_the_pod_failure_policy_ignores_do_not_count_as_failures() -> None:
    async with lab("a") as here:
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        await here.create(JOBS, "train", backoffLimit=0, podFailurePolicy={"rules": [rule]})
        await here.wait()
        (pod,) = await here.pods()
        await here.user.evict("default", pod["metadata"]["name"])
        await here.wait()
        assert len(await here.pods()) == 1
        assert "failed" not in await here.status(JOBS, "train")
        (pod,) = await here.pods()
        await here.fail(pod)
        await here.wait()
        assert "Failed" in await _conditions(here)


async def test_each_index_of_an_indexed_job_succeeds_once() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=6, parallelism=4, completionMode="Indexed", run_for="30s")
        await here.wait(10.0)
        indexes = [pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in await here.pods()]
        assert sorted(indexes) == ["0", "1", "2", "3"]
        (third,) = [pod for pod in await here.pods() if pod["spec"]["hostname"] == "train-2"]
        await here.user.evict("default", third["metadata"]["name"])
        await here.wait(120.0)
        status = await here.status(JOBS, "train")
        assert (status["completedIndexes"], status["succeeded"], status["failed"]) == ("0-5", 6, 1)


async def test_a_work_queue_job_is_complete_when_one_pod_succeeded_and_none_is_left() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", parallelism=3, run_for="30s")
        await here.wait(60.0)
        assert "Complete" in await _conditions(here)
        assert (await here.status(JOBS, "train"))["succeeded"] == 3


async def test_a_suspended_job_has_no_pods_until_it_is_resumed() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", suspend=True)
        await here.wait()
        assert (await here.pods(), await _conditions(here)) == ([], {"Suspended": "JobSuspended"})
        await here.patch(JOBS, "train", {"spec": {"suspend": False}})
        await here.wait()
        assert (len(await here.pods()), await _conditions(here)) == (1, {})
        await here.patch(JOBS, "train", {"spec": {"suspend": True}})
        await here.wait()
        assert await here.all() == []
        assert "failed" not in await here.status(JOBS, "train")


async def test_a_job_fails_at_its_deadline_and_is_removed_with_its_pods_after_its_ttl() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", activeDeadlineSeconds=60, ttlSecondsAfterFinished=100)
        await here.wait(55.0)
        assert len(await here.pods()) == 1
        await here.wait(20.0)
        assert await _conditions(here) == {"FailureTarget": "DeadlineExceeded", "Failed": "DeadlineExceeded"}
        await here.wait(100.0)
        assert (await here.all(JOBS), await here.all()) == ([], [])


async def test_the_pods_of_a_deleted_job_are_deleted() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=3, parallelism=3)
        await here.wait()
        await here.user.delete(JOBS, "train", namespace="default")
        await here.wait()
        assert await here.all() == []


async def test_changed_parallelism_creates_or_deletes_pods_without_counting_failures() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=8, parallelism=2)
        for parallelism in (5, 1):
            await here.wait()
            await here.patch(JOBS, "train", {"spec": {"parallelism": parallelism}})
            await here.wait()
            assert len(await here.all()) == parallelism
        assert "failed" not in await here.status(JOBS, "train")


async def test_server_errors_neither_lose_nor_duplicate_a_completion_of_a_job() -> None:
    async with lab("a") as here:
        await here.create(JOBS, "train", completions=12, parallelism=4, run_for="10s")
        for method in ("POST", "PATCH", "DELETE"):
            here.cluster.api.faults.add(Fault(method=method, path="/(pods|jobs)", chance=0.15, refusal=broken()))
            here.cluster.api.faults.add(Fault(method=method, path="/(pods|jobs)", chance=0.15, sever="after"))
        for _ in range(10):
            await here.wait(5.0)
            here.cluster.api.drop_watches()
            here.cluster.api.forget()
        here.cluster.api.faults.clear()
        await here.wait(100.0)
        succeeded = [pod for pod in await here.all(PODS) if pod["status"]["phase"] == "Succeeded"]
        assert "Complete" in await _conditions(here)
        assert (await here.status(JOBS, "train"))["succeeded"] == len(succeeded) >= 12


@pytest.mark.parametrize(("indexes", "text"), [((), ""), ((3,), "3"), ((1, 2), "1,2"), ((0, 1, 2, 5, 7, 8, 9), "0-2,5,7-9")])
def test_completed_indexes_are_formatted_as_ranges(indexes: Any, text: str) -> None:
    assert text_of(indexes) == text
    assert indexes_of(text) == set(indexes)
