"""Nodes on which the chart's pods may run: with labels of clouds, kOps and vendors' discoveries, and without feature discovery."""

import functools
import json
from io import BytesIO
from typing import Any

import pytest
from tests.charts.rendering import render
from tests.embedded.aws.recorded_nodes import KOPS_NODE, MANAGED

from gpuscaler.catalogue import types
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.text.streaming import read_items
from gpuscaler.model.nodes import Node
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.capacity.node_templates import runs_on

pytestmark = pytest.mark.charts

TYPE = "node.kubernetes.io/instance-type"
#: Recorded keys, with a neutral value.
EKS, KOPS = (dict.fromkeys(kind.labels, "x") for kind in (MANAGED, KOPS_NODE))
NVIDIA: dict[str, dict[str, str]] = {
    "EKS node group": {**EKS, TYPE: "g5.xlarge"},
    "EKS Auto Mode": {
        TYPE: "g99.xlarge",
        "eks.amazonaws.com/instance-gpu-count": "1",
        "eks.amazonaws.com/instance-gpu-manufacturer": "nvidia",
    },
    "Karpenter on AWS": {"karpenter.k8s.aws/instance-gpu-count": "1", "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    "kOps": {**KOPS, TYPE: "g99.xlarge", "kops.k8s.io/gpu": "1"},
    "kOps without its own driver": {**KOPS, TYPE: "p4d.24xlarge"},
    "Cluster Autoscaler on AWS": {**EKS, TYPE: "g99.xlarge", "k8s.amazonaws.com/accelerator": "nvidia-tesla-a10g"},
    "a pool of ours": {**EKS, TYPE: "g99.xlarge", "gpuscaler.io/pool": "gpu"},
    "ACK": {TYPE: "ecs.gn7i-c8g1.2xlarge", "aliyun.accelerator/nvidia_name": "NVIDIA-A10"},
    "AKS": {TYPE: "Standard_NC99", "kubernetes.azure.com/accelerator": "nvidia", "accelerator": "nvidia"},
    "AKS by type": {TYPE: "Standard_NC24ads_A100_v4"},
    "Karpenter on Azure": {"karpenter.azure.com/sku-gpu-count": "1", "karpenter.azure.com/sku-gpu-manufacturer": "nvidia"},
    "GKE": {TYPE: "g99-standard-4", "cloud.google.com/gke-accelerator": "nvidia-l4"},
    "GPU feature discovery": {"nvidia.com/gpu.present": "true"},
    "node feature discovery": {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
}
AMD: dict[str, dict[str, str]] = {
    "EKS node group": {**EKS, TYPE: "g4ad.xlarge"},
    "Karpenter on AWS": {"karpenter.k8s.aws/instance-gpu-count": "1", "karpenter.k8s.aws/instance-gpu-manufacturer": "amd"},
    "AKS": {"kubernetes.azure.com/accelerator": "amd"},
    "node labeller": {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"},
}
PLAIN: dict[str, dict[str, str]] = {
    "EKS node group": {**EKS, TYPE: "m5.large"},
    "kOps": {**KOPS, TYPE: "c5.large"},
    "Karpenter on Azure": {TYPE: "Standard_D16_v5", "karpenter.azure.com/sku-gpu-count": "0"},
    "GPU feature discovery": {"nvidia.com/gpu.present": "false"},
    "no labels at all": {},
}


@functools.cache
def pods(more: str = "{}") -> tuple[Workload, Workload]:
    """Render controller and exporter, as JSON."""
    made = render({"exporter": {"enabled": True}, **json.loads(more)})
    wanted = [made["Deployment/gpuscaler-controller"], made["DaemonSet/gpuscaler-exporter"]]
    listed = {"apiVersion": "v1", "kind": "List", "items": wanted}
    controller, exporter = read_items(BytesIO(json.dumps(listed).encode()), Interner())
    assert isinstance(controller, Workload)
    assert isinstance(exporter, Workload)
    return controller, exporter


def placed(labels: dict[str, str], more: dict[str, Any] | None = None) -> tuple[bool, bool]:
    """Whether the controller may run on a node with these labels, and whether the exporter does."""
    node = Node(name="n", labels={**labels, "kubernetes.io/os": "linux"}, allocatable={}, taints=(), created=0.0)
    controller, exporter = pods(json.dumps(more or {}))
    return runs_on(controller, node), runs_on(exporter, node)


@pytest.mark.parametrize("labels", NVIDIA.values(), ids=NVIDIA.keys())
def test_nodes_with_nvidia_gpus_run_the_exporter_and_not_the_controller(labels: dict[str, str]) -> None:
    assert placed(labels) == (False, True)


@pytest.mark.parametrize("labels", AMD.values(), ids=AMD.keys())
def test_the_exporter_and_the_controller_avoid_nodes_with_other_gpus(labels: dict[str, str]) -> None:
    assert placed(labels) == (False, False)


@pytest.mark.parametrize("labels", PLAIN.values(), ids=PLAIN.keys())
def test_nodes_without_gpus_run_only_the_controller(labels: dict[str, str]) -> None:
    assert placed(labels) == (True, False)


def test_every_gpu_type_of_the_catalogue_is_recognised_by_its_name() -> None:
    made = {
        instance_type.name: placed({TYPE: instance_type.name})
        for instance_type in types()
        if instance_type.name in {"g6e.xlarge", "g4ad.xlarge", "m5.large", "a2-highgpu-1g"}
    }

    assert made["g6e.xlarge"] == (False, True)
    assert made["g4ad.xlarge"] == (False, False)
    assert made["a2-highgpu-1g"] == (False, True)


def test_the_exporter_does_not_run_while_the_gpu_operator_changes_a_driver() -> None:
    for value in ("paused-for-driver-upgrade", "paused-for-mig-change"):
        assert placed({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.client": value}) == (False, False)


def test_configured_node_affinity_terms_replace_those_of_the_chart_and_other_affinity_is_added() -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "team", "operator": "Exists"}]}]}
    own = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    near: dict[str, Any] = {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
    on_gpus = {"nvidia.com/gpu.present": "true"}

    assert placed({"team": "x", **on_gpus}, {"controller": own}) == (True, True)
    assert placed(on_gpus, {"controller": own}) == (False, True)
    assert placed(on_gpus, {"controller": near}) == (False, True)
    assert "podAntiAffinity" in render({"controller": near})["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]["affinity"]
