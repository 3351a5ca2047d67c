"""Pods that nothing else would delete are deleted."""

from typing import Any

from tests.embedded.workloads.lab import lab, names

from gpuscaler.kube.resources import NODES, PODS, REPLICA_SETS

CONTAINERS = [{"name": "c", "image": "web:1"}]


def owner(kind: str, uid: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": True}]


async def test_pods_bound_to_a_missing_node_fail_and_are_deleted_after_a_while() -> None:
    async with lab("a") as here:
        for node in ("a", "ghost"):
            body = {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": CONTAINERS}}
            await here.user.create(PODS, body, namespace="default")
        seen = []
        for _ in range(100):
            await here.wait(0.5)
            seen += [pod["status"]["phase"] for pod in await here.all() if pod["metadata"]["name"] == "on-ghost"]
        assert seen.count("Pending") > 70
        assert names(await here.all()) == ["on-a"]


async def test_pods_bound_before_their_node_appeared_are_kept_if_it_appears_in_time() -> None:
    async with lab() as here:
        await here.user.create(
            PODS, {"metadata": {"name": "p"}, "spec": {"nodeName": "late", "containers": CONTAINERS}}, namespace="default"
        )
        await here.wait(30.0)
        await here.node("late")
        await here.wait(60.0)
        assert [pod["status"]["phase"] for pod in await here.all()] == ["Running"]
        await here.user.delete(NODES, "late")
        await here.wait(60.0)
        assert await here.all() == []


async def test_a_pod_whose_controller_is_gone_is_deleted_and_not_adopted_by_a_new_one_of_that_name() -> None:
    async with lab("a") as here:
        body = {"metadata": {"name": "lost", "ownerReferences": owner("ReplicaSet", "gone")}, "spec": {"containers": CONTAINERS}}
        await here.user.create(PODS, body, namespace="default")
        await here.wait()
        assert await here.all() == []
        await here.create(REPLICA_SETS, "web", replicas=1)
        await here.user.create(PODS, body, namespace="default")
        await here.wait()
        (kept,) = await here.all()
        assert kept["metadata"]["ownerReferences"][0]["uid"] == (await here.get(REPLICA_SETS, "web"))["metadata"]["uid"]


async def test_replica_sets_without_their_deployment_are_deleted_with_their_pods() -> None:
    async with lab("a") as here:
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}}
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": CONTAINERS}}
        body = {"metadata": {"name": "web-1", "ownerReferences": owner("Deployment", "gone")}, "spec": {**spec, "template": template}}
        await here.user.create(REPLICA_SETS, body, namespace="default")
        await here.wait()
        assert (await here.all(REPLICA_SETS), await here.all()) == ([], [])
