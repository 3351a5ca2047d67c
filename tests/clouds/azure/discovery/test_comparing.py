from typing import Any

from tests.clouds.azure.documents.documents import NODE_GROUP, SIZE, SUBSCRIPTION, agent_pool, aks_resources, built, own_resources, set_id

from gpuscaler.clouds.azure.discovery.comparing import corrected_by_nodes
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.model.nodes import Node

POOL = built(aks_resources({"nodeLabels": {"team": "ml"}}))
MACHINE = f"azure://{set_id('aks-gpu-12345678-vmss').lower()}/virtualMachines/0"


def node(provider_id: str = MACHINE, **fields: Any) -> Node:
    (offering,) = POOL.pool.offerings
    labels = {key: value for key, value in offering.labels.items() if key != "team"}
    return Node("aks-gpu-12345678-vmss000000", labels, offering.allocatable, taints=offering.taints, provider_id=provider_id, **fields)


def without_team(pool: AzurePool) -> bool:
    return all("team" not in offering.labels for offering in pool.pool.offerings)


def test_nodes_of_the_scale_set_take_precedence_in_any_spelling_of_their_id() -> None:
    corrected = corrected_by_nodes(POOL, [node()])

    assert without_team(corrected)
    assert corrected.warnings[-1].startswith("the label team=ml is on none of its 1 node")


def test_nodes_of_other_scale_sets_or_clouds_and_unready_ones_do_not_count() -> None:
    others = [
        node(f"azure://{set_id('aks-other-12345678-vmss')}/virtualMachines/0"),
        node("aws:///us-east-1a/i-0"),
        node(f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/{NODE_GROUP}/providers/Microsoft.Compute/virtualMachines/x"),
        node(ready=False),
    ]

    assert corrected_by_nodes(POOL, others) == POOL


def test_nodes_of_a_pool_of_virtual_machines_are_told_by_their_label() -> None:
    manual = [{"size": SIZE, "count": 1}]
    properties = {"type": "VirtualMachines", "virtualMachinesProfile": {"scale": {"manual": manual}}, "nodeLabels": {"team": "ml"}}
    machines = built(PoolResources(None, agent_pool(**properties)))
    machine = (
        f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/{NODE_GROUP}/providers/Microsoft.Compute/virtualMachines/aks-gpu-1-vms0"
    )

    assert without_team(corrected_by_nodes(machines, [node(machine)]))
    assert corrected_by_nodes(machines, [node()]) == machines


def test_nodes_of_a_flexible_set_are_told_by_its_name_in_theirs() -> None:
    flexible = built(own_resources(orchestrationMode="Flexible", tags={"k8s.io_cluster-autoscaler_node-template_label_team": "ml"}))
    machine = f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/OWN/providers/Microsoft.Compute/virtualMachines/workers_1a2b3c4d"

    assert without_team(corrected_by_nodes(flexible, [node(machine)]))
    assert corrected_by_nodes(flexible, [node(machine.replace("workers_", "others_"))]) == flexible


def test_a_node_without_its_devices_does_not_count() -> None:
    bare = Node("new", {"node.kubernetes.io/instance-type": SIZE}, {"cpu": 1000}, provider_id=MACHINE)

    assert corrected_by_nodes(POOL, [bare]) == POOL
