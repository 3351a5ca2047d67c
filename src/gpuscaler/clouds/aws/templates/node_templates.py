"""What a new node of a group looks like before there is one: labels, taints, allocatable resources."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuscaler.catalogue import InstanceType
from gpuscaler.catalogue.node_labels import node_labels
from gpuscaler.clouds.aws.templates.hints import Hints
from gpuscaler.clouds.aws.templates.instance_types import with_disk, with_local_disks, with_pods
from gpuscaler.clouds.aws.templates.launches import Launch
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup
from gpuscaler.model.accelerators import gpus_in
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

_CAPACITY_TYPE = "eks.amazonaws.com/capacityType"
_EFA = "vpc.amazonaws.com/efa"
#: Labels that only software writes which a cluster may lack.
_OTHERS = ("karpenter.", "nvidia.com/gpu.")


class NodeTemplate(Struct, frozen=True):
    """What tags and EKS say of the nodes of a group; ``openai`` adds the labels that OpenAI's autoscaler selects by."""

    pool: str
    region: str
    hints: Hints
    nodegroup: Nodegroup | None = None
    openai: bool = False

    def telling(self, zones: Sequence[str]) -> Mapping[str, str]:
        """Labels that tell the group's nodes from others': those of tags and EKS, and the zone where it is in one, else the region."""
        place = {"topology.kubernetes.io/zone": zones[0]} if len(zones) == 1 else {"topology.kubernetes.io/region": self.region}
        return {**place, **(self.nodegroup.own_labels if self.nodegroup else {}), **self.hints.labels}

    def offering(self, launch: Launch, kind: InstanceType, *, market: str, zone: str, price: float) -> Offering:
        """One way to buy; tags win over EKS, and EKS over what kubelet and cloud provider do by themselves."""
        allocatable = self.allocatable(launch, kind)
        labels = self._own_labels(kind, market=market, zone=zone, allocatable=allocatable)
        if self.openai:
            labels.update(_openai_labels(kind.name, region=self.region, zone=zone, image=launch.image))
        if self.nodegroup is not None:
            in_eks = "CAPACITY_BLOCK" if launch.market == "capacity-block" else "SPOT" if market == "spot" else "ON_DEMAND"
            labels.update({_CAPACITY_TYPE: in_eks, **self.nodegroup.labels})
        labels.update(self.hints.labels)
        taints = self.taints()
        sold = gpus_in(kind.allocatable)
        return Offering(self.pool, market, kind.name, zone, price, allocatable, labels, taints, product=kind.gpu_product, accelerators=sold)

    def allocatable(self, launch: Launch, kind: InstanceType) -> Resources:
        """EFA devices are there only if the launch template attaches them."""
        sized = with_local_disks(kind) if launch.local_disks and kind.instance_store else with_disk(kind, launch.disk)
        found = {**with_pods(sized, launch.pods).allocatable}
        if launch.efa:
            found[_EFA] = min(launch.efa, kind.efa or launch.efa)
        return {**found, **self.hints.resources}

    def taints(self) -> tuple[Taint, ...]:
        """Those of the open node: without our start-up taint."""
        said = (*(self.nodegroup.taints if self.nodegroup else ()), *self.hints.taints)
        return tuple({(one.key, one.effect): one for one in said if one.key != ARRIVING_TAINT}.values())

    def _own_labels(self, kind: InstanceType, *, market: str, zone: str, allocatable: Resources) -> dict[str, str]:
        """What kubelet, cloud provider and storage drivers write: no pool's name, nothing of Karpenter's, EKS' market only where EKS is.

        Nor what GPU feature discovery writes: whether that runs, a tag or a live node says.
        """
        found = node_labels(
            pool=self.pool,
            instance_type=kind.name,
            market=market,
            zone=zone,
            region=self.region,
            arch=kind.arch,
            cloud="aws",
            known=kind,
            allocatable=allocatable,
        )
        return {key: value for key, value in found.items() if not key.startswith(_OTHERS) and key not in (POOL_LABEL, _CAPACITY_TYPE)}


def _openai_labels(instance_type: str, *, region: str, zone: str, image: str) -> dict[str, str]:
    found = {"aws/type": instance_type, "aws/class": instance_type[0], "aws/region": region, "aws/az": zone}
    return found | ({"aws/ami-id": image} if image else {})
