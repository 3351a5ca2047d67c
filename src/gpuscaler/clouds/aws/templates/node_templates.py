"""The node template of a group: the expected labels, taints and allocatable resources of a new node."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuscaler.catalogue import InstanceType
from gpuscaler.catalogue.node_labels import node_labels
from gpuscaler.clouds.aws.templates.instance_types import with_disk, with_local_disks, with_pods
from gpuscaler.clouds.aws.templates.launches import Launch
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup
from gpuscaler.clouds.discovery.hints import Hints
from gpuscaler.clouds.discovery.settings import with_pool_label
from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

_CAPACITY_TYPE = "eks.amazonaws.com/capacityType"
_EFA = "vpc.amazonaws.com/efa"
#: Prefixes of labels that are written only by software a cluster may not run.
_OTHERS = ("karpenter.", "nvidia.com/gpu.")


class NodeTemplate(Struct, frozen=True):
    """Node properties from tags and EKS; ``openai`` adds the labels that OpenAI's autoscaler selects by."""

    pool: str
    region: str
    hints: Hints
    nodegroup: Nodegroup | None = None
    openai: bool = False

    def identifying_labels(self, zones: Sequence[str]) -> Mapping[str, str]:
        """Labels that identify the group's nodes: those of tags and EKS, and the zone if there is only one, else the region."""
        place = {"topology.kubernetes.io/zone": zones[0]} if len(zones) == 1 else {"topology.kubernetes.io/region": self.region}
        return {**place, **(self.nodegroup.own_labels if self.nodegroup else {}), **self.hints.labels}

    def configured_labels(self) -> tuple[str, ...]:
        """The keys of labels that a person has set: in tags, or in the settings of the node group."""
        in_settings = self.nodegroup.labels.keys() - self.nodegroup.own_labels.keys() if self.nodegroup is not None else set()
        return tuple(sorted(in_settings | self.hints.labels.keys()))

    def offering(self, launch: Launch, kind: InstanceType, *, market: str, zone: str, price: float) -> Offering:
        """One way to buy; tags take precedence over EKS, and EKS over the defaults of kubelet and cloud provider."""
        allocatable = self.allocatable(launch, kind)
        labels = self._own_labels(kind, market=market, zone=zone, allocatable=allocatable)
        if self.openai:
            labels.update(_openai_labels(kind.name, region=self.region, zone=zone, image=launch.image))
        if self.nodegroup is not None:
            in_eks = "CAPACITY_BLOCK" if launch.market == "capacity-block" else "SPOT" if market == "spot" else "ON_DEMAND"
            labels.update({_CAPACITY_TYPE: in_eks, **self.nodegroup.labels})
        labels.update(self.hints.labels)
        return Offering(
            self.pool,
            market,
            kind.name,
            zone,
            price,
            allocatable,
            with_pool_label(labels, self.pool),
            self.taints(),
            product=kind.gpu_product,
            accelerators=count_accelerators(kind.allocatable),
        )

    def allocatable(self, launch: Launch, kind: InstanceType) -> Resources:
        """Allocatable resources; EFA devices are included only if the launch template attaches them."""
        sized = with_local_disks(kind) if launch.local_disks and kind.instance_store else with_disk(kind, launch.disk)
        allocatable = {**with_pods(sized, launch.pods).allocatable}
        if launch.efa:
            allocatable[_EFA] = min(launch.efa, kind.efa or launch.efa)
        return {**allocatable, **self.hints.resources}

    def taints(self) -> tuple[Taint, ...]:
        """Taints of the open node, that is, without our startup taint."""
        taints = (*(self.nodegroup.taints if self.nodegroup else ()), *self.hints.taints)
        return tuple({(taint.key, taint.effect): taint for taint in taints if taint.key != ARRIVING_TAINT}.values())

    def _own_labels(self, kind: InstanceType, *, market: str, zone: str, allocatable: Resources) -> dict[str, str]:
        """Labels that kubelet, cloud provider and storage drivers write, without the pool's name, Karpenter's labels and EKS's market.

        Labels of GPU feature discovery are left out too: only a tag or a live node shows whether it runs.
        """
        labels = node_labels(
            pool=self.pool,
            instance_type=kind.name,
            market=market,
            zone=zone,
            region=self.region,
            arch=kind.arch,
            cloud="aws",
            details=kind,
            allocatable=allocatable,
        )
        return {key: value for key, value in labels.items() if not key.startswith(_OTHERS) and key not in (POOL_LABEL, _CAPACITY_TYPE)}


def _openai_labels(instance_type: str, *, region: str, zone: str, image: str) -> dict[str, str]:
    labels = {"aws/type": instance_type, "aws/class": instance_type[0], "aws/region": region, "aws/az": zone}
    return labels | ({"aws/ami-id": image} if image else {})
