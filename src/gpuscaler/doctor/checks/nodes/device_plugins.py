"""Nodes whose GPUs no pod can use: no plugin runs there, or several do."""

import shlex
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes.admitting import cause_of, discovers, field_of, fix_for, selects, waits_for_labels
from gpuscaler.doctor.checks.nodes.gpu_nodes import (
    NVIDIA,
    devices_in,
    drivers_of_claims,
    gpu_nodes,
    nodes_without_gpus,
    plugins,
    sign_of_gpus,
    vendor_of,
)
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import ObjectName, kubectl_delete
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.capacity.node_templates import Overhead, daemon_sets, runs_on, template_node

_NO_GPUS = "pods with GPUs never run there, while the node costs its full price; Cluster Autoscaler may stop all scale-ups because of it"
#: The objects from which operators of vendors make DaemonSets, with their API group.
_OPERATORS = {"ClusterPolicy": "nvidia.com", "DeviceConfig": "amd.com"}
_HELM = (
    "helm upgrade --install nvidia-device-plugin nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin "
    "--namespace kube-system --set gfd.enabled=true"
)


def find_nodes_without_gpus(evidence: Evidence) -> Iterable[Finding]:
    """D12: nodes that should have GPUs and offer none, or whose GPUs are all unhealthy."""
    registering = plugins(evidence)
    for node, resource in nodes_without_gpus(evidence):
        ours = [daemon for daemon, vendor in registering if vendor == resource and runs_on(daemon, node)]
        advice = "run the device plugin there (see D13)"
        if ours:
            log = f"kubectl logs {shlex.join(('--namespace', ours[0].namespace, '--selector', _selector(ours[0])))}"
            advice = f"the plugin runs, but finds no GPU: look at its log ({log}), and at the driver on the node (nvidia-smi)"
        elif not registering:
            advice = "install the device plugin and the driver (see D13), or remove the label if the node has no GPU"
        yield Finding(
            "D12",
            CRITICAL,
            f"Node {node.name}",
            f"status.capacity[{resource}]",
            f"none, although it has {sign_of_gpus(node)}",
            "the number of its GPUs",
            _NO_GPUS,
            Fix(advice=advice),
        )
    for node in gpu_nodes(evidence.cluster):
        if node.ready and devices_in(node.capacity) and not devices_in(node.allocatable):
            resource = vendor_of(node) or NVIDIA
            yield Finding(
                "D12",
                CRITICAL,
                f"Node {node.name}",
                f"status.allocatable[{resource}]",
                f"0 of {devices_in(node.capacity)}",
                "the number of its GPUs",
                "no pod with GPUs can run there, while the node costs its full price",
                Fix(advice="its device plugin ended, or it reports all GPUs as unhealthy: look at its log, then replace the machine"),
            )


def _selector(daemon: Workload) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(daemon.template_labels.items())[:1])


def find_absent_plugins(evidence: Evidence) -> Iterable[Finding]:
    """D13: nodes with GPUs on which no device plugin runs, because there is none or because its DaemonSet does not admit the node."""
    registering = plugins(evidence)
    missing: dict[str, list[Node]] = {}
    for node, resource in nodes_without_gpus(evidence):
        missing.setdefault(resource, []).append(node)
    for resource, nodes in missing.items():
        ours = [daemon for daemon, vendor in registering if vendor == resource]
        uncovered = [node for node in nodes if not any(runs_on(daemon, node) for daemon in ours)]
        if not ours:
            yield _no_plugin(resource, len(nodes))
        elif uncovered:
            yield from _closed_out(evidence, ours, uncovered)
    if evidence.policy is not None:
        yield from _closed_out_offerings(evidence, evidence.policy, registering)


def _no_plugin(resource: str, count: int) -> Finding:
    return Finding(
        "D13",
        CRITICAL,
        "DaemonSet of a device plugin",
        "DaemonSets",
        f"none that registers {resource}, and {count} {'node' if count == 1 else 'nodes'} with GPUs",
        f"a device plugin that registers {resource}",
        "no pod with GPUs can run, and machines are bought for them again and again",
        Fix(advice=f"install it: {_HELM}" if resource == NVIDIA else "install the device plugin of the vendor"),
    )


def _closed_out(evidence: Evidence, ours: list[Workload], nodes: list[Node]) -> Iterator[Finding]:
    """What keeps plugins off ``nodes``: one finding for each way to mend it."""
    discoverers = [daemon for daemon in daemon_sets(evidence.cluster) if discovers(daemon)]
    by_cause: dict[tuple[str, str], tuple[Workload, list[Node]]] = {}
    for node in nodes:
        # The plugin that lacks the least: a toleration rather than a label.
        closest = min(ours, key=lambda plugin: (not selects(plugin, node), plugin.key))
        culprits = [(closest, node)]
        if discoverers and waits_for_labels(closest, node):
            # The labels come once NFD runs there; then the taints decide.
            labelled = replace(node, labels={**node.labels, **dict(closest.template.node_selector if closest.template else ())})
            culprits = [(closest, labelled)] if selects(closest, labelled) and not runs_on(closest, labelled) else []
            if not any(runs_on(finder, node) for finder in discoverers):
                culprits.append((discoverers[0], node))
        for daemon, shown in culprits:
            by_cause.setdefault((daemon.key, cause_of(daemon, shown)), (daemon, []))[1].append(shown)
    for (_, cause), (daemon, alike) in by_cause.items():
        yield Finding(
            "D13",
            CRITICAL,
            f"DaemonSet {daemon.namespace}/{daemon.name}",
            field_of(daemon, alike[0]),
            f"{cause} ({len(alike)} {'node' if len(alike) == 1 else 'nodes'} with GPUs)",
            "a DaemonSet that runs on all nodes with GPUs",
            "the GPUs of these nodes are never registered, and no pod can use them",
            fix_for(daemon, alike, safe=may_help(evidence, daemon.namespace)),
        )


def _closed_out_offerings(evidence: Evidence, policy: Policy, registering: tuple[tuple[Workload, str], ...]) -> Iterator[Finding]:
    """Plugins that do not admit the nodes that a pool will have: of an instance type that their list lacks, or with a new taint."""
    shown = {node.labels.get("node.kubernetes.io/instance-type") for node in gpu_nodes(evidence.cluster)}
    if not registering or drivers_of_claims(evidence.cluster):
        return
    overhead = Overhead(evidence.cluster)
    seen: set[tuple[str, str]] = set()
    for pool in policy.pools:
        for offering in pool.offerings:
            node = template_node(offering, overhead, "new")
            ours = [daemon for daemon, vendor in registering if offering.allocatable.get(vendor)]
            # NFD adds labels to nodes that no template has.
            if offering.retired or offering.instance_type in shown or not ours or any(waits_for_labels(daemon, node) for daemon in ours):
                continue
            if any(runs_on(daemon, node) for daemon in ours) or (pool.name, offering.instance_type) in seen:
                continue
            seen.add((pool.name, offering.instance_type))
            daemon = min(ours, key=lambda plugin: (not selects(plugin, node), plugin.key))
            yield Finding(
                "D13",
                CRITICAL,
                f"DaemonSet {daemon.namespace}/{daemon.name}",
                field_of(daemon, node),
                f"{cause_of(daemon, node)} ({offering.instance_type} of pool {pool.name})",
                "a DaemonSet that runs on the nodes of every pool with GPUs",
                "the GPUs of such machines will not be registered, and pods wait for machines that cannot run them",
                fix_for(daemon, [node], safe=may_help(evidence, daemon.namespace), exist=False),
            )


def find_double_plugins(evidence: Evidence) -> Iterable[Finding]:
    """D14: several DaemonSets that register the same GPUs, or install a driver that the node has already."""
    nodes = tuple(node for node in evidence.cluster.nodes.values() if vendor_of(node))
    registering = plugins(evidence)
    for index, (first, resource) in enumerate(registering):
        for second, other in registering[index + 1 :]:
            if other == resource and (count := _both(first, second, nodes)) is not None:
                # GPU operator makes its own again.
                kept, extra = (first, second) if _is_of_operator(first, evidence) else (second, first)
                where = f"on {count} {'node' if count == 1 else 'nodes'}" if count else "wherever there are GPUs"
                yield Finding(
                    "D14",
                    WARNING,
                    f"DaemonSet {extra.namespace}/{extra.name}",
                    "spec.template.spec",
                    f"registers {resource} {where}, as DaemonSet {kept.namespace}/{kept.name} does",
                    "one device plugin on each node",
                    "the plugins replace each other at the kubelet: GPUs are counted wrongly, and containers may get each other's",
                    _without_one(kept, extra),
                )
    for daemon in daemon_sets(evidence.cluster):
        # AKS installs the driver, unless the node pool was made without it.
        aks = [node for node in nodes if node.provider_id.startswith("azure://") and "kubernetes.azure.com/cluster" in node.labels]
        if "nvidia-driver-daemonset" in daemon.name and any(runs_on(daemon, node) for node in aks):
            yield Finding(
                "D14",
                INFO,
                f"DaemonSet {daemon.namespace}/{daemon.name}",
                "spec.template.spec",
                "installs the NVIDIA driver on nodes of AKS",
                "one driver on each node",
                "AKS has installed a driver already, unless the node pool was made with --gpu-driver none: two drivers break each other",
                Fix(advice="make the node pool with --gpu-driver none, or set driver.enabled=false in the values of GPU operator"),
            )


def _is_of_operator(daemon: Workload, evidence: Evidence) -> bool:
    """Whether an operator of the vendor makes the DaemonSet."""
    if daemon.owner.kind not in _OPERATORS:
        return False
    document = evidence.find("DaemonSet", daemon.namespace, daemon.name)
    owners = document.parts("metadata", "ownerReferences") if document is not None else ()
    groups = [owner.text("apiVersion").partition("/")[0] for owner in owners if owner.text("kind") == daemon.owner.kind]
    return document is None or _OPERATORS[daemon.owner.kind] in groups


def _without_one(kept: Workload, extra: Workload) -> Fix:
    # Who may write in one namespace must not choose what is deleted in another; an owner can be claimed, too.
    if kept.namespace == extra.namespace:
        return Fix(
            (kubectl_delete(ObjectName("DaemonSet", extra.namespace, extra.name)),),
            "if a Helm release made it, uninstall the release instead, or the other one",
        )
    return Fix(advice=f"uninstall the one that is not meant to be there; {verify('the other', kept.namespace)}")


def _both(first: Workload, second: Workload, nodes: tuple[Node, ...]) -> int | None:
    """On how many ``nodes`` both run; 0 if no node is known and one of them runs everywhere, None if they do not meet."""
    count = sum(runs_on(first, node) and runs_on(second, node) for node in nodes)
    if count:
        return count
    everywhere = any(
        daemon.template and not daemon.template.node_selector and not daemon.template.node_affinity for daemon in (first, second)
    )
    return 0 if everywhere and not nodes else None


_NEEDS = (CLUSTER, "Node", "DaemonSet")
CHECKS = (
    Check("D12", "nodes with GPUs that offer none", (CLUSTER, "Node"), find_nodes_without_gpus, continuous=True),
    Check("D13", "nodes with GPUs without a device plugin", _NEEDS, find_absent_plugins, continuous=True),
    Check("D14", "device plugins and drivers that are installed twice", (CLUSTER, "DaemonSet"), find_double_plugins, continuous=True),
)
