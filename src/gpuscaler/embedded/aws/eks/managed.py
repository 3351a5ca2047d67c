"""Actions of EKS on the Auto Scaling groups and nodes of managed node groups: hooks, drains, updates with surge, node repair.

Sources: EKS user guide, "Understand each phase of node updates" and "Detect node health issues and enable automatic node repair"; its page
about managed node groups ("Amazon EKS automatically drains nodes … during terminations or updates"); aws/containers-roadmap#1852 for the
hook's 1800 s and the 15 minutes after which a drain is given up; API reference, UpdateNodegroupConfig ("The Kubernetes taints to be
applied to the nodes in the node group after the update").
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gpuscaler.embedded.aws.autoscaling import lifecycle, scaling
from gpuscaler.embedded.aws.nodes.nodes import EFFECTS, EKS_CLUSTER, NODEGROUP
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import LAUNCHING, TERMINATING, Group, Hook, Instance
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import NODES, PODS

#: Seconds between EKS's checks of its groups here, until a drain is given up, and until an unready node is repaired.
STEP, DRAIN, UNREADY = 2.0, 900.0, 1800.0
_HOOKS: Final = {"Launch-LC-Hook": LAUNCHING, "Terminate-LC-Hook": TERMINATING}
_HEARTBEAT: Final = 1800.0


@dataclass(slots=True)
class Update:
    """An update of a node group: ``before`` are the previous minimum, maximum and desired capacity, ``old`` the instances to replace."""

    id: str
    nodegroup: str
    started_at: float
    before: tuple[int, int, int]
    surge: int
    at_once: int
    forced: bool
    old: set[str]
    status: str = "InProgress"
    problem: str = ""
    surged: bool = False


@dataclass(slots=True)
class NodeGroups:
    """EKS for the managed node groups of ``region`` whose nodes are in the cluster of ``client``, while :meth:`run` runs."""

    region: Region
    client: Client
    now: Callable[[], float]
    speed: float = 1.0
    #: Since when a node is being drained, or is unready, by instance.
    draining: dict[str, float] = field(default_factory=dict)
    unready: dict[str, float] = field(default_factory=dict)
    #: Labels and taints that EKS has set on the nodes of each managed node group.
    written: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = field(default_factory=dict)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            for group in [group for group in self.region.groups.values() if NODEGROUP in group.tags]:
                try:
                    await self.step(group)
                except (ApiError, Unreachable):
                    # The API server is away: EKS tries again.
                    continue
            await asyncio.sleep(STEP / self.speed)

    async def step(self, group: Group) -> None:
        """Do what is due for one group."""
        for name, transition in _HOOKS.items():
            if name not in group.hooks:
                group.hooks[name] = Hook(name, transition, _HEARTBEAT, "CONTINUE", {})
        waiting = any(instance.token and instance.hook in _HOOKS for instance in group.members.values())
        changed = self._changed(group)
        nodes = await self._nodes() if waiting or changed or _updates_in_progress(group) else {}
        if changed:
            await self._write(group, nodes)
        for instance in list(group.members.values()):
            await self._proceed(group, instance, nodes.get(instance.id))
        for update in _updates_in_progress(group):
            await self._update(group, update, nodes)
        if _has_node_repair(self.region, group):
            await self._repair(group)

    def _changed(self, group: Group) -> bool:
        """Whether a user has changed the labels or taints of the node group since they were written to its nodes."""
        return self.written.setdefault(group.name, _labels_and_taints(self.region, group)) != _labels_and_taints(self.region, group)

    async def _write(self, group: Group, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Update labels and taints of existing nodes: add the new ones, remove the deleted ones, keep all others."""
        (old_labels, old_taints), (labels, taints) = self.written[group.name], _labels_and_taints(self.region, group)
        removed = [old_taint for old_taint in old_taints if old_taint not in taints]
        added = [taint for taint in taints if taint not in old_taints]
        for ident in group.members:
            if (node := nodes.get(ident)) is not None:
                kept = [taint for taint in node["spec"].get("taints") or () if _taint_of_node(taint) not in [*removed, *added]]
                change: dict[str, Any] = {"metadata": {"labels": {**dict.fromkeys(old_labels), **labels}}}
                if removed or added:
                    change["spec"] = {"taints": [*kept, *added]}
                await self.client.merge_patch(NODES, node["metadata"]["name"], change)
        self.written[group.name] = labels, taints

    async def _proceed(self, group: Group, instance: Instance, node: Mapping[str, Any] | None) -> None:
        """Let a launching instance into service, and let a terminating one end once its node is drained."""
        if not (instance.token and instance.hook in _HOOKS):
            return
        if instance.lifecycle == "Pending:Wait" or await self._drained(instance, node):
            self.draining.pop(instance.id, None)
            lifecycle.complete(self.region, group, instance, "CONTINUE")

    async def _drained(self, instance: Instance, node: Mapping[str, Any] | None) -> bool:
        """Cordon and drain; returns whether no pod is left, or too much time has passed."""
        if node is None:
            return True
        began = self.draining.setdefault(instance.id, self.now())
        await self._cordon(node)
        left = await self._evict(node["metadata"]["name"])
        return not left or self.now() - began >= DRAIN

    async def _cordon(self, node: Mapping[str, Any]) -> None:
        if not node["spec"].get("unschedulable"):
            await self.client.merge_patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})

    async def _evict(self, node: str) -> int:
        """Request the eviction of the pods of a node; returns how many are still there."""
        left = 0
        for raw in await self.client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={node}"}):
            pod = msgspec.json.decode(raw)
            owners = {owner["kind"] for owner in pod["metadata"].get("ownerReferences", ())}
            over = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            if pod["spec"].get("nodeName") != node or owners & {"DaemonSet", "Node"} or over:
                continue
            left += 1
            if not pod["metadata"].get("deletionTimestamp"):
                await self.client.evict(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return left

    async def _nodes(self) -> dict[str, dict[str, Any]]:
        nodes = [msgspec.json.decode(raw) for raw in await self.client.list_all(NODES)]
        return {(node["spec"].get("providerID") or "").rpartition("/")[2]: node for node in nodes}

    # Updates

    async def _update(self, group: Group, update: Update, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Surge, replace old nodes one batch after the other, then shrink again."""
        old = [group.members[ident] for ident in sorted(update.old) if ident in group.members and group.members[ident].counted]
        if not update.surged:
            self._surge(group, update)
            return
        fresh = [instance for instance in group.members.values() if instance.id not in update.old and instance.lifecycle == "InService"]
        zones = {instance.machine.offering.zone for instance in old}
        ready = {instance.machine.offering.zone for instance in fresh if is_ready(nodes.get(instance.id))}
        if old and not zones <= ready:
            return
        for instance in old:
            if (node := nodes.get(instance.id)) is not None:
                await self._cordon(node)
        for instance in old[: update.at_once]:
            began = self.draining.setdefault(instance.id, self.now())
            if await self._drained(instance, nodes.get(instance.id)):
                if self.now() - began >= DRAIN and not update.forced and nodes.get(instance.id) is not None:
                    self._settle(group, update, "Failed", "PodEvictionFailure: Reached max retries while trying to evict pods from nodes")
                    return
                lifecycle.replace(self.region, group, instance, "a user request")
        if not old:
            self._settle(group, update, "Successful")

    def _surge(self, group: Group, update: Update) -> None:
        _, most, desired = update.before
        group.max = most + update.surge
        scaling.set_desired(self.region, group, desired + update.surge, "a user request update of AutoScalingGroup constraints")
        update.surged = True

    def _settle(self, group: Group, update: Update, status: str, problem: str = "") -> None:
        """Finish the update: restore the previous sizes."""
        low, most, desired = update.before
        update.status, update.problem = status, problem
        group.min, group.max = low, most
        wanted = min(max(desired, low), most)
        scaling.set_desired(self.region, group, wanted, "a user request update of AutoScalingGroup constraints")

    # Node repair

    async def _repair(self, group: Group) -> None:
        """Replace nodes that have not been ready for half an hour."""
        for ident, node in (await self._nodes()).items():
            instance = group.members.get(ident)
            if instance is None or not instance.counted or is_ready(node):
                self.unready.pop(ident, None)
                continue
            if self.now() - self.unready.setdefault(ident, self.now()) >= UNREADY:
                lifecycle.replace(self.region, group, instance, "a user request")


def is_ready(node: Mapping[str, Any] | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def begin_update(region: Region, group: Group, nodegroup: Mapping[str, Any], *, forced: bool) -> Update:
    """Start to replace all instances of a managed node group, by its current template."""
    limits = nodegroup.get("updateConfig") or {}
    percent = limits.get("maxUnavailablePercentage")
    at_once = max(1, -(-group.desired * percent // 100)) if percent else limits.get("maxUnavailable", 1)
    surge = max(2 * len(group.zones), at_once)
    members = {instance.id for instance in group.members.values() if instance.counted}
    before = (group.min, group.max, group.desired)
    update = Update(region.uuid(), nodegroup["nodegroupName"], region.now, before, surge, at_once, forced, members)
    group.updates.append(update)
    return update


def find_scaling_group(region: Region, cluster: str, name: str) -> Group | None:
    """The Auto Scaling group of a managed node group."""
    for group in region.groups.values():
        tags = {key: tag["Value"] for key, tag in group.tags.items()}
        if (tags.get(EKS_CLUSTER), tags.get(NODEGROUP)) == (cluster, name):
            return group
    return None


def _nodegroup(region: Region, group: Group) -> Mapping[str, Any]:
    """The managed node group of an Auto Scaling group, as it was created and changed."""
    tags = {key: tag["Value"] for key, tag in group.tags.items()}
    return region.nodegroups.get((tags.get(EKS_CLUSTER, ""), tags[NODEGROUP]), {})


def _labels_and_taints(region: Region, group: Group) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The labels and taints for nodes of a managed node group, with taints in the form of a Node."""
    nodegroup = _nodegroup(region, group)
    taints = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": EFFECTS[taint["effect"]]}
        for taint in nodegroup.get("taints") or ()
    ]
    return dict(nodegroup.get("labels") or {}), [_taint_of_node(taint) for taint in taints]


def _taint_of_node(taint: Mapping[str, str]) -> dict[str, str]:
    """A taint without an empty value, and without the time when it was added."""
    return {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}


def _updates_in_progress(group: Group) -> list[Update]:
    return [update for update in group.updates if update.status == "InProgress"]


def _has_node_repair(region: Region, group: Group) -> bool:
    return bool((_nodegroup(region, group).get("nodeRepairConfig") or {}).get("enabled"))
