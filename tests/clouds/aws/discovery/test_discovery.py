"""Groups as tools create them become pools: the real boto3 calls our own endpoint."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.clouds.aws.accounts import BEGAN, CA, CLUSTER, DISCOVERED, Aws, pool, reasons

from gpuscaler.clouds.aws.prices.reservations import Reservation
from gpuscaler.embedded.aws.serving.faults import denied, outage, throttled
from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.taints import Taint

ARRIVING = "IyEvYmluL2Jhc2gKa3ViZWxldCAtLXJlZ2lzdGVyLXdpdGgtdGFpbnRzPWdwdXNjYWxlci5pby9hcnJpdmluZz06Tm9TY2hlZHVsZQ=="

#: A cache that is fresh and well-formed, but contains nonsense.
ODD = (
    f'{{"types": {{"g5.xlarge": {{"at": {BEGAN}, "value": {{"InstanceType": 5}}}}}},'
    f' "offered": {{"us-east-1/g5.xlarge": {{"at": {BEGAN}, "value": 5}}}}}}'
)


def mixed(template: str, *overrides: dict[str, Any], version: str = "$Latest", **shares: Any) -> dict[str, Any]:
    specification = {"LaunchTemplateName": template, "Version": version}
    launch = {"LaunchTemplateSpecification": specification, "Overrides": list(overrides)}
    return {"MixedInstancesPolicy": {"LaunchTemplate": launch, "InstancesDistribution": shares}}


def test_a_named_group_with_a_launch_template_is_a_pool() -> None:
    aws = Aws()
    aws.group("gpus", {}, instance_type="g5.xlarge")
    aws.group("others", {}, instance_type="g5.xlarge")

    discovered = aws.discover(groups=("gpus",))

    aws_pool = pool(discovered, "gpus")
    assert (aws_pool.source, aws_pool.pool.min, aws_pool.pool.max, aws_pool.pool.chooser, aws_pool.launch) == (
        "named",
        0,
        5,
        "buyer",
        "launch-instances",
    )
    (offering,) = aws_pool.pool.offerings
    assert offering.key == ("gpus", "on-demand", "g5.xlarge", "us-east-1a")
    assert offering.price == 1.006
    assert offering.allocatable["nvidia.com/gpu"] == 1
    assert discovered.set_aside == ()


def test_a_spot_group_of_eksctl_has_an_offering_for_each_type_and_zone() -> None:
    """The GPU groups of the write-up S1, with current types."""
    aws = Aws()
    aws.template("gpu-spot", InstanceType="g5.xlarge", UserData=ARRIVING)
    tags = {
        **DISCOVERED,
        "alpha.eksctl.io/cluster-name": CLUSTER,
        f"{CA}/node-template/label/nvidia.com/gpu": "true",
        f"{CA}/node-template/label/k8s.amazonaws.com/accelerator": "nvidia-tesla",
        f"{CA}/node-template/taint/nvidia.com/gpu": "true:NoSchedule",
        f"{CA}/node-template/taint/dedicated": "nvidia.com/gpu=true",
    }
    types = [{"InstanceType": name} for name in ("g5.xlarge", "g5.2xlarge", "g5.12xlarge")]
    shares: dict[str, Any] = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "lowest-price"}
    aws.group("gpu-spot", tags, AvailabilityZones=["us-east-1a", "us-east-1b"], **mixed("gpu-spot", *types, **shares))

    aws_pool = pool(aws.discover(), "gpu-spot")

    assert {offering.key[1:] for offering in aws_pool.pool.offerings} == {
        ("spot", name, zone) for name in ("g5.xlarge", "g5.2xlarge", "g5.12xlarge") for zone in ("us-east-1a", "us-east-1b")
    }
    assert (aws_pool.pool.chooser, aws_pool.pool.names_zone, aws_pool.launch) == ("cloud", True, "launch-instances")
    first = aws_pool.pool.offerings[0]
    assert first.labels["k8s.amazonaws.com/accelerator"] == "nvidia-tesla"
    assert first.taints == (Taint("nvidia.com/gpu", "true"),)
    assert aws_pool.pool.match_labels == {
        "topology.kubernetes.io/region": "us-east-1",
        "nvidia.com/gpu": "true",
        "k8s.amazonaws.com/accelerator": "nvidia-tesla",
    }
    assert aws_pool.pool.configured_labels == ("k8s.amazonaws.com/accelerator", "nvidia.com/gpu")
    warnings = "\n".join(aws_pool.warnings)
    assert "expected VALUE:EFFECT" in warnings
    assert "its types have 1, 4 GPUs" in warnings
    assert "lowest-price gets the machines that are interrupted most" in warnings
    assert "AZRebalance" in warnings
    assert "gpuscaler.io/arriving" not in warnings


def test_a_new_node_is_expected_to_have_the_labels_of_kubelet_and_cloud_controller() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")

    (offering,) = pool(aws.discover(), "gpus").pool.offerings
    labels = offering.labels

    assert labels["node.kubernetes.io/instance-type"] == labels["beta.kubernetes.io/instance-type"] == "g5.xlarge"
    assert labels["topology.kubernetes.io/zone"] == labels["failure-domain.beta.kubernetes.io/zone"] == "us-east-1a"
    assert pool(aws.discover(), "gpus").pool.configured_labels == ()
    assert not [key for key in labels if key.startswith(("gpuscaler.io/", "karpenter", "eks.amazonaws.com/", "aws/", "nvidia.com/"))]
    assert offering.product == "NVIDIA-A10G"


def test_a_kops_group_has_the_labels_of_its_node_template_tags() -> None:
    """The group of the write-up S0, with a current type; g2 is retired."""
    aws = Aws()
    tags = {"KubernetesCluster": CLUSTER, "Name": f"gpu.{CLUSTER}", "k8s.io/role/node": "1", "KubernetesRole": "worker", "kube/gpu": "true"}
    aws.group(f"gpu.{CLUSTER}", tags, instance_type="g5.xlarge", MinSize=1, MaxSize=10)

    aws_pool = pool(aws.discover(), f"gpu.{CLUSTER}")

    labels = aws_pool.pool.offerings[0].labels
    assert (aws_pool.source, aws_pool.pool.min, aws_pool.pool.max) == ("kops", 1, 10)
    assert (labels["aws/type"], labels["aws/class"], labels["aws/region"]) == ("g5.xlarge", "g", "us-east-1")
    assert (labels["aws/az"], labels["aws/ami-id"], labels["gpu"]) == ("us-east-1a", "ami-0123", "true")


def test_a_managed_node_group_has_the_labels_and_taints_from_eks() -> None:
    aws = Aws()
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
    aws.client("eks").create_nodegroup(
        clusterName=CLUSTER, nodegroupName="gpu", labels={"team": "ml"}, taints=[taint], subnets=["s"], nodeRole="r", capacityType="SPOT"
    )
    tags = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpu"}
    aws.template("eks-gpu", InstanceType="g5.xlarge", InstanceMarketOptions={"MarketType": "spot"})
    aws.group("eks-gpu", tags, LaunchTemplate={"LaunchTemplateName": "eks-gpu"})

    aws_pool = pool(aws.discover(), "eks-gpu")

    (offering,) = aws_pool.pool.offerings
    assert (aws_pool.source, offering.market) == ("eks", "spot")
    assert offering.labels["eks.amazonaws.com/capacityType"] == "SPOT"
    assert (offering.labels["team"], offering.labels["eks.amazonaws.com/nodegroup"]) == ("ml", "gpu")
    assert offering.taints == (Taint("nvidia.com/gpu", "true"),)
    assert aws_pool.pool.match_labels == {"eks.amazonaws.com/nodegroup": "gpu", "topology.kubernetes.io/zone": "us-east-1a"}
    assert aws_pool.pool.configured_labels == ("team",)


def test_without_eks_permission_the_missing_action_is_named_and_the_group_is_still_a_pool() -> None:
    aws = Aws()
    aws.endpoint.faults.all.append(denied("DescribeNodegroup"))
    aws.group("eks-gpu", {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpu"}, instance_type="g5.xlarge")

    discovered = aws.discover()

    assert pool(discovered, "eks-gpu").pool.match_labels["eks.amazonaws.com/nodegroup"] == "gpu"
    (note,) = discovered.set_aside
    assert note.object == "Region us-east-1 node groups"
    assert "IAM does not allow eks:DescribeNodegroup in us-east-1" in note.reason


def test_groups_with_requirements_instead_of_types_have_all_matching_types() -> None:
    aws = Aws()
    aws.template("any-gpu", InstanceType="g5.xlarge")
    wanted: dict[str, Any] = {"VCpuCount": {"Min": 4, "Max": 8}, "MemoryMiB": {"Min": 16_000}, "AcceleratorCount": {"Min": 1, "Max": 1}}
    wanted |= {"AcceleratorTypes": ["gpu"], "AllowedInstanceTypes": ["g5.*"]}
    aws.group("any-gpu", **mixed("any-gpu", {"InstanceRequirements": wanted}, OnDemandPercentageAboveBaseCapacity=0))

    types = {offering.instance_type for offering in pool(aws.discover(), "any-gpu").pool.offerings}

    assert types == {"g5.xlarge", "g5.2xlarge"}


def test_a_group_with_a_launch_configuration_is_a_pool_and_reported_as_outdated() -> None:
    aws = Aws()
    aws.client("autoscaling").create_launch_configuration(
        LaunchConfigurationName="old", InstanceType="g5.xlarge", ImageId="ami-1", SpotPrice="0.9"
    )
    aws.group("old", LaunchConfigurationName="old")

    aws_pool = pool(aws.discover(), "old")

    assert (aws_pool.pool.offerings[0].market, aws_pool.launch) == ("spot", "desired-capacity")
    warnings = "\n".join(aws_pool.warnings)
    assert "launch configuration (old), which is outdated" in warnings
    assert "its maximum spot price is $0.9" in warnings


def test_an_unknown_type_is_skipped_and_the_others_of_its_group_are_used() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    aws.group("gpus", **mixed("gpus", {"InstanceType": "g2.2xlarge"}, {"InstanceType": "g5.xlarge"}))
    aws.group("retired", instance_type="g2.8xlarge", NewInstancesProtectedFromScaleIn=False)

    discovered = aws.discover()

    assert [offering.instance_type for offering in pool(discovered, "gpus").pool.offerings] == ["g5.xlarge"]
    assert any("region us-east-1 does not offer type g2.2xlarge" in text for text in pool(discovered, "gpus").warnings)
    fatal, *other_reasons = reasons(discovered)["retired"].split("; ")
    assert fatal == "region us-east-1 does not offer type g2.8xlarge"
    assert any("not protected from scale-in" in text for text in other_reasons)


def test_one_unreadable_group_does_not_stop_the_others() -> None:
    aws = Aws()
    aws.group("good", instance_type="g5.xlarge")
    aws.group("gone", instance_type="g5.xlarge")
    aws.group("counted", instance_type="g5.xlarge", DesiredCapacityType="vcpu")
    aws.client("ec2").delete_launch_template(LaunchTemplateName="gone")

    discovered = aws.discover()

    assert [aws_pool.pool.name for aws_pool in discovered.pools] == ["good"]
    assert reasons(discovered)["gone"] == "its launch template gone could not be read"
    assert "counted in vcpu, expected units" in reasons(discovered)["counted"]


def test_a_group_with_both_markets_has_offerings_in_both_and_aws_chooses_the_market() -> None:
    aws = Aws()
    aws.template("both", InstanceType="g5.xlarge")
    aws.group("both", **mixed("both", OnDemandBaseCapacity=2, OnDemandPercentageAboveBaseCapacity=25))

    aws_pool = pool(aws.discover(), "both")

    assert {offering.market for offering in aws_pool.pool.offerings} == {"spot", "on-demand"}
    assert (aws_pool.pool.chooser, aws_pool.pool.names_zone, aws_pool.launch) == ("cloud", False, "desired-capacity")
    assert "AWS divides the group between markets: the first 2 on demand, then 25 % of the rest" in aws_pool.warnings


def test_weighted_capacity_is_converted_to_machines() -> None:
    aws = Aws()
    aws.template("weighed", InstanceType="g5.xlarge")
    overrides = ({"InstanceType": "g5.xlarge", "WeightedCapacity": "1"}, {"InstanceType": "g5.12xlarge", "WeightedCapacity": "4"})
    aws.group("weighed", MinSize=2, MaxSize=10, **mixed("weighed", *overrides, OnDemandPercentageAboveBaseCapacity=0))

    aws_pool = pool(aws.discover(), "weighed")

    assert (aws_pool.pool.min, aws_pool.pool.max) == (1, 2)
    assert aws_pool.weights == {"g5.xlarge": 1, "g5.12xlarge": 4}


def test_disks_and_network_devices_come_from_the_launch_template() -> None:
    aws = Aws()
    disk = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 200}}]
    interfaces = [{"DeviceIndex": 0, "NetworkCardIndex": card, "InterfaceType": "efa"} for card in range(4)]
    aws.template("fast", InstanceType="p4d.24xlarge", BlockDeviceMappings=disk, NetworkInterfaces=interfaces)
    aws.group("fast", LaunchTemplate={"LaunchTemplateName": "fast"})
    aws.group("plain", instance_type="p4d.24xlarge")

    discovered = aws.discover()

    fast, plain = (pool(discovered, name).pool.offerings[0].allocatable for name in ("fast", "plain"))
    assert fast["vpc.amazonaws.com/efa"] == 4
    assert fast["ephemeral-storage"] == 179 * 2**30
    assert "vpc.amazonaws.com/efa" not in plain
    assert plain["ephemeral-storage"] == 17 * 2**30


def test_a_capacity_reservation_is_an_offering_at_no_additional_cost() -> None:
    aws = Aws()
    reserved = aws.client("ec2").create_capacity_reservation(
        InstanceType="p4d.24xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=3
    )
    ident = reserved["CapacityReservation"]["CapacityReservationId"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": ident}}
    aws.template("block", InstanceType="p4d.24xlarge", CapacityReservationSpecification=target)
    aws.group("block", LaunchTemplate={"LaunchTemplateName": "block"})
    first = {
        "CapacityReservationPreference": "capacity-reservations-first",
        "CapacityReservationTarget": {"CapacityReservationIds": [ident]},
    }
    aws.group("first", instance_type="p4d.24xlarge", CapacityReservationSpecification=first)

    discovered = aws.discover()

    (offering,) = pool(discovered, "block").pool.offerings
    assert (offering.market, offering.price, offering.count) == ("reserved", 0, 3)
    assert [offering.market for offering in pool(discovered, "first").pool.offerings] == ["reserved", "on-demand"]


def test_a_reservation_that_expired_or_is_missing_is_reported_and_has_no_offering() -> None:
    aws = Aws()
    ended = aws.client("ec2").create_capacity_reservation(
        InstanceType="g5.xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=1,
        EndDateType="limited", EndDate=datetime.fromtimestamp(BEGAN - 60, UTC),
    )  # fmt: skip
    ident = ended["CapacityReservation"]["CapacityReservationId"]
    ids = {"CapacityReservationIds": [ident, "cr-0123456789abcdef0"]}
    first = {"CapacityReservationPreference": "capacity-reservations-first", "CapacityReservationTarget": ids}
    aws.group("first", instance_type="g5.xlarge", CapacityReservationSpecification=first)

    aws_pool = pool(aws.discover(), "first")

    assert [offering.market for offering in aws_pool.pool.offerings] == ["on-demand"]
    assert f"its capacity reservation {ident} is over; it is not used" in aws_pool.warnings
    assert "its capacity reservation cr-0123456789abcdef0 could not be read, so it is not used" in aws_pool.warnings


def test_machines_end_30_minutes_before_their_capacity_block_or_60_for_ultraservers() -> None:
    aws = Aws()
    over = datetime.fromtimestamp(BEGAN + 86_400, UTC)
    for name, kind in (("block", "p5.48xlarge"), ("open", "p5.48xlarge")):
        reserved = aws.client("ec2").create_capacity_reservation(
            InstanceType=kind,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone="us-east-1a",
            InstanceCount=2,
            EndDateType="limited",
            EndDate=over,
        )
        ident = reserved["CapacityReservation"]["CapacityReservationId"]
        target = {"CapacityReservationTarget": {"CapacityReservationId": ident}}
        aws.template(name, InstanceType=kind, CapacityReservationSpecification=target)
        aws.group(name, LaunchTemplate={"LaunchTemplateName": name})
        if name == "block":
            entry = aws.account.region("us-east-1").reservations[ident]
            entry["ReservationType"] = "capacity-block"

    discovered = aws.discover()

    ends = {aws_pool.pool.name: [offering.ends for offering in aws_pool.pool.offerings] for aws_pool in discovered.pools}
    assert ends == {"block": [BEGAN + 86_400 - 1800], "open": [0.0]}
    assert list(pool(discovered, "block").ends.values()) == [BEGAN + 86_400 - 1800]
    assert reservation("p6e-gb200.36xlarge", block=True).ending_begins_at == 7200.0 - 3600.0
    assert [reservation("p5.48xlarge", block=True).is_usable(at) for at in (5399.0, 5400.0)] == [True, False]


def test_a_managed_node_group_of_a_capacity_block_has_the_capacity_block_label() -> None:
    aws = Aws()
    reserved = aws.client("ec2").create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )
    target = {"CapacityReservationTarget": {"CapacityReservationId": reserved["CapacityReservation"]["CapacityReservationId"]}}
    market = {"MarketType": "capacity-block"}
    aws.template("block", InstanceType="p5.48xlarge", InstanceMarketOptions=market, CapacityReservationSpecification=target)
    tags = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "block"}
    aws.group("block", tags, LaunchTemplate={"LaunchTemplateName": "block"})

    (offering,) = pool(aws.discover(), "block").pool.offerings

    assert (offering.market, offering.labels["eks.amazonaws.com/capacityType"]) == ("reserved", "CAPACITY_BLOCK")


def reservation(instance_type: str, *, block: bool) -> Reservation:
    return Reservation("cr-1", instance_type, "us-east-1a", 1, ends=7200.0, block=block)


def test_groups_of_another_cluster_and_groups_with_only_the_enabled_tag_are_reported() -> None:
    aws = Aws()
    aws.group("theirs", {f"{CA}/enabled": "true", f"{CA}/other": "owned"}, instance_type="g5.xlarge")
    aws.group("anybodys", {f"{CA}/enabled": "true"}, instance_type="g5.xlarge")
    aws.group("web", {"Name": "web"}, instance_type="g5.xlarge")

    discovered = aws.discover()

    assert discovered.pools == ()
    assert set(reasons(discovered)) == {"theirs", "anybodys"}
    assert "'other', expected research" in reasons(discovered)["theirs"]


def test_groups_with_the_configured_tags_are_pools() -> None:
    aws = Aws()
    aws.group("marked", {"team": "ml", "env": "prod"}, instance_type="g5.xlarge")
    aws.group("half", {"team": "ml"}, instance_type="g5.xlarge")

    discovered = aws.discover(tags={"team": "ml", "env": "prod"})

    assert [(aws_pool.pool.name, aws_pool.source) for aws_pool in discovered.pools] == [("marked", "tags")]


def test_the_settings_file_overrides_discovery() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    override = PoolOverride("gpus", max=3, priority=5, prices=(OfferingPrice("g5.xlarge", 0.7),))

    discovered = aws.discover(overrides=(override, PoolOverride("gpu")), prices=(OfferingPrice("g5.xlarge", 9.0, "on-demand"),))

    changed_pool = pool(discovered, "gpus").pool
    assert (changed_pool.max, changed_pool.priority, changed_pool.offerings[0].price) == (3, 5, 0.7)
    assert [(aside.object, aside.reason[:15]) for aside in discovered.set_aside] == [("Pool gpu", "saw the pool in")]


def test_several_regions_are_read_and_a_failing_one_keeps_its_last_known_pools() -> None:
    aws = Aws(regions=("us-east-1", "eu-west-1"))
    for region in aws.regions:
        aws.group("gpus", instance_type="g5.xlarge", region=region)
    discovery = aws.discovery()
    before = discovery.discover()
    aws.endpoint.faults.all.append(outage(region="eu-west-1"))

    after = discovery.discover()
    discovery.close()

    assert {aws_pool.pool.name for aws_pool in before.pools} == {"gpus.us-east-1", "gpus.eu-west-1"}
    assert [aws_pool.pool for aws_pool in after.pools] == [aws_pool.pool for aws_pool in before.pools]
    assert (after.failed, after.forbidden) == (("eu-west-1",), False)
    assert [aside.object for aside in after.set_aside] == ["Region eu-west-1"]


def test_without_permission_to_read_groups_the_action_is_named() -> None:
    aws = Aws()
    aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups"))

    discovered = aws.discover()

    assert (discovered.failed, discovered.forbidden) == (("us-east-1",), True)
    assert "IAM does not allow autoscaling:DescribeAutoScalingGroups in us-east-1" in discovered.set_aside[0].reason
    assert aws.waited == []


def test_data_of_denied_calls_comes_from_the_catalogue() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge", InstanceMarketOptions={"MarketType": "spot"})
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "gpus"})
    for operation in ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "GetProducts", "DescribeSpotPriceHistory"):
        aws.endpoint.faults.all.append(denied(operation))

    discovered = aws.discover()

    (offering,) = pool(discovered, "gpus").pool.offerings
    assert offering.allocatable["nvidia.com/gpu"] == 1
    assert 0 < offering.price < 1.006
    assert {aside.object.removeprefix("Region us-east-1 ") for aside in discovered.set_aside} == {
        "instance types",
        "zones of instance types",
        "spot prices",
    }


def test_throttled_reads_are_retried_with_growing_waits() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    aws.endpoint.faults.all.append(throttled("DescribeAutoScalingGroups", times=3))

    discovered = aws.discover()

    assert [aws_pool.pool.name for aws_pool in discovered.pools] == ["gpus"]
    assert len(aws.waited) == 3
    assert all(low <= wait <= high for wait, low, high in zip(aws.waited, (0.125, 0.25, 0.5), (0.25, 0.5, 1.0), strict=True))


def test_a_region_that_stays_throttled_is_reported_and_its_retry_after_time_respected() -> None:
    aws = Aws()
    aws.endpoint.faults.all.append(throttled("DescribeAutoScalingGroups", retry_after=3))

    discovered = aws.discover()

    assert discovered.failed == ("us-east-1",)
    assert aws.waited == [3.0] * 4


def test_data_that_rarely_changes_is_not_requested_in_every_pass() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    aws.group("gpus", **mixed("gpus", OnDemandPercentageAboveBaseCapacity=0))
    discovery = aws.discovery()
    discovery.discover()
    aws.session.call_counts.clear()

    aws.time += 60
    discovery.discover()
    second = dict(aws.session.call_counts)
    aws.time += 300
    discovery.discover()
    discovery.close()

    assert second == {"DescribeAutoScalingGroups": 1, "DescribeLaunchTemplates": 1}
    assert aws.session.call_counts == {"DescribeAutoScalingGroups": 2, "DescribeLaunchTemplates": 2, "DescribeSpotPriceHistory": 1}


def test_a_new_version_of_a_launch_template_is_found_in_the_next_pass() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    for version in ("$Latest", "$Default", "1"):
        aws.group(f"gpus-{version.strip('$')}", LaunchTemplate={"LaunchTemplateName": "gpus", "Version": version})
    discovery = aws.discovery()
    discovery.discover()
    aws.client("ec2").create_launch_template_version(LaunchTemplateName="gpus", LaunchTemplateData={"InstanceType": "g5.2xlarge"})

    discovered = discovery.discover()
    discovery.close()

    types = {aws_pool.pool.name: aws_pool.pool.offerings[0].instance_type for aws_pool in discovered.pools}
    assert types == {"gpus-Latest": "g5.2xlarge", "gpus-Default": "g5.xlarge", "gpus-1": "g5.xlarge"}


def test_a_new_image_or_a_resumed_process_changes_the_pools_revision() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "gpus", "Version": "$Latest"})
    discovery = aws.discovery()

    def revision() -> str:
        return pool(discovery.discover(), "gpus").pool.revision

    seen = [revision(), revision()]
    aws.client("ec2").create_launch_template_version(
        LaunchTemplateName="gpus", LaunchTemplateData={"InstanceType": "g5.xlarge", "ImageId": "ami-2"}
    )
    seen.append(revision())
    aws.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["Launch"])
    seen.append(revision())
    discovery.close()

    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_types_and_list_prices_are_kept_on_disk_for_the_next_process(tmp_path: Path) -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    first = aws.discover(folder=tmp_path)
    aws.session.call_counts.clear()

    again = aws.discover(folder=tmp_path)

    assert again.pools == first.pools
    assert not {"DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "GetProducts"} & aws.session.call_counts.keys()


def test_a_broken_cache_file_is_ignored(tmp_path: Path) -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    for text in (
        "",
        "[]",
        '{"types": {"g5.xlarge": {"at": "now"}}}',
        '{"types": {"g5.xlarge": {"at": 1e99, "value": {"InstanceType": 5}}}}',
    ):
        aws.discover(folder=tmp_path)
        (file,) = tmp_path.iterdir()
        file.write_text(text)

        assert [aws_pool.pool.name for aws_pool in aws.discover(folder=tmp_path).pools] == ["gpus"]


def test_a_pool_can_be_named_by_a_node_label_and_long_names_are_shortened() -> None:
    aws = Aws()
    aws.group("asg-7f3a", {**DISCOVERED, f"{CA}/node-template/label/gpuscaler.io/pool": "gpus"}, instance_type="g5.xlarge")
    aws.template("gpus", InstanceType="g5.xlarge")
    aws.group("an odd: name", LaunchTemplate={"LaunchTemplateName": "gpus"})

    discovered = aws.discover()

    assert pool(discovered, "gpus").pool.offerings[0].labels["gpuscaler.io/pool"] == "gpus"
    assert "the pool is called an-odd--name here" in pool(discovered, "an-odd--name").warnings


def test_a_tag_of_another_group_does_not_rename_a_pool() -> None:
    aws = Aws()
    aws.group("another", {**DISCOVERED, f"{CA}/node-template/label/gpuscaler.io/pool": "gpus"}, instance_type="g5.xlarge")
    aws.group("gpus", instance_type="g5.xlarge")

    discovered = aws.discover()

    assert {aws_pool.group.name: aws_pool.pool.name for aws_pool in discovered.pools} == {"gpus": "gpus", "another": "gpus.us-east-1"}


def test_hundreds_of_groups_are_read_in_pages() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    for number in range(130):
        aws.group(f"gpus-{number}", LaunchTemplate={"LaunchTemplateName": "gpus"})

    discovered = aws.discover()

    assert len(discovered.pools) == 130
    assert aws.session.call_counts["DescribeAutoScalingGroups"] == 2
    assert aws.session.call_counts["DescribeLaunchTemplateVersions"] == 1


def test_each_group_of_a_terraform_module_with_one_group_per_type_and_market_is_a_pool() -> None:
    """The layout of the write-up S4: no fleets, spot groups beside on-demand ones, all but one from zero."""
    aws = Aws()
    for name in ("g5.xlarge", "g5.2xlarge", "g4dn.xlarge"):
        for market in ("spot", "on-demand"):
            group = f"{market}-{name.replace('.', '-')}"
            more: dict[str, Any] = (
                {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.2"}}} if market == "spot" else {}
            )
            aws.template(group, InstanceType=name, UserData=ARRIVING, **more)
            tags = DISCOVERED | {f"{CA}/node-template/label/market": market}
            aws.group(group, tags, MaxSize=8, LaunchTemplate={"LaunchTemplateName": group})

    discovered = aws.discover()

    assert {
        (aws_pool.pool.name, aws_pool.pool.chooser, aws_pool.launch, aws_pool.pool.offerings[0].market) for aws_pool in discovered.pools
    } == {
        (f"{market}-{name}", "buyer", "launch-instances", market)
        for name in ("g5-xlarge", "g5-2xlarge", "g4dn-xlarge")
        for market in ("spot", "on-demand")
    }
    assert list(pool(discovered, "spot-g5-xlarge").warnings) == [
        "its maximum spot price is $0.2, above which nothing is granted; remove the maximum"
    ]
    assert pool(discovered, "on-demand-g5-xlarge").warnings == ()


def test_launch_templates_without_permission_are_reported_once_and_requested_once_per_pass() -> None:
    aws = Aws()
    for number in range(20):
        aws.group(f"gpus-{number}", instance_type="g5.xlarge")
    aws.endpoint.faults.all.append(denied("DescribeLaunchTemplateVersions"))

    discovered = aws.discover()

    assert discovered.pools == ()
    notes = [aside for aside in discovered.set_aside if aside.object.startswith("Region")]
    assert [note.object for note in notes] == ["Region us-east-1 versions of launch templates"]
    # As many as were in progress when the first one was refused.
    assert aws.session.call_counts["DescribeLaunchTemplateVersions"] <= 8


def test_a_missing_launch_template_does_not_cause_the_others_to_be_read_again() -> None:
    aws = Aws()
    for name in ("good", "gone"):
        aws.group(name, instance_type="g5.xlarge")
    aws.client("ec2").delete_launch_template(LaunchTemplateName="gone")
    discovery = aws.discovery()
    discovery.discover()
    aws.session.call_counts.clear()

    discovered = discovery.discover()
    discovery.close()

    assert [aws_pool.pool.name for aws_pool in discovered.pools] == ["good"]
    assert aws.session.call_counts["DescribeLaunchTemplateVersions"] == 1


def test_prices_of_the_settings_file_are_not_checked() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")

    discovered = aws.discover(prices=(OfferingPrice("g5.xlarge", 500.0, "on-demand"), OfferingPrice("g5.xlarge", 0.0, "reserved")))

    assert pool(discovered, "gpus").pool.offerings[0].price == 500
    assert not any("price" in text for text in pool(discovered, "gpus").warnings)


def test_a_type_unknown_to_a_region_is_requested_again_within_the_hour() -> None:
    aws = Aws()
    aws.group("new", instance_type="x99.xlarge")
    aws.group("gpus", instance_type="g5.xlarge")
    discovery = aws.discovery()
    discovery.discover()
    aws.session.call_counts.clear()

    aws.time += 3_599
    discovery.discover()
    before = aws.session.call_counts.get("DescribeInstanceTypes", 0)
    aws.time += 2
    discovery.discover()
    discovery.close()

    assert (before, aws.session.call_counts["DescribeInstanceTypes"]) == (0, 1)


def test_only_managed_node_groups_with_accelerators_are_pools() -> None:
    """EKS puts Cluster Autoscaler's tags on all of them, including the one for CoreDNS and gpuscaler itself."""
    aws = Aws()
    managed = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "any", **DISCOVERED}
    aws.group("system", managed, instance_type="m5.xlarge")
    aws.group("gpus", managed, instance_type="g5.xlarge")
    aws.group("taken", managed, instance_type="m5.xlarge")
    aws.group("self-managed", DISCOVERED, instance_type="m5.xlarge")

    discovered = aws.discover(groups=("taken",))

    sources = {aws_pool.pool.name: aws_pool.source for aws_pool in discovered.pools}
    assert sources == {"gpus": "eks", "taken": "named", "self-managed": "cluster-autoscaler"}
    assert reasons(discovered)["system"] == "it has no accelerator; name it in aws.groups to adopt it"
    assert [aws_pool.pool.name for aws_pool in discovered.released] == ["system"]


def test_settings_for_a_group_without_accelerators_are_reported_with_how_to_adopt_the_group() -> None:
    aws = Aws()
    aws.group("system", {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "system"}, instance_type="m5.xlarge")

    discovered = aws.discover(overrides=[PoolOverride("system", max=3)])

    reason = "saw the pool in the file, but its group is not adopted: it has no accelerator; name it in aws.groups to adopt it"
    assert [skipped.reason for skipped in discovered.set_aside if skipped.object == "Pool system"] == [reason]


def test_settings_of_every_pool_apply_to_each_that_is_found_unless_its_tags_say_otherwise() -> None:
    aws = Aws()
    for name, tags in (
        ("plain", {}),
        ("tagged", {"k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime": "3m"}),
    ):
        aws.group(name, {**DISCOVERED, **tags}, instance_type="g5.xlarge")

    discovered = aws.discover(overrides=[PoolOverride("*", idle_after=60.0, unready_after=900.0)])

    assert {found.pool.name: (found.pool.idle_after, found.pool.unready_after) for found in discovered.pools} == {
        "plain": (60.0, 900.0),
        "tagged": (180.0, 900.0),
    }
    assert discovered.set_aside == ()
