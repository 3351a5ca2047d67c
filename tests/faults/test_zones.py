"""F80 and F81: pods that need one certain zone, in groups of several types and zones, on an AWS account."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.aws.accounts import DISCOVERED
from tests.control.aws_stage import Stage, aws_stage
from tests.objects import pod

from gpuscaler.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES

WELL_KNOWN = "topology.kubernetes.io/zone"
BOTH = ("us-east-1a", "us-east-1b")


def group(here: Stage, *types: str, zones: Sequence[str] = BOTH, on_demand: int = 0) -> None:
    """Create a group of one type, or a mixed one with ``on_demand`` percent on demand."""
    ec2, scaling = here.client("ec2"), here.client("autoscaling")
    ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData={"ImageId": "ami-1", "InstanceType": types[0]})
    template = {"LaunchTemplateName": "gpu"}
    what: dict[str, Any] = {"LaunchTemplate": template}
    if len(types) > 1:
        overrides = [{"InstanceType": name} for name in types]
        shares = {"OnDemandPercentageAboveBaseCapacity": on_demand, "SpotAllocationStrategy": "price-capacity-optimized"}
        policy = {"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}, "InstancesDistribution": shares}
        what = {"MixedInstancesPolicy": policy}
    tags = [{"Key": key, "Value": value} for key, value in DISCOVERED.items()]
    scaling.create_auto_scaling_group(AutoScalingGroupName="gpu", MinSize=0, MaxSize=5, AvailabilityZones=list(zones), Tags=tags, **what)


async def submit_bound(here: Stage, name: str, zone: str) -> None:
    """Submit a pod whose node selector names its zone."""
    wants = pod(name, 1)
    wants["spec"]["nodeSelector"] = {WELL_KNOWN: zone}
    await here.user.create(PODS, wants, namespace="default")


async def submit_with_volume(here: Stage, name: str, zone: str, *, key: str = WELL_KNOWN) -> None:
    """Submit a pod whose claim is bound to an EBS volume in ``zone``, with its affinity by the label ``key``, as the driver wrote it."""
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [zone]}]}]
    volume = {
        "capacity": {"storage": "100Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": f"vol-{name}"},
        "claimRef": {"namespace": "default", "name": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}, "volumeName": f"pv-{name}"}
    wants = pod(name, 1)
    wants["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    for resource, made, where in (
        (PERSISTENT_VOLUMES, {"metadata": {"name": f"pv-{name}"}, "spec": volume}, None),
        (PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name, "annotations": bound}, "spec": claim}, "default"),
        (PODS, wants, "default"),
    ):
        await here.user.create(resource, made, **({"namespace": where} if where else {}))


async def zones_of_nodes(here: Stage) -> list[str]:
    return sorted(node["metadata"]["labels"][WELL_KNOWN] for node in await here.nodes())


@pytest.mark.parametrize(
    ("types", "zones"),
    [
        (("g5.xlarge",), BOTH),
        (("g5.xlarge", "g5.2xlarge"), BOTH),
        (("g5.xlarge", "g5.2xlarge"), ("us-east-1b",)),
    ],
    ids=["one type in two zones", "two types in two zones", "two types in one zone"],
)
async def test_f80_a_pod_that_needs_one_zone_gets_a_machine_in_that_zone_from_a_group_with_several_zones(
    tmp_path: Path, types: tuple[str, ...], zones: tuple[str, ...]
) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, *types, zones=zones)
        here.start()
        await submit_bound(here, "train", "us-east-1b")
        await here.until(lambda: all_bound(here), 120)

        assert await zones_of_nodes(here) == ["us-east-1b"]
        assert here.wrote() == {"LaunchInstances": 1}


async def all_bound(here: Stage) -> bool:
    return all((await here.bound()).values())


async def test_f80_a_gang_that_needs_one_zone_gets_its_machines_in_the_zone_with_capacity(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge")
        here.limit(0, zone="us-east-1a")
        here.start()
        await here.submit("a", "b", gang="train", gang_size="2")
        await here.until(lambda: all_bound(here), 240)

        assert await zones_of_nodes(here) == ["us-east-1b", "us-east-1b"]


async def test_f80_one_order_names_the_other_zones_in_case_the_first_has_no_capacity(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge")
        here.limit(0, zone="us-east-1a")
        here.start()
        await here.submit("train")
        await here.until(lambda: all_bound(here), 120)

        assert await zones_of_nodes(here) == ["us-east-1b"]
        assert here.wrote() == {"LaunchInstances": 2}
        assert any(
            "granted: 1 x g5.xlarge spot in us-east-1b" in entry.text and "in us-east-1a refused" in entry.text
            for entry in (await here.status()).happened
        )


async def test_f80_if_a_group_chooses_the_zone_reason_and_warning_advise_one_group_per_zone(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge", on_demand=50)
        here.start()
        await submit_bound(here, "train", "us-east-1b")
        await here.sleep(120)
        status = await here.status()

        assert here.machines() == []
        assert "and the pod fits only in us-east-1b: make one pool per zone" in str(status.waiting)
        assert any("make one group per zone" in warning for warning in status.warnings)


OLD_EBS = "topology.ebs.csi.aws.com/zone"


@pytest.mark.parametrize("key", [OLD_EBS, WELL_KNOWN, "failure-domain.beta.kubernetes.io/zone"])
async def test_f81_a_pod_with_a_volume_gets_a_machine_in_the_volumes_zone_for_the_zone_label_of_any_driver(
    tmp_path: Path, key: str
) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge")
        here.start()
        await submit_with_volume(here, "train", "us-east-1b", key=key)
        await here.until(lambda: all_bound(here), 120)

        assert await zones_of_nodes(here) == ["us-east-1b"]


async def test_f81_a_pod_with_an_unbound_claim_gets_a_machine_in_a_zone_that_its_storage_class_allows(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge")
        here.start()
        allowed = [{"matchLabelExpressions": [{"key": OLD_EBS, "values": ["us-east-1b"]}]}]
        fast = {"metadata": {"name": "fast"}, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"}
        await here.user.create(STORAGE_CLASSES, {**fast, "allowedTopologies": allowed})
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}, "storageClassName": "fast"}
        await here.user.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "train"}, "spec": claim}, namespace="default")
        wants = pod("train", 1)
        wants["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "train"}}]
        await here.user.create(PODS, wants, namespace="default")
        await here.until(here.nodes, 120)

        assert await zones_of_nodes(here) == ["us-east-1b"]
