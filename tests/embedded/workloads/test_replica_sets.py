"""ReplicaSets keep the requested number of pods."""

from tests.embedded.workloads.lab import lab, names

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.kube.resources import NODES, PODS, REPLICA_SETS


async def test_a_replica_set_runs_the_requested_number_of_pods_and_counts_them_in_its_status() -> None:
    async with lab("a", "b") as here:
        await here.create(REPLICA_SETS, "web", replicas=3)
        await here.wait()
        pods = await here.pods()
        assert len(pods) == 3
        assert all(pod["spec"]["nodeName"] and pod["metadata"]["name"].startswith("web-") for pod in pods)
        status = await here.status(REPLICA_SETS, "web")
        expected = {"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "fullyLabeledReplicas": 3, "observedGeneration": 1}
        assert status == expected


async def test_an_evicted_pod_is_replaced_under_another_name() -> None:
    async with lab("a") as here:
        await here.create(REPLICA_SETS, "web", replicas=2)
        await here.wait()
        before = names(await here.pods())
        await here.user.evict("default", before[0])
        await here.wait()
        after = names(await here.pods())
        assert len(after) == 2
        assert before[0] not in after
        assert before[1] in after


async def test_scaling_down_deletes_pods_that_do_not_run_first() -> None:
    async with lab("a") as here:
        await here.create(REPLICA_SETS, "web", replicas=10)
        await here.wait()
        waiting = [pod for pod in await here.pods() if "nodeName" not in pod["spec"]]
        assert len(waiting) == 2
        await here.patch(REPLICA_SETS, "web", {"spec": {"replicas": 8}})
        await here.wait()
        left = await here.pods()
        assert len(left) == 8
        assert not set(names(left)) & set(names(waiting))
        await here.patch(REPLICA_SETS, "web", {"spec": {"replicas": 0}})
        await here.wait()
        assert await here.all() == []
        assert (await here.status(REPLICA_SETS, "web"))["replicas"] == 0


async def test_pods_of_a_deleted_node_are_replaced_on_other_nodes() -> None:
    async with lab("a") as here:
        await here.create(REPLICA_SETS, "web", replicas=2)
        await here.wait()
        await here.node("b")
        await here.user.delete(NODES, "a")
        await here.wait(60.0)
        assert [pod["spec"]["nodeName"] for pod in await here.pods()] == ["b", "b"]


async def test_pods_are_deleted_with_their_replica_set() -> None:
    async with lab("a") as here:
        await here.create(REPLICA_SETS, "web", replicas=2)
        await here.wait()
        await here.user.delete(REPLICA_SETS, "web", namespace="default")
        await here.wait()
        assert await here.all() == []


async def test_a_replica_set_reaches_the_requested_number_despite_server_errors_and_lost_responses() -> None:
    async with lab("a") as here:
        await here.create(REPLICA_SETS, "web", replicas=6)
        for method in ("POST", "PATCH", "DELETE"):
            here.cluster.api.faults.add(Fault(method=method, path="/pods", chance=0.2, refusal=broken()))
            here.cluster.api.faults.add(Fault(method=method, path="/pods", chance=0.2, sever="after"))
        for _ in range(10):
            await here.wait(2.0)
            here.cluster.api.drop_watches()
            here.cluster.api.forget()
        here.cluster.api.faults.clear()
        await here.wait(60.0)
        assert len(await here.all(PODS)) == 6
        assert (await here.status(REPLICA_SETS, "web"))["readyReplicas"] == 6
