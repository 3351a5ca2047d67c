"""Resources by the names that rules use."""

import pytest

from gpuscaler.metrics.rules.resources import WELL_KNOWN, Resource, ResourceError, Resources, custom_resource


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
def test_a_resource_is_found_by_each_of_its_names(name: str, group: str, text: str) -> None:
    assert Resources().find(name, group).text == text


@pytest.mark.parametrize(("name", "group"), [("turbine", ""), ("pod", "apps"), ("", "")])
def test_the_error_names_an_unknown_resource(name: str, group: str) -> None:
    with pytest.raises(ResourceError, match="expected a resource of the cluster"):
        Resources().find(name, group)


def test_a_resource_is_parsed_from_plural_and_group() -> None:
    assert Resources().parse("jobs.batch") == Resource("jobs", "job", "batch")
    assert not Resources().parse("nodes").namespaced


def test_a_plural_with_several_singulars_is_refused() -> None:
    other = Resources((*WELL_KNOWN, Resource("pods", "peapod", "garden.example")))
    with pytest.raises(ResourceError, match="with 2 singulars"):
        other.singular("pods")


@pytest.mark.parametrize(
    ("name", "plural", "singular"),
    [
        ("rollout", "rollouts", "rollout"),
        ("Rollouts", "rollouts", "rollout"),
        ("gateway", "gateways", "gateway"),
        ("policy", "policies", "policy"),
        ("policies", "policies", "policy"),
        ("index", "indexes", "index"),
        ("batch", "batches", "batch"),
        ("class", "classes", "class"),
    ],
)
def test_plural_and_singular_of_custom_resources_are_guessed(name: str, plural: str, singular: str) -> None:
    assert custom_resource(name, "example.org") == Resource(plural, singular, "example.org")
