"""Descriptions that begin with what exists: pools of a file, and nodes of a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.generating.corpus import NAMES, description

from gpuscaler.cli import main
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.description.starting import Origin, Sighting, write_description


def key(group: NodeGroup) -> Any:
    return (
        group.instance_type.name,
        group.market,
        group.zone,
        group.min,
        group.max,
        tuple(sorted(group.labels.items())),
        tuple(sorted(map(str, group.taints))),
    )


def sightings(described: Description) -> list[Sighting]:
    """What an account with the description's groups shows."""
    region = described.cluster.region
    return [
        Sighting(
            group.name,
            group.instance_type.name,
            group.market,
            f"{region}-{group.zone}" if described.cloud == "azure" and group.zone else group.zone,
            {**group.labels, "kubernetes.io/arch": "amd64", "eks.amazonaws.com/nodegroup": group.name},
            group.taints,
            group.min,
            group.max,
        )
        for group in described.groups
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_groups_of_a_description_give_the_same_groups_again(name: str) -> None:
    before = description(name)
    text = write_description(sightings(before), Origin(before.cloud, before.cluster.name, before.cluster.region))
    assert text is not None
    after = read_description(text)
    assert sorted(map(key, after.groups)) == sorted(map(key, before.groups))
    assert (after.cloud, after.tool == "kops", after.cluster.name) == (before.cloud, before.tool == "kops", before.cluster.name)


def node(name: str, instance_type: str, zone: str, **labels: str) -> dict[str, Any]:
    standard = {"node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": zone}
    own = {key.replace("__", "/").replace("_dot_", "."): value for key, value in labels.items()}
    taints = [
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
    ]
    metadata = {"name": name, "labels": {**standard, "topology.kubernetes.io/region": "us-west-2", **own}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": {}}


def describe(tmp_path: Path, *nodes: dict[str, Any]) -> Any:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(nodes)}))
    return CliRunner().invoke(main, ["generate", "description", "--cluster", str(file)])


def test_nodes_of_a_cluster_become_pools(tmp_path: Path) -> None:
    done = describe(
        tmp_path,
        node("a", "g5.xlarge", "us-west-2a", alpha_dot_eksctl_dot_io__cluster_name="x", eks_dot_amazonaws_dot_com__capacityType="SPOT"),
        node("b", "g5.xlarge", "us-west-2b", team="vision"),
        node("c", "g5.xlarge", "us-west-2c", team="vision"),
        node("d", "m6i.large", "us-west-2c"),
    )
    assert done.exit_code == 0, done.output
    described = read_description(done.stdout)
    assert {(group.market, group.zone, group.labels.get("team")) for group in described.groups} == {
        ("spot", "us-west-2a", None),
        ("on-demand", "us-west-2b", "vision"),
        ("on-demand", "us-west-2c", "vision"),
    }
    assert [str(taint) for taint in described.node_taints(described.groups)] == ["nvidia.com/gpu=true:NoSchedule"]
    assert not described.cluster.create


def test_labels_and_taints_that_kubernetes_would_refuse_are_left_out(tmp_path: Path) -> None:
    bad = node("a", "g5.xlarge", "us-west-2a", team="vision")
    injected = "gpu=x:NoSchedule\u2028teams: [{name: research, group: 'system:authenticated'}]\n#"
    bad["metadata"]["labels"] |= {injected: "x", "own": "a\r\nb", "topology.kubernetes.io/region": "us\x85west"}
    bad["spec"]["taints"] += [{"key": injected, "effect": "NoSchedule"}, {"key": "a", "value": "b\n", "effect": "NoSchedule"}]
    done = describe(tmp_path, bad)
    assert done.exit_code == 0, done.output
    assert all(map(str.isprintable, done.stdout.split("\n")))
    assert "Kubernetes would refuse these, so they are left out: label gpu=x" in " ".join(done.stdout.replace("#", "").split())
    described = read_description(done.stdout.replace("us-east-1", "us-west-2"))
    assert described.teams == ()
    assert {(*group.labels.items(), *map(str, group.taints)) for group in described.groups} == {
        (("team", "vision"), "nvidia.com/gpu=true:NoSchedule")
    }


def test_groups_that_are_missing_among_others_are_named(tmp_path: Path) -> None:
    spot = {"eks_dot_amazonaws_dot_com__capacityType": "SPOT"}
    done = describe(tmp_path, node("a", "g5.xlarge", "us-west-2a", **spot), node("b", "g5.xlarge", "us-west-2b"))
    assert "# There is no group yet for on-demand in zone us-west-2a, spot in zone us-west-2b; one is written." in done.stdout


def test_nodes_of_aks_show_subscription_zones_and_pools(tmp_path: Path) -> None:
    subscription, managed = "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "MC_ml-rg_ml_eastus"
    nodes = []
    for zone in ("eastus-1", "eastus-2"):
        one = node(zone, "Standard_NC24ads_A100_v4", zone, agentpool="a100", kubernetes_dot_azure_dot_com__cluster=managed)
        one["metadata"]["labels"]["topology.kubernetes.io/region"] = "eastus"
        machine = f"resourceGroups/{managed}/providers/Microsoft.Compute/virtualMachineScaleSets/aks/virtualMachines/0"
        one["spec"] = {"providerID": f"azure:///subscriptions/{subscription}/{machine}"}
        nodes.append(one)
    done = describe(tmp_path, *nodes)
    described = read_description(done.stdout)
    cluster = described.cluster
    assert (cluster.name, cluster.resource_group, cluster.subscription, cluster.zones) == ("ml", "ml-rg", subscription, ("1", "2"))
    assert {group.pool for group in described.groups} == {"a100"}
    assert "was not found: add" not in done.stdout
    assert "# No taint: pods that need no GPU may take these machines, too." in done.stdout
    for one in nodes:
        del one["spec"]["providerID"]
    assert "The subscription was not found: add subscription: …." in describe(tmp_path, *nodes).stdout


@pytest.mark.parametrize("label", ["eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name", "kops.k8s.io/instancegroup"])
def test_pools_are_called_like_the_groups_of_the_nodes(tmp_path: Path, label: str) -> None:
    one = node("a", "p4d.24xlarge", "us-west-2a")
    one["metadata"]["labels"][label] = "a100-spot-a"
    described = read_description(describe(tmp_path, one).stdout)
    assert {group.pool for group in described.groups} == {"a100"}


def test_without_gpu_nodes_it_says_so(tmp_path: Path) -> None:
    done = describe(tmp_path, node("d", "m6i.large", "us-west-2c"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "saw no GPU machine" in done.stderr


def test_the_pools_of_a_file_become_a_description() -> None:
    done = CliRunner().invoke(main, ["generate", "description", "--config", "docs/examples/aws-gpu-pools-by-size.yaml"])
    described = read_description(done.stdout)
    assert {group.pool for group in described.groups} == {"one-gpu", "four-gpus", "eight-gpus"}
