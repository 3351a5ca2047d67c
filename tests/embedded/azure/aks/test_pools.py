"""AKS clusters and agent pools from outside: by Azure's own client, and by plain HTTP for what it hides."""

from typing import Any

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making
from gpuscaler.embedded.azure.state import AgentPool, Cluster

LARGE = "Standard_NC48ads_A100_v4"


@pytest.fixture
def cluster(azure: Azure) -> Cluster:
    made = making.create_cluster(azure.account, "aks", "rg")
    making.create_pool(azure.account, made, "gpu", SIZE, taints=("sku=gpu:NoSchedule",), labels={"team": "ml"})
    making.create_pool(azure.account, made, "spot", SIZE, spot=True, zones=("1", "2"))
    making.create_pool(azure.account, made, "mixed", {SIZE: 1, LARGE: 0})
    return made


def path_of(cluster: Cluster, pool: str) -> str:
    return f"{cluster.id}/agentPools/{pool}"


def pool_of(cluster: Cluster, name: str) -> AgentPool:
    return cluster.pools[name]


async def test_azures_client_reads_the_cluster_and_its_pools(azure: Azure, cluster: Cluster) -> None:
    client = azure.aks()
    shown = await client.managed_clusters.get("rg", "aks")
    assert shown.node_resource_group == "MC_rg_aks_eastus" == cluster.node_group
    assert [profile.name for profile in shown.agent_pool_profiles] == ["nodepool1", "gpu", "spot", "mixed"]
    pools = {pool.name: pool async for pool in client.agent_pools.list("rg", "aks")}
    assert (pools["nodepool1"].mode, pools["nodepool1"].count) == ("System", 1)
    assert (pools["gpu"].vm_size, pools["gpu"].node_taints, pools["gpu"].node_labels) == (SIZE, ["sku=gpu:NoSchedule"], {"team": "ml"})
    spot = pools["spot"]
    assert (spot.scale_set_priority, spot.scale_set_eviction_policy, spot.spot_max_price) == ("Spot", "Delete", -1)
    assert spot.node_taints == ["kubernetes.azure.com/scalesetpriority=spot:NoSchedule"]
    assert spot.node_labels == {"kubernetes.azure.com/scalesetpriority": "spot"}
    assert spot.availability_zones == ["1", "2"]
    mixed = pools["mixed"]
    assert mixed.virtual_machines_profile.scale.manual[0].size == SIZE
    assert [(row.size, row.count) for row in mixed.virtual_machine_nodes_status] == [(SIZE, 1)]
    names = [found.name async for found in client.managed_clusters.list()]
    assert names == ["aks"]


async def test_a_pool_has_a_scale_set_in_the_node_resource_group(azure: Azure, cluster: Cluster) -> None:
    _, shown, _ = await azure.call("GET", f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{cluster.node_group}")
    assert shown["managedBy"] == cluster.id
    scale_sets = {found.name: found async for found in azure.compute().virtual_machine_scale_sets.list(cluster.node_group)}
    spot = scale_sets[f"aks-spot-{cluster.hash}-vmss"]
    assert (spot.tags["aks-managed-poolName"], spot.overprovision, spot.zones) == ("spot", False, ["1", "2"])
    assert spot.virtual_machine_profile.eviction_policy == "Delete"
    assert not any("mixed" in name for name in scale_sets)


async def test_a_count_is_reached_by_the_scale_set(azure: Azure, cluster: Cluster) -> None:
    from azure.core import MatchConditions

    client = azure.aks()
    pool = await client.agent_pools.get("rg", "aks", "gpu")
    pool.count = 2
    poller = await client.agent_pools.begin_create_or_update(
        "rg", "aks", "gpu", pool, etag=pool.e_tag, match_condition=MatchConditions.IfNotModified
    )
    assert pool_of(cluster, "gpu").state == "Updating"
    azure.later(60)
    assert (await poller.result()).count == 2
    scale_set = azure.account.scale_set(SUBSCRIPTION, cluster.node_group, f"aks-gpu-{cluster.hash}-vmss")
    assert scale_set.capacity == len(scale_set.machines) == 2
    names = [machine.name async for machine in client.machines.list("rg", "aks", "gpu")]
    assert names == [f"aks-gpu-{cluster.hash}-vmss000000", f"aks-gpu-{cluster.hash}-vmss000001"]


async def test_a_capacity_that_others_wrote_becomes_the_count(azure: Azure, cluster: Cluster) -> None:
    scale_set = azure.account.scale_set(SUBSCRIPTION, cluster.node_group, f"aks-gpu-{cluster.hash}-vmss")
    await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 3}})
    assert (await azure.call("GET", path_of(cluster, "gpu")))[1]["properties"]["count"] == 0
    azure.later(15)
    assert (await azure.call("GET", path_of(cluster, "gpu")))[1]["properties"]["count"] == 3


async def test_a_failed_allocation_fails_the_pool_with_the_cause_inside(azure: Azure, cluster: Cluster) -> None:
    making.set_limit(azure.account, 0, market="on-demand", size=SIZE)
    _, _, headers = await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 2}})
    azure.later(60)
    _, operation, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert (operation["status"], operation["error"]["code"]) == ("Failed", "ReconcileVMSSAgentPoolFailed")
    assert operation["error"]["details"][0]["code"] == "AllocationFailed"
    assert 'Code="AllocationFailed"' in operation["error"]["message"]
    _, shown, _ = await azure.call("GET", path_of(cluster, "gpu"))
    assert shown["properties"]["provisioningState"] == "Failed"
    assert (await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 0}}))[0] == 200


async def test_a_quota_fails_the_pools_operation(azure: Azure, cluster: Cluster) -> None:
    making.set_quota(azure.account, "cores", 8)
    status, _, headers = await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 1}})
    assert status == 200
    azure.later(60)
    _, operation, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert "exceeding approved Total Regional Cores quota" in operation["error"]["details"][0]["message"]


async def test_one_operation_at_a_time_on_a_pool(azure: Azure, cluster: Cluster) -> None:
    await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 1}})
    status, refused, _ = await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 2}})
    assert (status, refused["code"]) == (409, "OperationNotAllowed")
    assert "in progress" in refused["message"]
    assert (await azure.call("PUT", path_of(cluster, "spot"), {"properties": {"count": 1}}))[0] == 200
    assert (await azure.call("PUT", cluster.id, {"location": "eastus", "tags": {}}))[0] == 409
    azure.later(60)
    assert (await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 2}}))[0] == 200
    azure.later(60)
    status, _, headers = await azure.call("PUT", cluster.id, {"location": "eastus", "tags": {"a": "b"}})
    assert status == 200
    assert (await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 3}}))[0] == 409
    azure.later(60)
    assert (await azure.call("GET", headers["azure-asyncoperation"]))[1]["status"] == "Succeeded"


async def test_an_old_etag_of_a_pool_is_refused(azure: Azure, cluster: Cluster) -> None:
    etag = (await azure.call("GET", path_of(cluster, "gpu")))[1]["properties"]["eTag"]
    await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 1}}, If_Match=etag)
    azure.later(60)
    status, refused, _ = await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 2}}, If_Match=etag)
    assert (status, refused["code"]) == (412, "PreconditionFailed")


async def test_puts_of_a_pool_have_a_bucket_of_twenty_and_one_a_minute(azure: Azure, cluster: Cluster) -> None:
    azure.conditions(aks_end=0.0, allocation=0.0, provisioning=0.0)
    body = {"properties": {"count": 0}}
    for _ in range(20):
        assert (await azure.call("PUT", path_of(cluster, "gpu"), body))[0] == 200
        azure.later(0.1)
    status, refused, headers = await azure.call("PUT", path_of(cluster, "gpu"), body)
    assert (status, refused["code"]) == (429, "Throttled")
    assert 55 <= int(headers["retry-after"]) <= 60
    assert (await azure.call("PUT", path_of(cluster, "spot"), body))[0] == 200
    azure.later(60)
    assert (await azure.call("PUT", path_of(cluster, "gpu"), body))[0] == 200


async def test_machines_are_deleted_by_name(azure: Azure, cluster: Cluster) -> None:
    making.create_pool(azure.account, cluster, "many", SIZE, count=3)
    poller = await azure.aks().agent_pools.begin_delete_machines(
        "rg", "aks", "many", {"machineNames": [f"aks-many-{cluster.hash}-vmss000001"]}
    )
    azure.later(60)
    await poller.result()
    _, shown, _ = await azure.call("GET", path_of(cluster, "many"))
    assert (shown["properties"]["count"], shown["properties"]["provisioningState"]) == (2, "Succeeded")
    scale_set = azure.account.scale_set(SUBSCRIPTION, cluster.node_group, f"aks-many-{cluster.hash}-vmss")
    assert (list(scale_set.machines), scale_set.capacity) == (["0", "2"], 2)


@pytest.mark.parametrize("names", [[], ["aks-gpu-0-vmss000000"]])
async def test_a_deletion_without_names_or_with_an_unknown_one_is_refused(azure: Azure, cluster: Cluster, names: list[str]) -> None:
    status, _, _ = await azure.call("POST", f"{path_of(cluster, 'gpu')}/deleteMachines", {"machineNames": names})
    assert status == 400


async def test_a_pool_of_virtual_machines_grows_by_profile(azure: Azure, cluster: Cluster) -> None:
    manual: list[dict[str, Any]] = [{"size": SIZE, "count": 1}, {"size": LARGE, "count": 2}]
    wanted = {"properties": {"type": "VirtualMachines", "virtualMachinesProfile": {"scale": {"manual": manual}}}}
    etag = (await azure.call("GET", path_of(cluster, "mixed")))[1]["properties"]["eTag"]
    status, _, headers = await azure.call("PUT", path_of(cluster, "mixed"), wanted, If_Match=etag)
    assert status == 200
    azure.later(60)
    assert (await azure.call("GET", headers["azure-asyncoperation"]))[1]["status"] == "Succeeded"
    _, shown, _ = await azure.call("GET", path_of(cluster, "mixed"))
    assert shown["properties"]["virtualMachineNodesStatus"] == manual
    assert "vmSize" not in shown["properties"]
    machines = [machine async for machine in azure.compute().virtual_machines.list(cluster.node_group)]
    assert [machine.name for machine in machines] == [f"aks-mixed-{cluster.hash}-vms{number}" for number in range(3)]
    assert [machine.hardware_profile.vm_size for machine in machines] == [SIZE, LARGE, LARGE]
    await azure.call("POST", f"{path_of(cluster, 'mixed')}/deleteMachines", {"machineNames": [machines[1].name]})
    azure.later(60)
    _, shown, _ = await azure.call("GET", path_of(cluster, "mixed"))
    rows = [{"size": SIZE, "count": 1}, {"size": LARGE, "count": 1}]
    assert shown["properties"]["virtualMachinesProfile"]["scale"]["manual"] == rows
    assert shown["properties"]["virtualMachineNodesStatus"] == rows


@pytest.mark.parametrize(
    ("lockdown", "status"), [("DenyAssignmentAuthorizationFailed", 403), ("AuthorizationFailed", 403), ("ScopeLocked", 409)]
)
async def test_a_locked_node_resource_group_leaves_only_the_pools_own_api(azure: Azure, lockdown: str, status: int) -> None:
    azure.conditions(lockdown=lockdown)
    cluster = making.create_cluster(azure.account, "locked", "rg", lockdown=True)
    making.create_pool(azure.account, cluster, "gpu", SIZE, count=1)
    scale_set = azure.account.scale_set(SUBSCRIPTION, cluster.node_group, f"aks-gpu-{cluster.hash}-vmss")
    for method, path, body in (
        ("PATCH", scale_set.id, {"sku": {"capacity": 2}}),
        ("POST", f"{scale_set.id}/delete", {"instanceIds": ["0"]}),
    ):
        seen, refused, _ = await azure.call(method, path, body)
        assert (seen, refused["error"]["code"]) == (status, lockdown)
    assert (await azure.call("GET", f"{scale_set.id}/virtualMachines"))[0] == 200
    assert (await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"count": 2}}))[0] == 200
    azure.later(60)
    assert scale_set.capacity == 2


async def test_a_system_pool_keeps_a_machine_and_fixed_properties_stay(azure: Azure, cluster: Cluster) -> None:
    assert (await azure.call("PUT", path_of(cluster, "nodepool1"), {"properties": {"count": 0}}))[0] == 400
    status, refused, _ = await azure.call("PUT", path_of(cluster, "gpu"), {"properties": {"vmSize": LARGE}})
    assert (status, refused["code"]) == (400, "PropertyChangeNotAllowed")


async def test_pools_are_made_and_deleted(azure: Azure, cluster: Cluster) -> None:
    client = azure.aks()
    wanted = {"properties": {"count": 1, "vmSize": SIZE, "mode": "User", "enableAutoScaling": True, "minCount": 0, "maxCount": 3}}
    poller = await client.agent_pools.begin_create_or_update("rg", "aks", "new", wanted)
    azure.later(60)
    assert (await poller.result()).enable_auto_scaling is True
    poller = await client.agent_pools.begin_delete("rg", "aks", "new")
    azure.later(60)
    await poller.result()
    assert "new" not in cluster.pools
    assert f"aks-new-{cluster.hash}-vmss" not in azure.account.group(SUBSCRIPTION, cluster.node_group).scale_sets
    status, refused, _ = await azure.call("GET", path_of(cluster, "new"))
    assert (status, refused["code"]) == (404, "NotFound")
    status, refused, _ = await azure.call("GET", cluster.id.replace("/aks", "/none"))
    assert (status, refused["error"]["code"]) == (404, "ResourceNotFound")
