"""NVIDIA's device plugin, without which a node shows no GPUs, where nothing else installs it.

Facts, read 2026-11-26. The EKS user guide, "Install Kubernetes device plugin for GPUs": the images for Amazon Linux 2023 have the driver
and no plugin, those of Bottlerocket have both. eksctl, ``pkg/addons/device_plugin.go`` and ``assets/nvidia-device-plugin.yaml``: with
groups of GPUs it creates the DaemonSet of this name and selector in kube-system, without an affinity. Microsoft's "Fully managed GPU node
pools": without the preview of managed GPUs, which is off, AKS installs the driver only. kOps, ``nvidia.addons.k8s.io``: with
``containerd.nvidiaGPU.enabled`` it creates the DaemonSet of this name and the RuntimeClass ``nvidia``; its pods tolerate only the taint
``nvidia.com/gpu``. The RuntimeClass adds that toleration to pods, but the DaemonSet's controller chooses nodes by the template alone
(kubernetes/kubernetes#111590), so the template has it, too.

The runtime that mounts the driver is the default one on EKS (amazon-eks-ami, ``nodeadm/internal/containerd/runtime_config_nvidia.go``) and
on AKS (AgentBaker's template of containerd's configuration, ``default_runtime_name``), but not on kOps since 1.23.
"""

from collections.abc import Iterable
from typing import Final

from gpuscaler.generating.aws.kops import GROUP_LABEL
from gpuscaler.generating.description.resolved import GPU_TAINT, Description, NodeGroup
from gpuscaler.generating.description.settings import EKSCTL, KOPS
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, Step, yaml_file
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, INSTANCE_TYPE_LABELS

#: Release 0.20.0 with the digest of its index for all architectures, as GPU operator 26.7.0 names it.
IMAGE: Final = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0@sha256:a61ba9fd8efb82f3a79f877f7580e02c1e8e7593f62473644bc9c79e315c3312"
NAME: Final = "nvidia-device-plugin-daemonset"
_FOLDER: Final = "/var/lib/kubelet/device-plugins"
#: The RuntimeClass that kOps creates.
KOPS_RUNTIME_CLASS: Final = "nvidia"


_OTHERS: Final = Step(
    say=f"This file replaces a DaemonSet {NAME} in kube-system, but none with another name or in another namespace, such as gpu-resources, "
    "which instructions for AKS use. With two plugins on a node, both register the same GPUs: delete the other one, or keep it off the "
    "nodes of this file's affinity. These run now:",
    commands="kubectl get daemonsets --all-namespaces --output wide | grep --ignore-case --extended-regexp 'nvidia|gpu'",
)


def device_plugin_files(description: Description) -> Iterable[GeneratedFile]:
    groups = _served(description)
    if not groups:
        return
    kops = description.tool == KOPS
    name = "nvidia-device-plugin-of-tainted-pools" if kops else NAME
    about = "NVIDIA's device plugin, which makes GPUs visible to Kubernetes"
    if kops:
        about += "; only for pools with taints that kOps' own does not tolerate"
    elif description.tool == EKSCTL:
        about += ", in place of the one of eksctl, which runs on every node"
    yield yaml_file(
        "kubernetes/device-plugin.yaml",
        about,
        [_daemon_set(description, name, groups)],
        # Another owner's fields are taken over where the DaemonSet exists already.
        apply="kubectl apply --server-side --force-conflicts --filename kubernetes/device-plugin.yaml",
        edit=""
        if description.cluster.create or kops
        else "leave this file out if the cluster has NVIDIA's GPU operator; if a device plugin "
        "runs on other machines with GPUs, add their types to the affinity, since this one replaces it",
        checks=() if description.cluster.create or kops else (_OTHERS,),
    )


def _served(description: Description) -> tuple[NodeGroup, ...]:
    """Return the groups whose nodes would have no plugin."""
    groups = tuple(group for group in description.groups if group.instance_type.gpu_manufacturer == "nvidia")
    if description.tool != KOPS:
        return groups
    tolerated = {Taint(GPU_TAINT, effect="NoSchedule")}
    hard = {
        group.name: {Taint(taint.key, effect=taint.effect) for taint in group.taints if taint.effect in HARD_EFFECTS} for group in groups
    }
    return tuple(group for group in groups if hard[group.name] - tolerated)


def _daemon_set(description: Description, name: str, groups: tuple[NodeGroup, ...]) -> Tree:
    kops = description.tool == KOPS
    labels = {"name": "nvidia-device-plugin-ds" if not kops else name}
    runtime = (
        {"runtimeClassName": because("kOps' containerd mounts the driver only into pods of this class.", KOPS_RUNTIME_CLASS)}
        if kops
        else {}
    )
    spec = {
        "priorityClassName": because(
            "Without the plugin's pod a node has no GPUs, so nothing may push it off its node.", "system-node-critical"
        ),
        **runtime,
        "affinity": _affinity(description, groups),
        "tolerations": _tolerations(description, groups),
        "automountServiceAccountToken": because("The plugin talks to the kubelet of its node only, and needs no token.", False),
        "containers": because("One small container that needs nothing but the kubelet's folder.", [_container()]),
        "volumes": because("The kubelet's socket for plugins is here.", [{"name": "device-plugins", "hostPath": {"path": _FOLDER}}]),
    }
    why_name = (
        "Not the name of kOps' own DaemonSet, which kOps would change back at its next update."
        if kops
        else "The name of NVIDIA's own manifest, which eksctl uses, too: who comes second replaces the first, and no node has two plugins."
    )
    return {
        "apiVersion": because("DaemonSets are in apps/v1 since Kubernetes 1.9.", "apps/v1"),
        "kind": because("A DaemonSet, since each node with GPUs needs one pod.", "DaemonSet"),
        "metadata": because(why_name, {"name": name, "namespace": "kube-system"}),
        "spec": {
            "selector": because(
                "A selector cannot be changed later, so it is the one of the DaemonSet that may exist.", {"matchLabels": labels}
            ),
            "template": {"metadata": {"labels": because("The labels that the selector expects.", labels)}, "spec": spec},
        },
    }


def _affinity(description: Description, groups: tuple[NodeGroup, ...]) -> Tree:
    if description.tool == KOPS:
        names = [group.name for group in groups]
        terms: list[Tree] = [{"matchExpressions": [{"key": GROUP_LABEL, "operator": "In", "values": names}]}]
        why = "Only the instance groups that kOps' own plugin does not reach, so that no node has two plugins."
    else:
        types = list(dict.fromkeys(group.instance_type.name for group in groups))
        terms = [{"matchExpressions": [{"key": INSTANCE_TYPE_LABELS[0], "operator": "In", "values": types}]}]
        if description.cloud == "azure":
            terms.append({"matchExpressions": [{"key": "kubernetes.azure.com/accelerator", "operator": "In", "values": ["nvidia"]}]})
        why = (
            "Nodes with GPUs by labels that they have from the beginning. The labels of GPU feature discovery come later, and only if it "
            "is installed: with them, the plugin would match no node. Each term is enough."
        )
    return {"nodeAffinity": because(why, {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})}


def _tolerations(description: Description, groups: tuple[NodeGroup, ...]) -> Tree:
    return [
        because(
            "A new machine stays closed until its GPUs are visible, and this pod makes them visible. Without the toleration, gpuscaler "
            "opens a short window for the DaemonSet.",
            _toleration(Taint(ARRIVING_TAINT)),
        ),
        *(
            because(
                f"Nodes of the GPU groups have the taint {taint}; a pod without this toleration does not run there.", _toleration(taint)
            )
            for taint in description.node_taints(groups)
        ),
    ]


def _toleration(taint: Taint) -> Tree:
    """Return a toleration of every value: groups may give the same key different values."""
    return {"key": taint.key, "operator": "Exists", "effect": taint.effect}


def _container() -> Tree:
    return {
        "name": "nvidia-device-plugin-ctr",
        "image": because(
            "A release by its digest. A tag alone may point to another image tomorrow, with which new nodes would differ from old ones.",
            IMAGE,
        ),
        "env": [
            because(
                "On a node whose driver does not work, the plugin waits and writes so in its log, instead of restarting for ever.",
                {"name": "FAIL_ON_INIT_ERROR", "value": "false"},
            )
        ],
        "resources": {
            "requests": because(
                "gpuscaler and the scheduler subtract these from each machine; without requests, the pod would be evicted first when "
                "memory is short.",
                {"cpu": "50m", "memory": "64Mi"},
            )
        },
        "securityContext": because(
            "It runs as root, since the kubelet's folder belongs to root, and gives up everything else.",
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
        ),
        "volumeMounts": because("The plugin registers with the kubelet here.", [{"name": "device-plugins", "mountPath": _FOLDER}]),
    }
