"""What nodes on AWS register with, read back as gpuscaler reads it in an account."""

import base64
from dataclasses import replace

from tests.generating.corpus import description

from gpuscaler.clouds.aws.discovery.ownership import decide_ownership
from gpuscaler.clouds.aws.templates.user_data import kubelet_of
from gpuscaler.clouds.discovery.hints import hints_of
from gpuscaler.generating.aws.nodes import ClusterFacts, group_tags, node_config, node_labels, node_taints, user_data
from gpuscaler.model.taints import Taint

GROUP = description("s1-eksctl").groups[0]
FACTS = ClusterFacts(name="eks-gpu", endpoint="https://example", authority="Zm9v", cidr="10.100.0.0/16")


def test_user_data_registers_nodes_with_all_labels_and_taints() -> None:
    text = user_data(node_config(FACTS, node_labels(GROUP), node_taints(GROUP)))
    kubelet = kubelet_of(base64.b64encode(text.encode()).decode())
    assert kubelet.labels == {"gpuscaler.io/pool": "one-gpu-spot-a", "k8s.amazonaws.com/accelerator": "nvidia-tesla"}
    assert kubelet.taints == (Taint("gpuscaler.io/arriving", "", "NoSchedule"), Taint("nvidia.com/gpu", "present", "NoSchedule"))
    assert not kubelet.replaces


def test_tags_find_the_group_and_describe_its_nodes() -> None:
    tags = group_tags(GROUP, "eks-gpu")
    assert decide_ownership("asg", tags, cluster="eks-gpu", named=(), extra={}).source == "cluster-autoscaler"
    assert decide_ownership("asg", tags, cluster="other", named=(), extra={}).foreign
    hints = hints_of(tags)
    assert (hints.labels, hints.taints) == (node_labels(GROUP), node_taints(GROUP))
    assert not hints.warnings


def test_labels_of_the_description_take_precedence() -> None:
    labels = node_labels(replace(GROUP, labels={"k8s.amazonaws.com/accelerator": "mine"}))
    assert labels == {"gpuscaler.io/pool": "one-gpu-spot-a", "k8s.amazonaws.com/accelerator": "mine"}
    assert node_labels(replace(GROUP, labels={}))["k8s.amazonaws.com/accelerator"] == "nvidia-a10g"
