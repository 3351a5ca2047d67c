"""Calls about AKS clusters, agent pools and their machines."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.azure.aks import pools
from gpuscaler.embedded.azure.aks.models import VIRTUAL_MACHINES, cluster_json, pool_json, pool_settings
from gpuscaler.embedded.azure.compute.guarding import check_etag
from gpuscaler.embedded.azure.compute.operating import accepted
from gpuscaler.embedded.azure.compute.views import machine_id
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import CREATING, SUCCEEDED, UPDATING, AgentPool, Cluster, Machine, Operation, ScaleSet
from gpuscaler.embedded.azure.wire.errors import bad_request, refusal
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.model.azure_names import fold_id

#: Properties of a pool that cannot change.
_FIXED: Final = ("vmSize", "type", "scaleSetPriority", "scaleSetEvictionPolicy", "availabilityZones", "gpuInstanceProfile", "osType")
_MOST: Final = 1000


def _cluster(account: Contents, call: Call) -> Cluster:
    return account.cluster(call.names["subscription"], call.names["group"], call.names["cluster"])


def _pool(account: Contents, call: Call) -> tuple[Cluster, AgentPool]:
    cluster = _cluster(account, call)
    found = cluster.pools.get(call.names["pool"].lower())
    if found is None:
        text = f"Could not find the agentpool: {call.names['pool']} in cluster {cluster.name}."
        raise refusal("NotFound", text, status=404)
    return cluster, found


def _list_clusters(account: Contents, call: Call) -> Reply:
    subscription, group = account.check_subscription(call.names["subscription"]), call.names.get("group", "")
    if group:
        account.group(subscription, group)
    found = [
        cluster_json(cluster)
        for cluster in account.all_clusters()
        if fold_id(cluster.subscription) == fold_id(subscription) and (not group or fold_id(cluster.group) == fold_id(group))
    ]
    return page(call, found, account.conditions.page)


def _get_cluster(account: Contents, call: Call) -> Reply:
    cluster = _cluster(account, call)
    return Reply(cluster_json(cluster), headers={"etag": f'"{cluster.etag}"'})


def _put_cluster(account: Contents, call: Call) -> Reply:
    """Only an existing cluster's tags and properties can be changed."""
    cluster = _cluster(account, call)
    check_etag(call, cluster.etag)
    _check_idle(cluster, None)
    body = call.json()
    cluster.tags = dict(body.get("tags") or cluster.tags)
    hidden = {"agentPoolProfiles", "provisioningState", "powerState", "nodeResourceGroup"}
    cluster.settings |= {key: value for key, value in (body.get("properties") or {}).items() if key not in hidden}
    operation = account.begin(cluster.subscription, cluster.location, "Microsoft.ContainerService")
    cluster.operation, cluster.state = operation, UPDATING
    cluster.version += 1

    def finish(_ended: Operation) -> None:
        cluster.state = SUCCEEDED

    operation.then = finish
    account.put(account.time + account.conditions.aks_end, lambda: account.end(operation, SUCCEEDED))
    headers = {**accepted(account, call, operation, location=False), "etag": f'"{cluster.etag}"'}
    return Reply(cluster_json(cluster), headers=headers)


def _list_pools(account: Contents, call: Call) -> Reply:
    cluster = _cluster(account, call)
    return page(call, [pool_json(cluster, pool) for pool in cluster.pools.values()], account.conditions.page)


def _get_pool(account: Contents, call: Call) -> Reply:
    cluster, pool = _pool(account, call)
    return Reply(pool_json(cluster, pool), headers={"etag": f'"{pool.etag}"'})


def _check_idle(cluster: Cluster, pool: AgentPool | None) -> None:
    """Raise :class:`AzureError` (409) while an operation on the cluster or the pool runs; a cluster also waits for all of its pools."""
    others = [cluster.operation] + ([pool.operation] if pool is not None else [one.operation for one in cluster.pools.values()])
    for operation in others:
        if operation is not None and operation.running:
            what = f"agent pool {pool.name}" if pool is not None else f"managed cluster {cluster.name}"
            text = f"Operation is not allowed because there's an in progress operation ({operation.id}) on the {what}."
            raise refusal("OperationNotAllowed", f"{text} Please wait for it to finish before starting a new operation.", status=409)


def _put_pool(account: Contents, call: Call) -> Reply:
    cluster = _cluster(account, call)
    name = call.names["pool"]
    existing = cluster.pools.get(name.lower())
    check_etag(call, existing.etag if existing is not None else "", exists=existing is not None)
    _check_idle(cluster, existing)
    properties = call.json().get("properties") or {}
    if not isinstance(properties, dict):
        raise bad_request("The request content was invalid.", code="InvalidRequestContent")
    if existing is None:
        if not (name.isalnum() and name.islower() and len(name) <= 12):
            raise bad_request(f"The agent pool name '{name}' must be lower-case letters and digits, 12 at most.", target="agentPoolName")
        pool = pools.make_pool(account, cluster, name, properties)
        new = True
    else:
        pool, new = existing, False
        _change(account, cluster, pool, properties)
    operation = pools.scale(account, cluster, pool, _wanted(pool, properties))
    if new:
        pool.state = CREATING
    headers = {**accepted(account, call, operation, location=False), "etag": f'"{pool.etag}"'}
    return Reply(pool_json(cluster, pool), status=201 if new else 200, headers=headers)


def _change(account: Contents, cluster: Cluster, pool: AgentPool, properties: Mapping[str, Any]) -> None:
    """Take over the properties of a PUT; those that are missing stay, unless AKS resets them."""
    for field in _FIXED:
        before, after = pool.settings.get(field), properties.get(field)
        if after is not None and before is not None and after != before and not (field == "vmSize" and after.lower() == before.lower()):
            text = f"Changing property 'properties.{field}' is not allowed."
            raise refusal("PropertyChangeNotAllowed", text, target=f"properties.{field}")
    settings = pool_settings({**pool.settings, **{key: value for key, value in properties.items() if value is not None}})
    if pool.kind == VIRTUAL_MACHINES:
        rows = pools.manual_scale(settings)
        if len(rows) > 5:
            raise bad_request("A VirtualMachines agent pool can have at most 5 scale profiles.", target="virtualMachinesProfile")
        for row in rows:
            if row["size"].lower() not in pool.profiles:
                pools.add_profile(account, cluster, pool, row["size"])
    pool.settings = settings


def _wanted(pool: AgentPool, properties: Mapping[str, Any]) -> dict[str, int]:
    """The machines that a PUT wants, by size in lower case."""
    if pool.kind == VIRTUAL_MACHINES:
        counts = dict.fromkeys(pool.profiles, 0) if "virtualMachinesProfile" in properties else {}
        counts |= {row["size"].lower(): row["count"] for row in pools.manual_scale(properties)}
    else:
        size = str(pool.settings["vmSize"]).lower()
        count = properties.get("count")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
            raise bad_request(f"The value of parameter agentPoolProfile.count is invalid: {count}.", target="agentPoolProfile.count")
        counts = {size: pool.count if count is None else count}
    for count in counts.values():
        if not 0 <= count <= _MOST:
            raise bad_request(f"The value of parameter agentPoolProfile.count is invalid: {count}.", target="agentPoolProfile.count")
    if pool.settings.get("mode") == "System" and sum(counts.values()) < 1:
        text = "The value of parameter agentPoolProfile.count is invalid. A system node pool must have at least 1 node."
        raise bad_request(text, target="agentPoolProfile.count")
    return counts


def _delete_pool(account: Contents, call: Call) -> Reply:
    cluster = _cluster(account, call)
    if call.names["pool"].lower() not in cluster.pools:
        return Reply(status=204)
    cluster, pool = _pool(account, call)
    check_etag(call, pool.etag)
    _check_idle(cluster, pool)
    operation = pools.remove(account, cluster, pool)
    return Reply(status=202, headers=accepted(account, call, operation, location=True))


def _delete_machines(account: Contents, call: Call) -> Reply:
    cluster, pool = _pool(account, call)
    _check_idle(cluster, pool)
    names = call.json().get("machineNames")
    if not isinstance(names, list) or not names:
        raise bad_request("Required parameter 'machineNames' is missing.", target="machineNames")
    if pool.settings.get("mode") == "System" and len(set(names)) >= max(1, pool.count):
        raise bad_request("A system node pool must have at least 1 node.", target="machineNames")
    operation = pools.delete_machines(account, cluster, pool, [str(name) for name in names])
    return Reply(status=202, headers=accepted(account, call, operation, location=True))


def _machine_json(cluster: Cluster, pool: AgentPool, scale_set: ScaleSet, machine: Machine) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": f"{cluster.id}/agentPools/{pool.name}/machines/{machine.computer}",
        "name": machine.computer,
        "type": "Microsoft.ContainerService/managedClusters/agentPools/machines",
        "properties": {"resourceId": machine_id(scale_set, machine), "network": {"ipAddresses": []}},
    }
    if machine.zone not in {"", "0"}:
        shown["zones"] = [machine.zone]
    return shown


def _list_machines(account: Contents, call: Call) -> Reply:
    cluster, pool = _pool(account, call)
    machines = [
        _machine_json(cluster, pool, scale_set, machine)
        for scale_set in pools.sets_of(account, cluster, pool)
        for machine in scale_set.machines.values()
    ]
    return page(call, machines, account.conditions.page)


def _get_machine(account: Contents, call: Call) -> Reply:
    cluster, pool = _pool(account, call)
    for scale_set in pools.sets_of(account, cluster, pool):
        for machine in scale_set.machines.values():
            if machine.computer.lower() == call.names["machine"].lower():
                return Reply(_machine_json(cluster, pool, scale_set, machine))
    raise refusal("NotFound", f"Could not find the machine: {call.names['machine']}.", status=404)


_ALL: Final = "/subscriptions/{subscription}/providers/Microsoft.ContainerService/managedClusters"
_GROUP: Final = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService/managedClusters"
_POOLS: Final = f"{_GROUP}/{{cluster}}/agentPools"
ROUTES: Final = (
    Route("GET", _ALL, _list_clusters, "aks-list"),
    Route("GET", _GROUP, _list_clusters, "aks-list"),
    Route("GET", f"{_GROUP}/{{cluster}}", _get_cluster, "aks-get"),
    Route("PUT", f"{_GROUP}/{{cluster}}", _put_cluster, "aks-put-cluster"),
    Route("GET", _POOLS, _list_pools, "aks-list"),
    Route("GET", f"{_POOLS}/{{pool}}", _get_pool, "aks-get"),
    Route("PUT", f"{_POOLS}/{{pool}}", _put_pool, "aks-put-pool"),
    Route("DELETE", f"{_POOLS}/{{pool}}", _delete_pool, "aks-put-pool"),
    Route("POST", f"{_POOLS}/{{pool}}/deleteMachines", _delete_machines, "aks-put-pool"),
    Route("GET", f"{_POOLS}/{{pool}}/machines", _list_machines, "aks-list"),
    Route("GET", f"{_POOLS}/{{pool}}/machines/{{machine}}", _get_machine, "aks-get"),
)
