"""The node template of a scale set or agent pool: the expected labels, taints and allocatable resources of a new node.

Labels are those that AKS puts on its nodes, as seen on nodes of 2025; those whose values change with each node image are left out, and so
are those of GPU feature discovery: only a tag or a live node shows whether it runs. Source: AKS's page "Use labels in an AKS cluster".
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuscaler.catalogue import aks
from gpuscaler.catalogue.node_labels import STORAGE_ZONES, node_labels
from gpuscaler.clouds.azure.documents.resources import MACHINES, RESERVED, SPOT, AgentPool, is_word, zone_key, zone_label
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.discovery.hints import EFFECTS, Hints
from gpuscaler.clouds.discovery.settings import with_pool_label
from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

#: The label of AKS with the name of a node's pool, and the taint and label of spot nodes.
AGENT_POOL_LABEL = "kubernetes.azure.com/agentpool"
SPOT_TAINT = Taint("kubernetes.azure.com/scalesetpriority", "spot")
#: The number of pods of a node whose pool does not say it: kubelet's default.
_PODS = 110
#: Prefixes of labels that are written only by software a cluster may not run.
_OPTIONAL_PREFIXES = ("karpenter.", "nvidia.com/gpu.")


class NodeTemplate(Struct, frozen=True):
    """Node properties of a pool called ``pool`` from tags and, for AKS, its agent pool. ``disk_gib`` is 0 if unknown."""

    pool: str
    location: str
    hints: Hints = Hints()
    agent_pool: AgentPool | None = None
    disk_gib: int = 0

    def identifying_labels(self, zones: Sequence[str]) -> Mapping[str, str]:
        """Labels that identify the pool's nodes: those of tags and AKS, and the zone if there is only one, else the region."""
        place = (
            {"topology.kubernetes.io/zone": zone_label(self.location, zones[0])}
            if len(zones) == 1
            else {"topology.kubernetes.io/region": self.location}
        )
        own = {AGENT_POOL_LABEL: self.agent_pool.name} if self.agent_pool is not None else {}
        return {**place, **own, **self.hints.labels}

    def configured_labels(self) -> tuple[str, ...]:
        """The keys of labels that a person has set: in tags, or in the settings of the agent pool."""
        in_settings = _own_labels(self.agent_pool) if self.agent_pool is not None else {}
        return tuple(sorted(in_settings.keys() | self.hints.labels.keys()))

    def offering(self, sku: Sku, *, market: str, zone: str, price: float) -> Offering:
        """One way to buy. ``zone`` is a number as text, empty without a zone; tags take precedence over AKS's defaults."""
        allocatable = self.allocatable(sku)
        labels = self._node_labels(sku, market=market, zone=zone, allocatable=allocatable)
        if self.agent_pool is not None:
            labels |= self._aks_labels(self.agent_pool, sku)
        labels |= self.hints.labels
        return Offering(
            self.pool,
            market,
            sku.name,
            zone_key(self.location, zone),
            price,
            allocatable,
            with_pool_label(labels, self.pool),
            self.taints(market),
            product=sku.product,
            accelerators=sku.gpus,
        )

    def allocatable(self, sku: Sku) -> Resources:
        """Allocatable resources by AKS's rule for the pool's number of pods and its disk."""
        pods = self.agent_pool.max_pods if self.agent_pool is not None else 0
        disk = (self.agent_pool.disk_gib if self.agent_pool is not None else 0) or self.disk_gib or aks.DEFAULT_DISK_GIB
        room = {**aks.allocatable(sku.vcpus, sku.memory_mib, pods=pods or _PODS, disk_gib=disk)}
        if sku.gpus:
            room[sku.gpu_resource] = sku.gpus
        return {**room, **self.hints.resources}

    def taints(self, market: str) -> tuple[Taint, ...]:
        """Taints of the open node, that is, without startup taints."""
        own: list[Taint] = []
        if self.agent_pool is not None:
            own = [taint for text in self.agent_pool.taints if (taint := taint_of(text)) is not None]
            own += [SPOT_TAINT] if market == SPOT else []
        taints = (*own, *self.hints.taints)
        return tuple({(taint.key, taint.effect): taint for taint in taints if taint.key != ARRIVING_TAINT}.values())

    def _node_labels(self, sku: Sku, *, market: str, zone: str, allocatable: Resources) -> dict[str, str]:
        """Labels that kubelet, cloud provider and storage drivers write."""
        labels = node_labels(
            pool=self.pool,
            instance_type=sku.name,
            market="on-demand" if market == RESERVED else market,
            zone=zone_label(self.location, zone),
            region=self.location,
            arch=sku.arch,
            cloud="azure" if self.agent_pool is not None else "",
            details=None,
            allocatable=allocatable,
        )
        # The disk driver leaves the zone of a node without one empty.
        labels[STORAGE_ZONES["azure"]] = zone_key(self.location, zone) if zone else ""
        return {key: value for key, value in labels.items() if not key.startswith(_OPTIONAL_PREFIXES) and key != POOL_LABEL}

    def _aks_labels(self, agent_pool: AgentPool, sku: Sku) -> dict[str, str]:
        labels = {
            "agentpool": agent_pool.name,
            AGENT_POOL_LABEL: agent_pool.name,
            "kubernetes.azure.com/mode": agent_pool.mode.lower(),
            "kubernetes.azure.com/role": "agent",
            "kubernetes.azure.com/nodepool-type": MACHINES if is_word(agent_pool.kind, MACHINES) else agent_pool.kind,
        }
        if is_label_value(agent_pool.node_resource_group):
            labels["kubernetes.azure.com/cluster"] = agent_pool.node_resource_group
        if sku.gpus and sku.manufacturer == "nvidia":
            labels["kubernetes.azure.com/accelerator"] = "nvidia"
        return {**labels, **_own_labels(agent_pool)}


def _own_labels(agent_pool: AgentPool) -> dict[str, str]:
    """The labels in the settings of the agent pool that Kubernetes accepts."""
    return {key: value for key, value in agent_pool.labels.items() if is_qualified_name(key) and is_label_value(value)}


def taint_of(text: str) -> Taint | None:
    """A taint as AKS writes it, ``sku=gpu:NoSchedule``; None if Kubernetes would not accept it."""
    name, colon, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    if not colon or effect not in EFFECTS or not is_qualified_name(key) or not is_label_value(value):
        return None
    return Taint(key, value, effect)
