import pytest

from gpuscaler.settings import parse_policy


def labels(
    instance_type: str, *, market: str = "on-demand", zone: str = "", region: str = "", price: float = 1.0, extra: str = "{}"
) -> dict[str, str]:
    text = f"""
region: {region}
pools:
  - name: p
    labels: {extra}
    offerings:
      - type: {instance_type}
        market: {market}
        zone: {zone}
        price: {price}
"""
    return dict(parse_policy(text).pools[0].offerings[0].labels)


def test_an_aws_gpu_node_has_labels_of_kubernetes_eks_karpenter_and_gpu_discovery() -> None:
    assert labels("g5.12xlarge", market="spot", zone="us-east-1a") == {
        "gpuscaler.io/pool": "p",
        "node.kubernetes.io/instance-type": "g5.12xlarge",
        "beta.kubernetes.io/instance-type": "g5.12xlarge",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "us-east-1a",
        "topology.ebs.csi.aws.com/zone": "us-east-1a",
        "failure-domain.beta.kubernetes.io/zone": "us-east-1a",
        "topology.kubernetes.io/region": "us-east-1",
        "failure-domain.beta.kubernetes.io/region": "us-east-1",
        "karpenter.sh/capacity-type": "spot",
        "eks.amazonaws.com/capacityType": "SPOT",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-A10G",
        "nvidia.com/gpu.count": "4",
        "nvidia.com/gpu.memory": "23028",
        "karpenter.k8s.aws/instance-family": "g5",
        "karpenter.k8s.aws/instance-category": "g",
        "karpenter.k8s.aws/instance-generation": "5",
        "karpenter.k8s.aws/instance-size": "12xlarge",
        "karpenter.k8s.aws/instance-cpu": "48",
        "karpenter.k8s.aws/instance-memory": "196608",
        "karpenter.k8s.aws/instance-gpu-name": "a10g",
        "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
        "karpenter.k8s.aws/instance-gpu-count": "4",
        "karpenter.k8s.aws/instance-gpu-memory": "22888",
    }


@pytest.mark.parametrize(
    ("instance_type", "market", "zone", "expected"),
    [
        (
            "m6i.xlarge",
            "on-demand",
            "us-east-1a",
            {"eks.amazonaws.com/capacityType": "ON_DEMAND", "karpenter.sh/capacity-type": "on-demand"},
        ),
        ("m6i.xlarge", "reserved", "us-east-1a", {"eks.amazonaws.com/capacityType": "ON_DEMAND", "karpenter.sh/capacity-type": "reserved"}),
        ("gr6.4xlarge", "spot", "us-east-1a", {"karpenter.k8s.aws/instance-category": "gr", "karpenter.k8s.aws/instance-generation": "6"}),
        (
            "p6-b200.48xlarge",
            "spot",
            "us-east-1a",
            {"karpenter.k8s.aws/instance-category": "p", "karpenter.k8s.aws/instance-family": "p6-b200"},
        ),
        (
            "Standard_NC24ads_A100_v4",
            "spot",
            "westus3-1",
            {
                "kubernetes.azure.com/scalesetpriority": "spot",
                "kubernetes.azure.com/accelerator": "nvidia",
                "karpenter.azure.com/sku-gpu-name": "A100",
                "karpenter.azure.com/sku-family": "N",
                "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe",
                "topology.kubernetes.io/region": "westus3",
                "topology.disk.csi.azure.com/zone": "westus3-1",
            },
        ),
        (
            "a3-megagpu-8g",
            "spot",
            "us-central1-a",
            {
                "cloud.google.com/gke-spot": "true",
                "cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb",
                "cloud.google.com/machine-family": "a3",
                "karpenter.k8s.gcp/instance-gpu-count": "8",
                "topology.kubernetes.io/region": "us-central1",
                "topology.gke.io/zone": "us-central1-a",
            },
        ),
    ],
)
def test_each_cloud_uses_its_own_labels(instance_type: str, market: str, zone: str, expected: dict[str, str]) -> None:
    read = labels(instance_type, market=market, zone=zone)

    assert {key: read.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("instance_type", "zone", "absent"),
    [
        ("Standard_NC24ads_A100_v4", "westus3-1", "kubernetes.azure.com/scalesetpriority"),
        ("g2-standard-4", "us-central1-a", "cloud.google.com/gke-spot"),
        ("m6i.xlarge", "us-east-1a", "nvidia.com/gpu.present"),
        ("m6i.xlarge", "us-east-1a", "karpenter.k8s.aws/instance-gpu-count"),
        ("g4ad.xlarge", "us-east-1a", "nvidia.com/gpu.present"),
        ("g4-standard-6", "us-central1-a", "nvidia.com/gpu.product"),  # an eighth of a GPU: its product label is unknown
        ("m6i.xlarge", "", "topology.kubernetes.io/zone"),
        ("m6i.xlarge", "", "topology.ebs.csi.aws.com/zone"),
        ("m6i.xlarge", "us-east-1a", "topology.gke.io/zone"),
        ("m6i.xlarge", "", "topology.kubernetes.io/region"),
        ("m6i.xlarge", "us-east-1a", "kubernetes.io/hostname"),
    ],
)
def test_a_machine_has_no_labels_for_features_that_it_lacks(instance_type: str, zone: str, absent: str) -> None:
    assert absent not in labels(instance_type, zone=zone)


@pytest.mark.parametrize(
    ("zone", "region", "expected"),
    [
        ("us-east-1a", "", "us-east-1"),
        ("us-east-1a", "eu-west-1", "us-east-1"),
        ("us-gov-west-1b", "", "us-gov-west-1"),
        ("us-west-2-lax-1a", "", "us-west-2"),
        ("us-east-1-wl1-bos-wlz-1", "", "us-east-1"),
        ("europe-west4-b", "", "europe-west4"),
        ("northamerica-northeast1-a", "", "northamerica-northeast1"),
        ("westeurope-3", "", "westeurope"),
        ("brazilsouth-3", "brazilsouth", "brazilsouth"),
        ("rack-3", "home", "home"),
        ("rack-3", "", None),
        ("", "us-east-1", "us-east-1"),
    ],
)
def test_the_region_label_comes_from_the_name_of_the_zone_or_else_from_the_file(zone: str, region: str, expected: str | None) -> None:
    assert labels("m6i.xlarge", zone=zone, region=region).get("topology.kubernetes.io/region") == expected


def test_configured_labels_take_precedence_over_derived_ones() -> None:
    read = labels("g5.xlarge", zone="us-east-1a", extra='{nvidia.com/gpu.product: NVIDIA-A10G-SHARED, team: "7"}')

    assert read["nvidia.com/gpu.product"] == "NVIDIA-A10G-SHARED"
    assert read["team"] == "7"


def test_gpus_attached_to_a_type_without_gpus_are_counted_in_labels() -> None:
    text = "pools: [{name: p, zones: [us-central1-a], offerings: [{type: n1-standard-8, price: 1, resources: {nvidia.com/gpu: 2}}]}]"

    assert parse_policy(text).pools[0].offerings[0].labels["nvidia.com/gpu.count"] == "2"


def test_an_unknown_type_gets_labels_of_the_cloud_of_its_zone() -> None:
    text = (
        "pools: [{name: p, zones: [us-east-1a], markets: [spot], offerings: [{type: x9.huge, price: 1, resources: {cpu: 1, memory: 1Gi}}]}]"
    )

    read = parse_policy(text).pools[0].offerings[0].labels
    assert read["eks.amazonaws.com/capacityType"] == "SPOT"
    assert read["node.kubernetes.io/instance-type"] == "x9.huge"
