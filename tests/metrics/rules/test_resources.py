"""Resources by the names that rules call them."""

from typing import Any

import pytest

from gpuscaler.metrics.rules.resources import WELL_KNOWN, Resource, ResourceError, Resources, from_lists


@pytest.mark.parametrize(
    ("name", "group", "text"),
    [
        ("pod", "", "pods"),
        ("Pods", "", "pods"),
        ("deployment", "", "deployments.apps"),
        ("deployments", "apps", "deployments.apps"),
        ("storageclass", "storage", "storageclasses.storage.k8s.io"),
        ("ingress", "", "ingresses.networking.k8s.io"),
        ("endpoints", "", "endpoints"),
    ],
)
def test_finds(name: str, group: str, text: str) -> None:
    assert Resources().find(name, group).text == text


@pytest.mark.parametrize(("name", "group"), [("turbine", ""), ("pod", "apps"), ("", "")])
def test_says_what_it_does_not_know(name: str, group: str) -> None:
    with pytest.raises(ResourceError, match="expected a resource of the cluster"):
        Resources().find(name, group)


def test_reads_a_resource_as_the_api_writes_it() -> None:
    assert Resources().parsed("jobs.batch") == Resource("jobs", "job", "batch")
    assert not Resources().parsed("nodes").namespaced


def test_refuses_a_plural_of_several_singulars() -> None:
    other = Resources((*WELL_KNOWN, Resource("pods", "peapod", "garden.example")))
    with pytest.raises(ResourceError, match="with 2 singulars"):
        other.singular("pods")


def test_reads_the_lists_of_an_api_server() -> None:
    lists: list[dict[str, Any]] = [
        {
            "groupVersion": "argoproj.io/v1alpha1",
            "resources": [
                {"name": "rollouts", "kind": "Rollout", "namespaced": True},
                {"name": "rollouts/scale", "kind": "Scale", "group": "autoscaling"},
                {"name": None, "kind": "Odd"},
            ],
        },
        {"groupVersion": "argoproj.io/v1", "resources": [{"name": "rollouts", "kind": "Rollout", "namespaced": True}]},
        {"groupVersion": "v1", "resources": [{"name": "nodes", "kind": "Node", "namespaced": False}]},
        {"groupVersion": "v2", "resources": None},
    ]
    assert from_lists(lists) == (Resource("rollouts", "rollout", "argoproj.io"), Resource("nodes", "node", namespaced=False))
