"""Deployments roll out a new template without falling below their limits."""

from typing import Any

import pytest
from tests.embedded.workloads.lab import Lab, lab, names

from gpuscaler.kube.resources import DEPLOYMENTS, REPLICA_SETS

IMAGE = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "web:2", "resources": {"requests": {"cpu": "1"}}}]}}}}


async def _images(here: Lab) -> list[str]:
    return [pod["spec"]["containers"][0]["image"] for pod in await here.pods()]


async def _sizes(here: Lab) -> list[int]:
    return sorted(replica_set["spec"]["replicas"] for replica_set in await here.all(REPLICA_SETS))


async def test_a_deployment_runs_its_pods_through_its_own_replica_set() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=3)
        await here.wait()
        (replica_set,) = await here.all(REPLICA_SETS)
        tag = replica_set["metadata"]["labels"]["pod-template-hash"]
        assert replica_set["metadata"]["name"] == f"web-{tag}"
        assert all(pod["metadata"]["name"].startswith(f"web-{tag}-") for pod in await here.pods())
        status = await here.status(DEPLOYMENTS, "web")
        conditions = {condition["type"]: (condition["status"], condition["reason"]) for condition in status.pop("conditions")}
        assert status == {"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}
        assert conditions == {"Available": ("True", "MinimumReplicasAvailable"), "Progressing": ("True", "NewReplicaSetAvailable")}


async def test_scaling_a_deployment_scales_its_replica_set() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=1)
        await here.wait()
        for replicas in (4, 2, 0):
            await here.patch(DEPLOYMENTS, "web", {"spec": {"replicas": replicas}}, part="scale")
            await here.wait()
            assert len(await here.all()) == replicas


async def test_a_new_template_is_rolled_out_while_enough_pods_stay_available() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=4)
        await here.wait()
        await here.patch(DEPLOYMENTS, "web", IMAGE)
        fewest, most = 9, 0
        for _ in range(300):
            await here.wait(0.01)
            pods = await here.pods()
            ready = [pod for pod in pods if pod["status"]["phase"] == "Running"]
            fewest, most = min(fewest, len(ready)), max(most, len(pods))
        assert await _images(here) == ["web:2"] * 4
        assert fewest >= 3
        assert most == 5
        assert await _sizes(here) == [0, 4]
        assert (await here.get(DEPLOYMENTS, "web"))["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"


async def test_a_template_that_cannot_run_leaves_the_old_pods_running() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=4)
        await here.wait()
        await here.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"nodeSelector": {"no": "such"}}}}})
        await here.wait(60.0)
        assert sum(pod["status"]["phase"] == "Running" for pod in await here.pods()) == 3
        assert (await here.status(DEPLOYMENTS, "web"))["unavailableReplicas"] == 2
        await here.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"nodeSelector": None}}}})
        await here.wait(20.0)
        assert await _sizes(here) == [0, 4]
        assert [pod["status"]["phase"] for pod in await here.pods()] == ["Running"] * 4


async def test_the_recreate_strategy_deletes_all_old_pods_before_it_creates_new_ones() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=3, strategy={"type": "Recreate"})
        await here.wait()
        await here.patch(DEPLOYMENTS, "web", IMAGE)
        seen = set()
        for _ in range(60):
            await here.wait(0.2)
            seen.add(tuple(sorted(set(await _images(here)))))
        assert seen <= {("web:1",), (), ("web:2",)}
        assert await _images(here) == ["web:2"] * 3


async def test_a_paused_deployment_does_not_roll_out() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=2)
        await here.wait()
        await here.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await here.patch(DEPLOYMENTS, "web", IMAGE)
        await here.wait()
        assert await _images(here) == ["web:1"] * 2
        await here.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await here.wait(20.0)
        assert await _images(here) == ["web:2"] * 2


async def test_old_replica_sets_are_kept_up_to_the_history_limit() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=1, revisionHistoryLimit=1)
        for number in range(4):
            await here.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"labels": {"version": str(number)}}}}})
            await here.wait(20.0)
        assert await _sizes(here) == [0, 1]


async def test_replica_sets_and_pods_are_deleted_with_the_deployment() -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=2)
        await here.wait()
        await here.user.delete(DEPLOYMENTS, "web", namespace="default")
        await here.wait()
        assert (await here.all(REPLICA_SETS), await here.all()) == ([], [])


@pytest.mark.parametrize("spread", [{"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": "50%", "maxUnavailable": 0}])
async def test_a_rollout_stays_within_max_surge_and_max_unavailable(spread: dict[str, Any]) -> None:
    async with lab("a") as here:
        await here.create(DEPLOYMENTS, "web", replicas=2, strategy={"type": "RollingUpdate", "rollingUpdate": spread})
        await here.wait()
        await here.patch(DEPLOYMENTS, "web", IMAGE)
        sizes = set()
        for _ in range(300):
            await here.wait(0.01)
            sizes.add(len(names(await here.pods())))
        assert await _images(here) == ["web:2"] * 2
        assert sizes == ({1, 2} if spread["maxSurge"] == 0 else {2, 3})
