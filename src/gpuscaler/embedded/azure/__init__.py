"""An Azure Resource Manager endpoint of our own, over HTTP: Azure's SDKs, the Azure CLI's REST calls and gpuscaler can use it.

Fill an account, serve it, and move its clock::

    from gpuscaler.embedded.azure import Account, Conditions, Endpoint, making, serve

    clock = [1_790_000_000.0]
    account = Account(now=lambda: clock[0], locations=("eastus",), conditions=Conditions(allocation=5.0, retry_after=0))
    cluster = making.create_cluster(account, "aks", "rg")        # with nodepool1; machines are in the group cluster.node_group
    size = "Standard_NC24ads_A100_v4"
    pool = making.create_pool(account, cluster, "gpuspot", size, spot=True, zones=("1", "2"), taints=("sku=gpu:NoSchedule",))
    mixed = making.create_pool(account, cluster, "mixed", {size: 1, "Standard_NC48ads_A100_v4": 0})  # of type VirtualMachines
    own = making.create_scale_set(account, "mine", "workers", "Standard_D8s_v5", count=2, tags={...}, flexible=False)
    making.set_limit(account, 3, market="spot", size=size, zone="eastus-1", code="OverconstrainedZonalAllocationRequest")
    making.add_trouble(account, "AllocationFailed", market="spot", times=2)   # fails allocations; status=409 or the code: fails the write
    making.set_quota(account, "StandardNCADSA100v4Family", 200)               # or cores, lowPriorityCores
    making.restrict(account, size, zones=("3",))                              # in Resource SKUs, and SkuNotAvailable
    endpoint = Endpoint(account)
    serving = await serve(endpoint, host="127.0.0.1", port=0, speed=1.0)      # serving.url; await serving.close()
    clock[0] += 60; account.advance()                                         # operations end, machines run

``account.scale_set(subscription, group, name)`` and ``account.cluster(...)`` show the contents (``.capacity``, ``.machines``, ``.pools``);
``account.conditions`` can be replaced at any time (``msgspec.structs.replace``); ``endpoint.faults.all`` takes
:class:`~gpuscaler.embedded.azure.serving.faults.Fault` (throttling, outages, answers lost ``before`` or ``after`` their effect);
``endpoint.count("PUT", "virtualMachineScaleSets/{set}")`` counts calls. ``making.evict`` reclaims a machine with its notice;
``account.forget_operations()`` loses the URLs of operations; ``account.preempt_deletions = 1`` lets the next write
end running deletions as OperationPreempted. Everything but the account's Python API is at the same URL: ARM, ``/TENANT/oauth2/v2.0/token``,
``/metadata`` (managed identity, scheduled events), ``/api/retail/prices``, and ``/_control``.
"""

from gpuscaler.embedded.azure import making
from gpuscaler.embedded.azure.account import Account
from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.contents import SUBSCRIPTION, TENANT
from gpuscaler.embedded.azure.serving.endpoint import Endpoint
from gpuscaler.embedded.azure.serving.faults import Fault
from gpuscaler.embedded.azure.serving.server import serve
from gpuscaler.embedded.serving.listening import Serving

__all__ = ["SUBSCRIPTION", "TENANT", "Account", "Conditions", "Endpoint", "Fault", "Serving", "making", "serve"]
