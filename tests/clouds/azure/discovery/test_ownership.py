from collections.abc import Mapping
from typing import Any

import pytest
from tests.clouds.azure.documents.documents import scale_set

from gpuscaler.clouds.azure.discovery.ownership import Ownership, agent_pool_in, decide_agent_pool, decide_scale_set

AUTOSCALER = "k8s.io_cluster-autoscaler"
DISCOVERED = {f"{AUTOSCALER}_enabled": "true", f"{AUTOSCALER}_research": "owned"}


def decide(tags: Mapping[str, str], name: str = "workers", **changes: Any) -> Ownership:
    settings: dict[str, Any] = {"cluster": "research", "named": (), "extra": {}, "exclude": (), **changes}
    return decide_scale_set(name, tags, **settings)


@pytest.mark.parametrize(
    ("tags", "source"),
    [
        (DISCOVERED, "cluster-autoscaler"),
        ({"cluster-autoscaler-enabled": "true", "cluster-autoscaler-name": "research"}, "cluster-autoscaler"),
        ({"gpuscaler.io_cluster": "research"}, "gpuscaler"),
    ],
)
def test_a_scale_set_is_found_by_its_tags(tags: dict[str, str], source: str) -> None:
    assert decide(tags) == Ownership(source)


def test_a_scale_set_without_any_tag_is_ignored_without_a_word() -> None:
    assert decide({"owner": "someone"}) == Ownership()


def test_a_scale_set_is_found_by_name_or_by_the_tags_of_the_settings() -> None:
    assert decide({}, named=("workers",)).source == "named"
    assert decide({"team": "ml"}, extra={"team": "ml"}).source == "tags"
    assert decide({"team": "web"}, extra={"team": "ml"}) == Ownership()


def test_the_name_of_a_cluster_may_be_in_any_case() -> None:
    assert decide({"gpuscaler.io_cluster": "Research"}, cluster="RESEARCH") == Ownership("gpuscaler")
    assert decide({f"{AUTOSCALER}_enabled": "true", f"{AUTOSCALER}_Research": "owned"}) == Ownership("cluster-autoscaler")


@pytest.mark.parametrize(
    "tags",
    [
        {**DISCOVERED, f"{AUTOSCALER}_other": "owned"},
        {"cluster-autoscaler-enabled": "true", "cluster-autoscaler-name": "other"},
        {**DISCOVERED, "gpuscaler.io_cluster": "other"},
    ],
)
def test_a_scale_set_of_another_cluster_is_never_adopted(tags: dict[str, str]) -> None:
    ownership = decide(tags, named=("workers",), extra={})

    assert (ownership.source, ownership.foreign) == ("", True)
    assert "says cluster 'other', expected research; the scale set is never changed" in ownership.reason


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({**DISCOVERED, f"{AUTOSCALER}_enabled": "false"}, f"the tag {AUTOSCALER}_enabled is false"),
        ({f"{AUTOSCALER}_enabled": "true"}, "no tag names its cluster; add gpuscaler.io_cluster"),
        ({f"{AUTOSCALER}_research": "owned"}, f"no tag says that it may be scaled; add {AUTOSCALER}_enabled"),
    ],
)
def test_half_of_the_tags_is_reported_with_the_tag_that_is_missing(tags: dict[str, str], reason: str) -> None:
    ownership = decide(tags)

    assert ownership.source == ""
    assert reason in ownership.reason


def test_without_the_clusters_name_tags_alone_do_not_suffice() -> None:
    assert "the settings name no cluster" in decide(DISCOVERED, cluster="").reason
    assert decide(DISCOVERED, cluster="", named=("workers",)).source == "named"


def test_node_template_tags_name_no_cluster() -> None:
    assert decide({f"{AUTOSCALER}_node-template_label_sku": "gpu"}) == Ownership()


def test_an_excluded_scale_set_is_ignored_with_the_entry_that_does_it() -> None:
    assert decide(DISCOVERED, exclude=("work*",)).reason == "it matches 'work*' in exclude and is ignored"


def test_an_agent_pool_is_the_clusters_own_and_named_ones_need_no_accelerator() -> None:
    assert decide_agent_pool("gpu", {}, named=(), exclude=()).source == "aks"
    assert decide_agent_pool("cpu", {}, named=("cpu",), exclude=()).source == "named"
    assert "exclude" in decide_agent_pool("gpu", {"team": "x"}, named=("gpu",), exclude=("tag:team",)).reason


@pytest.mark.parametrize(
    ("name", "tags", "pool"),
    [
        ("aks-gpu-12345678-vmss", {}, "gpu"),
        ("anything", {"aks-managed-poolName": "gpu"}, "gpu"),
        ("aks-old-12345678-vmss", {"poolName": "gpu"}, "gpu"),
        ("k8s-gpu-12345678-vmss", {}, ""),
        ("workers", {}, ""),
    ],
)
def test_the_agent_pool_of_a_scale_set_is_in_its_tag_or_its_name(name: str, tags: dict[str, str], pool: str) -> None:
    assert agent_pool_in(scale_set(name, tags=tags)) == pool
