"""What nodes on AWS register with, and the tags of their Auto Scaling groups: the same for all tools that make groups.

Sources, 2026-11-26: Cluster Autoscaler's page about AWS, "Auto-Discovery Setup"; the EKS user guide, "Customize managed nodes with launch
templates"; amazon-eks-ami, ``nodeadm/doc/api.md`` and ``doc/examples.md``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER, ENABLED
from gpuscaler.clouds.discovery.hints import LABEL, TAINT
from gpuscaler.generating.description.resolved import NodeGroup
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

#: Cluster Autoscaler waits for the GPUs of a new node only if the node has this label (its aws_cloud_provider.go, ``GPULabel``).
ACCELERATOR: Final = "k8s.amazonaws.com/accelerator"
ARRIVING: Final = Taint(ARRIVING_TAINT, "", "NoSchedule")

#: The root volume of the images of EKS for Amazon Linux. Its size is :attr:`NodeGroup.disk_gib`.
ROOT_DEVICE: Final = "/dev/xvda"
VOLUME_TYPE: Final = "gp3"
#: IMDSv2 only, and only for the machine itself: a second hop would let every pod take the credentials of the machine's role.
HTTP_TOKENS: Final = "required"
HOP_LIMIT: Final = 1
_BOUNDARY: Final = "NODE-CONFIG"


def node_labels(group: NodeGroup) -> Mapping[str, str]:
    """Return the labels that nodes register with. The labels of the description come last and take precedence.

    The pool's label is among them because Auto Scaling groups of EKS have names with a random part; gpuscaler then calls the pool by it.
    """
    type_ = group.instance_type
    return {POOL_LABEL: group.name, ACCELERATOR: f"{type_.gpu_manufacturer}-{type_.gpu_karpenter_name}", **group.labels}


def node_taints(group: NodeGroup) -> tuple[Taint, ...]:
    """Return all taints that nodes register with, gpuscaler's first.

    All must be set in one place: the kubelet uses only its last ``--register-with-taints``, and its configuration only without the flag.
    """
    return (ARRIVING, *group.taints)


def discovery_tags(cluster: str) -> Mapping[str, str]:
    """Return the tags by which gpuscaler and Cluster Autoscaler find a group. EKS puts them on its managed node groups itself."""
    return {ENABLED: "true", f"{CLUSTER_AUTOSCALER}{cluster}": "owned"}


def label_tags(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the tags that say which labels a node will have, while the group has none."""
    return {f"{LABEL}{key}": value for key, value in labels.items()}


def taint_tags(taints: Iterable[Taint]) -> Mapping[str, str]:
    """Return the tags that say which taints a node will register with, as ``VALUE:EFFECT``.

    gpuscaler's own is among them; gpuscaler knows that it goes away. Of taints with one key, only the last has a tag: tags are called by
    the key alone.
    """
    return {f"{TAINT}{taint.key}": f"{taint.value}:{taint.effect}" for taint in taints}


def group_tags(group: NodeGroup, cluster: str) -> Mapping[str, str]:
    """Return all tags of the Auto Scaling group of a self-managed group. They need not be propagated to machines."""
    return {**discovery_tags(cluster), **label_tags(node_labels(group)), **taint_tags(node_taints(group))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What nodeadm must know of the cluster; each may be an expression of the tool, such as ``${aws_eks_cluster.this.endpoint}``."""

    name: str
    endpoint: str
    authority: str
    cidr: str


def node_config(facts: ClusterFacts, labels: Mapping[str, str], taints: Iterable[Taint]) -> str:
    """Return nodeadm's NodeConfig of a self-managed machine (Amazon Linux 2023), as YAML.

    Labels can only be set by a flag. Taints are in the kubelet's configuration, which applies only if no flag sets any.
    """
    spec = {
        "cluster": {"name": facts.name, "apiServerEndpoint": facts.endpoint, "certificateAuthority": facts.authority, "cidr": facts.cidr},
        "kubelet": {
            "config": {"registerWithTaints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]},
            "flags": [f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}"],
        },
    }
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return yaml.safe_dump(config, sort_keys=False, width=10**6)


def user_data(node_config: str) -> str:
    """Return the NodeConfig as a MIME message, the form of user data that EKS merges with its own and nodeadm reads in all its versions."""
    return "\n".join(
        (
            "MIME-Version: 1.0",
            f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"',
            "",
            f"--{_BOUNDARY}",
            "Content-Type: application/node.eks.aws",
            "",
            node_config.rstrip("\n"),
            "",
            f"--{_BOUNDARY}--",
            "",
        )
    )
