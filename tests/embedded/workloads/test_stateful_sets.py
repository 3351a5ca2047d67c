"""StatefulSets keep the names and the order of their pods."""

from typing import Any

import msgspec
import pytest
from tests.embedded.workloads.lab import Lab, lab, names

from gpuscaler.embedded.workloads.revisions import CONTROLLER_REVISIONS
from gpuscaler.kube.resources import DAEMON_SETS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STATEFUL_SETS, Resource


async def test_each_stateful_set_pod_is_created_once_the_previous_one_is_ready() -> None:
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


async def test_pods_of_a_parallel_stateful_set_are_created_at_once() -> None:
    async with lab() as here:
        await here.create(STATEFUL_SETS, "db", replicas=3, podManagementPolicy="Parallel")
        await here.wait()
        assert names(await here.pods()) == ["db-0", "db-1", "db-2"]


async def test_an_evicted_pod_is_replaced_under_its_name() -> None:
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


async def test_scaling_a_stateful_set_down_deletes_the_highest_pod_first() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=4)
        await here.wait(10.0)
        await here.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}})
        await here.wait(20.0)
        assert names(await here.all()) == ["db-0", "db-1"]


async def test_a_new_stateful_set_template_is_rolled_out_from_the_highest_pod_down_to_the_partition() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=3, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 1}})
        await here.wait(10.0)
        await here.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
        await here.wait(30.0)
        versions = {pod["metadata"]["name"]: pod["metadata"]["labels"].get("version") for pod in await here.pods()}
        assert versions == {"db-0": None, "db-1": "2", "db-2": "2"}


async def test_a_failed_stateful_set_pod_is_replaced() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=1)
        await here.wait(10.0)
        (pod,) = await here.pods()
        await here.fail(pod)
        await here.wait(10.0)
        (again,) = await here.pods()
        assert again["metadata"]["uid"] != pod["metadata"]["uid"]


async def listed(here: Lab, resource: Resource) -> list[dict[str, Any]]:
    return [msgspec.json.decode(raw) for raw in await here.user.list_all(resource)]


DATA = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}}


async def test_every_stateful_set_pod_has_its_own_bound_claims_which_outlive_the_pod() -> None:
    async with lab("a") as here:
        mounted = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "cache", "emptyDir": {}}]}
        await here.create(STATEFUL_SETS, "db", replicas=2, template=mounted, volumeClaimTemplates=[DATA])
        await here.wait(20.0)
        claims = await listed(here, PERSISTENT_VOLUME_CLAIMS)
        assert {(claim["metadata"]["name"], claim["status"]["phase"]) for claim in claims} == {
            ("data-db-0", "Bound"),
            ("data-db-1", "Bound"),
        }
        assert all(claim["metadata"]["labels"] == {"app": "web"} for claim in claims)
        volumes = await listed(here, PERSISTENT_VOLUMES)
        assert {(volume["spec"]["claimRef"]["name"], volume["status"]["phase"]) for volume in volumes} == {
            ("data-db-0", "Bound"),
            ("data-db-1", "Bound"),
        }
        pods = {pod["metadata"]["name"]: pod for pod in await here.pods()}
        assert all(pod["status"]["phase"] == "Running" for pod in pods.values())
        pod_volumes = {pod["name"]: pod for pod in pods["db-1"]["spec"]["volumes"]}
        assert pod_volumes["data"]["persistentVolumeClaim"] == {"claimName": "data-db-1"}
        assert "emptyDir" in pod_volumes["cache"]

        await here.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await here.wait(20.0)
        assert names(await here.all()) == ["db-0"]
        assert len(await listed(here, PERSISTENT_VOLUME_CLAIMS)) == 2
        # A deleted claim is created again, and bound to the existing volume.
        await here.user.delete(PERSISTENT_VOLUME_CLAIMS, "data-db-1", namespace="default")
        await here.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}})
        await here.wait(20.0)
        assert {claim["status"]["phase"] for claim in await listed(here, PERSISTENT_VOLUME_CLAIMS)} == {"Bound"}
        assert {pod["status"]["phase"] for pod in await here.pods()} == {"Running"}


async def revisions(here: Lab) -> dict[int, Any]:
    """The version in the template of each revision, by its number."""
    listed_revisions = await listed(here, CONTROLLER_REVISIONS)
    return {
        revision["revision"]: revision["data"]["spec"]["template"]["metadata"]["labels"].get("version") for revision in listed_revisions
    }


@pytest.mark.parametrize("resource", [STATEFUL_SETS, DAEMON_SETS])
async def test_each_template_gets_a_revision_and_a_restored_template_becomes_the_newest_revision(resource: Resource) -> None:
    async with lab("a") as here:
        more: dict[str, Any] = {"replicas": 1} if resource is STATEFUL_SETS else {}
        await here.create(resource, "db", **more)
        await here.wait(10.0)
        for version in ("2", None):
            await here.patch(resource, "db", {"spec": {"template": {"metadata": {"labels": {"version": version}}}}})
            await here.wait(20.0)
            if version:
                assert await revisions(here) == {1: None, 2: "2"}
        assert await revisions(here) == {2: "2", 3: None}
        await here.user.delete(resource, "db", namespace="default", propagation="Background")
        await here.wait(20.0)
        assert await revisions(here) == {}


async def test_unused_revisions_are_kept_up_to_the_history_limit() -> None:
    async with lab("a") as here:
        await here.create(STATEFUL_SETS, "db", replicas=1, revisionHistoryLimit=2)
        for version in range(2, 7):
            await here.wait(20.0)
            await here.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"labels": {"version": str(version)}}}}})
        await here.wait(20.0)
        assert await revisions(here) == {4: "4", 5: "5", 6: "6"}
