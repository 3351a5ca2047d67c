"""ClusterConfigs of eksctl: the cluster and its node groups, or the node groups alone, and who may take the controller's role.

Facts about eksctl are from its sources at v0.215.0 and at commit 0027506e8f39, read on 2026-11-26; docs/reference/generated-files.md names
them. They decide where things are written here:

- ``taints`` become one flag of the kubelet (self-managed) or taints of the node group (managed), so all taints are there, and none in user
  data;
- ``propagateASGTags`` writes tags of taints without the effect, so these are in ``tags``, which come after and win;
- ``tags`` of managed groups reach the Auto Scaling group only with ``propagateASGTags``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuscaler.generating.aws.eksctl_commands import cluster_edits, create_commands, identity_commands, identity_edits
from gpuscaler.generating.aws.eksctl_groups import general_group, gpu_group, like_the_first
from gpuscaler.generating.aws.general import NETWORK_POLICIES, WHY_NETWORK_POLICIES, control_plane_zones, general_groups
from gpuscaler.generating.aws.names import controller_role_arn
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import EKSCTL, IRSA, POD_IDENTITY
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, yaml_file

CLUSTER_PATH: Final = "eksctl/cluster.yaml"
IDENTITY_PATH: Final = "eksctl/identity.yaml"
#: Regions without the add-on metrics-server begin so (eksctl's known_addons.go).
NO_METRICS_SERVER: Final = ("cn-", "us-gov-")


def eksctl_files(description: Description) -> Iterable[GeneratedFile]:
    """Yield the ClusterConfig of the cluster or of its GPU groups."""
    if description.tool != EKSCTL:
        return
    about = "the cluster and its node groups" if description.cluster.create else "the GPU node groups, for a cluster that exists"
    config = {**_head(description), **_cluster(description), **_groups(description)}
    yield yaml_file(CLUSTER_PATH, about, [config], apply=create_commands(description, CLUSTER_PATH), edit=cluster_edits(description))


def eksctl_identity_files(description: Description) -> Iterable[GeneratedFile]:
    """Yield the association of gpuscaler's ServiceAccount with the role of the CloudFormation stack, which must exist by then."""
    if description.tool != EKSCTL or description.controller.identity != POD_IDENTITY:
        return
    association = {
        "namespace": because("EKS gives the role to pods of this namespace only.", description.controller.namespace),
        "serviceAccountName": because(
            "The chart gives this ServiceAccount to the controller's pods if the release is called gpuscaler.", SERVICE_ACCOUNT
        ),
        "roleARN": because(
            "The role is made by the CloudFormation stack, which must be applied before: EKS refuses roles that do not exist.",
            controller_role_arn(description),
        ),
    }
    config = {**_head(description), "iam": {"podIdentityAssociations": [association]}}
    about = "the association that lets gpuscaler's controller, and nothing else, take the role of the stack"
    yield yaml_file(IDENTITY_PATH, about, [config], apply=identity_commands(description, IDENTITY_PATH), edit=identity_edits(description))


def _head(description: Description) -> dict[str, Tree]:
    metadata: dict[str, Tree] = {
        "name": because(
            "Tags of groups and the controller's rights contain this name. It cannot be changed later.", description.cluster.name
        ),
        "region": because("eksctl looks for the cluster here, or creates it here.", description.cluster.region),
    }
    return {
        "apiVersion": because("This is the only version of the format.", "eksctl.io/v1alpha5"),
        "kind": because("eksctl's files have no other kind.", "ClusterConfig"),
        "metadata": metadata,
    }


def _cluster(description: Description) -> dict[str, Tree]:
    """Return what only a new cluster has."""
    if not description.cluster.create:
        return {}
    head = _head(description)["metadata"]
    version = because(
        "Machines get images of this version, too. EKS supports a version for 14 months, and 12 more at a higher price.",
        description.cluster.version,
    )
    oidc = description.controller.identity == IRSA
    config: dict[str, Tree] = {
        "metadata": {**head, "version": version},
        "availabilityZones": because(
            "eksctl makes subnets in these zones, and groups can have machines in no other. The control plane needs two at least.",
            control_plane_zones(description),
        ),
    }
    config["vpc"] = _vpc(description)
    if oidc:
        why = "gpuscaler's ServiceAccount takes its role with a token of the cluster (IRSA), for which IAM must know the cluster's issuer."
        config["iam"] = {"withOIDC": because(why, True)}
    config["addonsConfig"] = {
        "autoApplyPodIdentityAssociations": because(
            "Add-ons that call AWS get roles of their own. aws-ebs-csi-driver would have no rights otherwise: pods cannot take the role of "
            "their machine here.",
            True,
        )
    }
    config["addons"] = [*_addons(description)]
    logging = {"enableTypes": ["audit", "authenticator"], "logRetentionInDays": 30}
    why = "The audit log says who changed or deleted a node, a pod or a PodDisruptionBudget. CloudWatch bills what it keeps: 30 days here."
    config["cloudWatch"] = {"clusterLogging": because(why, logging)}
    return config


def _vpc(description: Description) -> dict[str, Tree]:
    allowed = description.cluster.api_access
    why = "Machines reach the API server within the network, whatever addresses may use its public endpoint. "
    if allowed:
        why += "That one is open to the addresses below only."
    else:
        why += "That one is open to the whole internet: credentials work from anywhere. eksctl cannot create a cluster without it; "
        why += "cluster.api_access of the description restricts it."
    vpc: dict[str, Tree] = {"clusterEndpoints": because(why, {"publicAccess": True, "privateAccess": True})}
    if allowed:
        vpc["publicAccessCIDRs"] = because("Those that cluster.api_access names. eksctl itself must run from one of them.", list(allowed))
    return vpc


def _addons(description: Description) -> Iterator[Tree]:
    named = {
        "vpc-cni": "It gives pods their addresses. Add-ons are named here so that EKS manages their versions.",
        "coredns": "It resolves names within the cluster.",
        "kube-proxy": "It routes the addresses of Services.",
        "eks-pod-identity-agent": "It hands pods the roles that associations give them. eksctl refuses associations without it.",
        "aws-ebs-csi-driver": "Volumes of pods (PersistentVolumeClaims) are made by it. EKS has no driver of its own.",
    }
    if not description.cluster.region.startswith(NO_METRICS_SERVER):
        named["metrics-server"] = "`kubectl top` and HorizontalPodAutoscalers by CPU and memory need it."
    for name, why in named.items():
        network = {"configurationValues": because(WHY_NETWORK_POLICIES, json.dumps(NETWORK_POLICIES))} if name == "vpc-cni" else {}
        yield because(why, {"name": name, **network})


def _groups(description: Description) -> Mapping[str, Tree]:
    groups: list[Tree] = []
    if description.cluster.create:
        groups += [general_group(description, group) for group in general_groups(description)]
    first = gpu_group(description, description.groups[0])
    groups += [first, *(like_the_first(description, group) for group in description.groups[1:])]
    return {"managedNodeGroups" if description.managed else "nodeGroups": groups}
