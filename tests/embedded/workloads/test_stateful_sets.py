"""StatefulSets keep names, and an order."""

from tests.embedded.workloads.lab import lab, names

from gpuscaler.kube.resources import STATEFUL_SETS


async def test_pods_come_one_after_the_other_and_each_waits_for_the_one_before() -> None:
    async with lab() as here:
        await here.create(STATEFUL_SETS, "db", replicas=3, serviceName="db")
        await here.wait()
        assert names(await here.pods()) == ["db-0"]
        await here.node("a")
        await here.wait(20.0)
        assert names(await here.pods()) == ["db-0", "db-1", "db-2"]
        status = await here.status(STATEFUL_SETS, "db")
        assert {name: status[name] for name in ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")} == {
            "replicas": 3,
            "readyReplicas": 3,
            "availableReplicas": 3,
            "updatedReplicas": 3,
        }
        (first,) = [pod for pod in await here.pods() if pod["metadata"]["name"] == "db-0"]
        assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-0", "db")
        assert first["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"


async def test_in_parallel_they_come_at_once() -> None:
    async with lab() as here:
        await here.create(STATEFUL_SETS, "db", replicas=3, podManagementPolicy="Parallel")
        await here.wait()
        assert names(await here.pods()) == ["db-0", "db-1", "db-2"]


async def test_an_evicted_pod_comes_back_under_its_name() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=2)
        await here.wait(10.0)
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await here.pods()}
        await here.user.evict("default", "db-0")
        await here.wait(10.0)
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await here.pods()}
        assert after.keys() == before.keys()
        assert after["db-0"] != before["db-0"]
        assert after["db-1"] == before["db-1"]


async def test_the_highest_goes_first() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=4)
        await here.wait(10.0)
        await here.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}})
        await here.wait(20.0)
        assert names(await here.all()) == ["db-0", "db-1"]


async def test_a_new_template_comes_in_from_the_highest_down_to_the_partition() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=3, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 1}})
        await here.wait(10.0)
        await here.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
        await here.wait(30.0)
        versions = {pod["metadata"]["name"]: pod["metadata"]["labels"].get("version") for pod in await here.pods()}
        assert versions == {"db-0": None, "db-1": "2", "db-2": "2"}


async def test_a_failed_pod_is_replaced() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=1)
        await here.wait(10.0)
        (pod,) = await here.pods()
        await here.fail(pod)
        await here.wait(10.0)
        (again,) = await here.pods()
        assert again["metadata"]["uid"] != pod["metadata"]["uid"]
