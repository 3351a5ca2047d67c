import pytest
from tests.clouds.azure.documents.documents import NODE_GROUP, SIZE, agent_pool, sku

from gpuscaler.clouds.azure.templates.node_templates import NodeTemplate, taint_of
from gpuscaler.clouds.azure.templates.tags import tag_hints
from gpuscaler.model.taints import Taint

#: The labels of a node with a GPU that AKS made, without those of its image, network and identity.
AKS_LABELS = {
    "agentpool": "gpu",
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/instance-type": SIZE,
    "beta.kubernetes.io/os": "linux",
    "failure-domain.beta.kubernetes.io/region": "eastus",
    "failure-domain.beta.kubernetes.io/zone": "0",
    "kubernetes.azure.com/accelerator": "nvidia",
    "kubernetes.azure.com/agentpool": "gpu",
    "kubernetes.azure.com/cluster": NODE_GROUP,
    "kubernetes.azure.com/mode": "user",
    "kubernetes.azure.com/nodepool-type": "VirtualMachineScaleSets",
    "kubernetes.azure.com/role": "agent",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": SIZE,
    "topology.disk.csi.azure.com/zone": "",
    "topology.kubernetes.io/region": "eastus",
    "topology.kubernetes.io/zone": "0",
}


def test_a_node_of_aks_has_the_labels_that_aks_puts_on_it() -> None:
    offering = NodeTemplate("gpu", "eastus", agent_pool=agent_pool()).offering(sku(), market="on-demand", zone="", price=1.0)

    assert offering.labels == AKS_LABELS


def test_a_zonal_node_names_its_zone_in_all_three_labels() -> None:
    offering = NodeTemplate("gpu", "eastus", agent_pool=agent_pool()).offering(sku(), market="on-demand", zone="2", price=1.0)

    assert offering.zone == "eastus-2"
    zones = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone", "topology.disk.csi.azure.com/zone")
    assert {offering.labels[key] for key in zones} == {"eastus-2"}


def test_a_reserved_node_looks_like_one_on_demand() -> None:
    template = NodeTemplate("gpu", "eastus", agent_pool=agent_pool())
    reserved, listed = (template.offering(sku(), market=market, zone="", price=0.0) for market in ("reserved", "on-demand"))

    assert reserved.labels == listed.labels


def test_labels_of_the_pool_come_before_akss_and_tags_before_both() -> None:
    pool = agent_pool(nodeLabels={"team": "ml", "agentpool": "other", "bad key": "x", "long": "x" * 64})
    hints = tag_hints({"k8s.io_cluster-autoscaler_node-template_label_team": "research"})
    template = NodeTemplate("gpu", "eastus", hints, pool)
    labels = template.offering(sku(), market="on-demand", zone="", price=1.0).labels

    assert (labels["team"], labels["agentpool"]) == ("research", "other")
    assert not {"bad key", "long"} & labels.keys()
    assert template.configured_labels() == ("agentpool", "team")


def test_a_node_of_amd_has_no_label_of_nvidia() -> None:
    offering = NodeTemplate("gpu", "eastus", agent_pool=agent_pool()).offering(
        sku("Standard_ND96isr_MI300X_v5", GPUs="8"), market="on-demand", zone="", price=1.0
    )

    assert "kubernetes.azure.com/accelerator" not in offering.labels
    assert offering.allocatable["amd.com/gpu"] == 8


def test_the_pools_number_of_pods_and_its_disk_count() -> None:
    few, many = agent_pool(maxPods=30, osDiskSizeGB=128), agent_pool(maxPods=250, osDiskSizeGB=512)
    first, second = (NodeTemplate("gpu", "eastus", agent_pool=pool).allocatable(sku()) for pool in (few, many))

    assert (first["pods"], second["pods"]) == (30, 250)
    assert first["memory"] > second["memory"]
    assert second["ephemeral-storage"] > 3 * first["ephemeral-storage"]
    assert first["nvidia.com/gpu"] == 1


def test_a_node_without_aks_has_only_what_kubernetes_writes() -> None:
    offering = NodeTemplate("workers", "eastus").offering(sku(), market="spot", zone="1", price=1.0)

    assert not any("kubernetes.azure.com" in key for key in offering.labels)
    assert offering.taints == ()


def test_startup_taints_are_not_on_the_open_node() -> None:
    pool = agent_pool(nodeTaints=["gpuscaler.io/arriving:NoSchedule", "sku=gpu:NoSchedule", "nonsense", "a=b:Never"])

    assert NodeTemplate("gpu", "eastus", agent_pool=pool).taints("on-demand") == (Taint("sku", "gpu"),)


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("sku=gpu:NoSchedule", Taint("sku", "gpu", "NoSchedule")),
        ("sku:NoExecute", Taint("sku", "", "NoExecute")),
        ("sku=gpu", None),
        ("sku=gpu:Never", None),
        (":NoSchedule", None),
        ("a b=c:NoSchedule", None),
    ],
)
def test_taints_are_read_as_aks_writes_them(text: str, taint: Taint | None) -> None:
    assert taint_of(text) == taint


def test_nodes_are_identified_by_their_pool_and_place() -> None:
    template = NodeTemplate("gpu", "eastus", agent_pool=agent_pool())

    assert template.identifying_labels(("2",)) == {"topology.kubernetes.io/zone": "eastus-2", "kubernetes.azure.com/agentpool": "gpu"}
    assert template.identifying_labels(()) == {"topology.kubernetes.io/region": "eastus", "kubernetes.azure.com/agentpool": "gpu"}
