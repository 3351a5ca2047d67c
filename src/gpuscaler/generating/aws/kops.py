"""The InstanceGroups of kOps for GPUs, and what the cluster's own spec must have.

Facts from the sources of kOps 1.35.0 (2026-03-18), read 2026-11-26; tests/generating/oracle asks the same code:

- kOps tags a group with the labels and taints of its nodes by itself, but not with the two tags of Cluster Autoscaler's discovery.
- Where its own NVIDIA runtime is on, it labels nodes of GPU machines ``kops.k8s.io/gpu=1`` and taints them ``nvidia.com/gpu:NoSchedule``,
  unless the group has a taint with that key. It sets no tag for a taint that is written without ``=``.
- It runs AWS's Node Termination Handler unless told otherwise.
- Its machines are spot machines if the group has a maximum price, or a mixed-instances policy that asks for them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpuscaler.generating.aws.general import unused_networks
from gpuscaler.generating.aws.names import controller_policy_arn
from gpuscaler.generating.aws.nodes import ACCELERATOR, HOP_LIMIT, HTTP_TOKENS, VOLUME_TYPE, discovery_tags, node_labels, node_taints
from gpuscaler.generating.description.resolved import GPU_TAINT, POOL_TAINT, SERVICE_ACCOUNT, Description, NodeGroup
from gpuscaler.generating.description.settings import KOPS
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, yaml_file
from gpuscaler.model.offerings import SPOT
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

API_VERSION: Final = "kops.k8s.io/v1alpha2"
#: The label with the name of a node's group.
GROUP_LABEL: Final = "kops.k8s.io/instancegroup"
_GROUPS, _CLUSTER = "kops/instancegroups.yaml", "kops/cluster.yaml"
#: GPUs of NVIDIA's Blackwell generation, as in the catalogue, and a driver for them. kOps installs 535, which is older than they are.
_BLACKWELL: Final = ("b200", "b300", "rtx-pro-4500", "rtx-pro-server-6000")
_BLACKWELL_DRIVER: Final = "nvidia-driver-580-server-open"


def kops_files(description: Description) -> Iterable[GeneratedFile]:
    """Yield what the cluster's spec must have, and the groups."""
    if description.tool != KOPS:
        return
    name = description.cluster.name
    yield yaml_file(
        _CLUSTER,
        "the keys that the kOps cluster's spec must have for GPUs and for gpuscaler, and none of its other keys",
        [_cluster(description)],
        apply=_apply(description),
        edit=f"merge the keys into the spec in the editor that the command opens, with a bucket of your own for {_store(name)}, which "
        "anybody may read. If the cluster's tokens had another issuer so far, follow kOps' page about migrating it first. The update "
        "replaces all machines that the keys concern, those of the control plane included, and drains each before: look at what it "
        "prints without --yes, and choose the time. No spot group of the cluster has the Node Termination Handler afterwards, also none "
        "that gpuscaler does not manage. If the cluster has a cert-manager that kOps did not install, add `managed: false` to certManager",
    )
    yield yaml_file(
        _GROUPS,
        "the InstanceGroups of kOps with GPUs, one for each type, market and zone",
        [_group(group, description) for group in description.groups],
        apply=f"kops replace --force -f {_GROUPS} && {_update(name)}",
        edit=f"compare the subnets with `kops get cluster --name {name} -o yaml`: kOps names them after their zones unless told otherwise"
        + "".join(f"; {text}" for text in unused_networks(description)),
    )


def _apply(description: Description) -> str:
    """Return the commands that make the bucket of the issuer and change the cluster. Those for the bucket are of kOps' page about AWS."""
    name, region = description.cluster.name, description.cluster.region
    bucket = f"--bucket {_store(name).removeprefix('s3://')}"
    place = "" if region == "us-east-1" else f" --create-bucket-configuration LocationConstraint={region}"
    block = ",".join(f"{key}=false" for key in ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"))
    lines = (
        "# A bucket for the keys of the cluster's tokens, which is open to all readers; only if the cluster has none yet.",
        f"aws s3api create-bucket {bucket} --region {region} --object-ownership BucketOwnerPreferred{place} &&",
        f"  aws s3api put-public-access-block {bucket} --public-access-block-configuration {block} &&",
        f"  aws s3api put-bucket-acl {bucket} --acl public-read",
        f"kops edit cluster --name {name} && {_update(name)}",
        "# Without --yes, it prints which machines it would replace.",
        f"kops rolling-update cluster --name {name}",
        f"kops rolling-update cluster --name {name} --yes",
        "# From here on, kubectl and helm speak to this cluster. Add --admin if you have no login of your own there.",
        f"kops export kubeconfig --name {name}",
    )
    return "\n".join(lines)


def _update(cluster: str) -> str:
    return f"kops update cluster --name {cluster} --yes"


def _group(group: NodeGroup, description: Description) -> Mapping[str, Tree]:
    cluster = description.cluster
    spec: dict[str, Tree] = {
        "role": because("The machines are workers. kOps has other roles for its control plane.", "Node"),
        "machineType": because(
            "One type in a group: machines of a group then have the same GPUs, and gpuscaler knows which it buys.", group.instance_type.name
        ),
        **_market(group),
        "subnets": because(
            "One zone in a group: Auto Scaling then has no zones to even out, and a pod whose volume is in this zone gets a machine there.",
            [group.zone],
        ),
        **_sizes(group),
        "instanceProtection": because(
            "Auto Scaling must not choose which machine ends when the group shrinks. gpuscaler ends the machine that has no work.", True
        ),
        "suspendProcesses": because("AZRebalance ends machines with running pods, to even out zones.", ["AZRebalance"]),
        "cloudLabels": because(
            "gpuscaler finds the group by these tags, and its policy allows changes only where the second one is `owned`. kOps adds tags "
            "with the labels and taints of the nodes itself, so that the group is known while it has no machine.",
            dict(discovery_tags(cluster.name)),
        ),
        "nodeLabels": _labels(group),
        "taints": _taints(group, description),
        **_volume(group),
        "instanceMetadata": {
            "httpTokens": because(
                "Calls to the metadata service need a token (IMDSv2), which forged requests of a web server cannot get.", HTTP_TOKENS
            ),
            "httpPutResponseHopLimit": because(
                "Only the machine itself gets a token: with a second hop, every pod could take the credentials of the machine's role.",
                HOP_LIMIT,
            ),
        },
        **_driver(group),
    }
    if cluster.private:
        spec["associatePublicIp"] = because(
            "The machines get no public address. Their subnet needs a way out, such as a NAT gateway, or they can pull no image.", False
        )
    return {
        **_head("InstanceGroup", "One InstanceGroup becomes one Auto Scaling group."),
        "metadata": {
            "name": because("The Auto Scaling group has this name and the cluster's behind it.", group.name),
            "labels": because("kOps learns from this label to which cluster the group belongs.", {"kops.k8s.io/cluster": cluster.name}),
        },
        "spec": spec,
    }


def _market(group: NodeGroup) -> Mapping[str, Tree]:
    if group.market != SPOT:
        return {}
    policy = {
        "instances": because("The same type as above; kOps wants it here, too.", [group.instance_type.name]),
        "onDemandBase": because("No machine is on demand: the machines on demand are a group of their own.", 0),
        "onDemandAboveBase": because("All machines are spot machines. The default of 100 would make all of them on demand.", 0),
        "spotAllocationStrategy": because(
            "AWS takes the machine from the capacity that it is least likely to take back, and then the cheapest of it.",
            "price-capacity-optimized",
        ),
    }
    return {
        "mixedInstancesPolicy": because(
            "The machines are spot machines. There is no maxPrice: the price on demand is the limit anyway, and a lower one ends machines.",
            policy,
        )
    }


def _sizes(group: NodeGroup) -> Mapping[str, Tree]:
    least = (
        "At zero, the group costs nothing while no pod needs its GPUs."
        if not group.min
        else "gpuscaler keeps as many machines at any time."
    )
    return {
        "minSize": because(least, group.min),
        "maxSize": because("gpuscaler buys no more machines than this, and neither does a person by mistake.", group.max),
        "autoscale": because(
            "If the addon Cluster Autoscaler of kOps is on, it leaves this group alone: two autoscalers would undo each other's work.",
            False,
        ),
    }


def _labels(group: NodeGroup) -> Mapping[str, Tree]:
    reasons = {
        GROUP_LABEL: "kOps sets this label itself only in groups that `kops create` makes. Other programs choose groups by it.",
        POOL_LABEL: "Pods can choose the pool by this label, and gpuscaler calls the pool by it.",
        ACCELERATOR: "Cluster Autoscaler waits for the GPUs of a new node only if the node has this label; the GPU's model is its value.",
    }
    labels = {GROUP_LABEL: group.name, **node_labels(group)}
    return {key: because(reasons.get(key, "The description asks for this label."), value) for key, value in labels.items()}


def _taints(group: NodeGroup, description: Description) -> list[Tree]:
    own, *others = node_taints(group)
    taints: list[Tree] = [
        because(
            f"Nodes register closed: {ARRIVING_TAINT} keeps all pods away until gpuscaler opens the node for those that it was bought for.",
            _text(own),
        )
    ]
    taints += [because(_why_taint(taint), _text(taint)) for taint in others]
    why = "kOps sets this taint on machines with GPUs in any case. Named here, it gets a tag, too, and gpuscaler plans with it."
    taints += [because(why, _text(taint)) for taint in description.node_taints([group]) if taint not in others]
    return taints


def _why_taint(taint: Taint) -> str:
    if taint.key == POOL_TAINT:
        return "Only some teams may use this pool: pods of the others do not tolerate this taint."
    if taint.key.startswith(GPU_TAINT):
        return "Pods that do not ask for GPUs stay away from machines with GPUs."
    return f"The description asks for this taint: pods without a toleration for {taint.key} stay away, also those that ask for GPUs."


def _text(taint: Taint) -> str:
    """Return the taint with its "=", without which kOps sets no tag."""
    return f"{taint.key}={taint.value}:{taint.effect}"


def _volume(group: NodeGroup) -> Mapping[str, Tree]:
    return {
        "rootVolumeSize": because(
            "In GiB: images with the libraries for GPUs have 10 GiB and more, and are unpacked here.", group.disk_gib
        ),
        "rootVolumeType": because("gp3 costs less than gp2, and its speed does not depend on its size.", VOLUME_TYPE),
        "rootVolumeEncryption": because("Data of pods lies on the volume. AWS encrypts it with its own key for EBS, at no cost.", True),
    }


def _driver(group: NodeGroup) -> Mapping[str, Tree]:
    if group.instance_type.gpu_karpenter_name not in _BLACKWELL:
        return {}
    why = (
        "GPUs of the Blackwell generation need this driver or a later one, with NVIDIA's open kernel modules. kOps would install "
        "version 535, which does not know them."
    )
    return {"containerd": {"nvidiaGPU": {"package": because(why, _BLACKWELL_DRIVER)}}}


def _store(cluster: str) -> str:
    return f"s3://{cluster.replace('.', '-')}-oidc"


def _cluster(description: Description) -> Mapping[str, Tree]:
    account = {
        "name": SERVICE_ACCOUNT,
        "namespace": description.controller.namespace,
        "aws": {
            "policyARNs": because(
                "The stack in cloudformation/gpuscaler.yaml makes this policy, so it must be there before kOps gives it to the role.",
                [controller_policy_arn(description)],
            )
        },
    }
    spec = {
        "containerd": because(
            "kOps installs NVIDIA's driver and container runtime on machines with GPUs, runs the device plugin there, and makes the "
            "RuntimeClass `nvidia`, which pods name in runtimeClassName. Do not install a second device plugin.",
            {"nvidiaGPU": {"enabled": True}},
        ),
        "nodeTerminationHandler": because(
            "kOps runs AWS's Node Termination Handler unless it is switched off. It drains the nodes of spot machines, too, and both would "
            "act on the same notice. This holds for the whole cluster: groups that gpuscaler does not manage lose the handler.",
            {"enabled": False},
        ),
        "serviceAccountIssuerDiscovery": {
            "discoveryStore": because(
                "kOps publishes the keys of the cluster's tokens in this bucket, where AWS reads them. It must not be the bucket of kOps' "
                "state, which must stay private.",
                _store(description.cluster.name),
            ),
            "enableAWSOIDCProvider": because("IAM then accepts the cluster's tokens, which the roles of ServiceAccounts need.", True),
        },
        "iam": {
            "serviceAccountExternalPermissions": because(
                "kOps makes a role for gpuscaler's ServiceAccount, which nothing else can take. If the machines had these rights, every "
                "pod on them would.",
                [account],
            )
        },
        "certManager": because(
            "The webhook of the next key gets its certificate from cert-manager. If the cluster has one that kOps did not install, add "
            "`managed: false`.",
            {"enabled": True},
        ),
        "podIdentityWebhook": because(
            "The webhook puts the role and a token into gpuscaler's pods. Without it, gpuscaler has no credentials.", {"enabled": True}
        ),
    }
    return {
        **_head("Cluster", "This is an excerpt for a person: kOps refuses it as a whole cluster."),
        "metadata": {"name": because("The cluster has this name already.", description.cluster.name)},
        "spec": spec,
    }


def _head(kind: str, what: str) -> Mapping[str, Tree]:
    return {"apiVersion": because("kOps reads and writes files in this version.", API_VERSION), "kind": because(what, kind)}
