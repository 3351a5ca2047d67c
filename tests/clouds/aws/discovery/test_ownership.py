import pytest
from tests.clouds.aws.accounts import CA, CLUSTER

from gpuscaler.clouds.aws.discovery.ownership import Ownership, decide_ownership

CA_TAGS = {f"{CA}/enabled": "true", f"{CA}/{CLUSTER}": "owned"}
#: Tags that tools put on the groups they create, 2026.
KOPS = {
    "KubernetesCluster": CLUSTER,
    "Name": f"nodes.{CLUSTER}",
    "k8s.io/role/node": "1",
    "kops.k8s.io/instancegroup": "nodes",
    f"kubernetes.io/cluster/{CLUSTER}": "owned",
}
EKS = {
    "eks:cluster-name": CLUSTER,
    "eks:nodegroup-name": "gpu",
    f"{CA}/enabled": "true",
    f"{CA}/{CLUSTER}": "owned",
    f"kubernetes.io/cluster/{CLUSTER}": "owned",
}
EKSCTL = {
    "alpha.eksctl.io/cluster-name": CLUSTER,
    "alpha.eksctl.io/nodegroup-name": "gpu-spot",
    "eksctl.cluster.k8s.io/v1alpha1/cluster-name": CLUSTER,
    "eksctl.io/v1alpha2/nodegroup-name": "gpu-spot",
    f"kubernetes.io/cluster/{CLUSTER}": "owned",
}
TERRAFORM = {"Name": "gpu", f"kubernetes.io/cluster/{CLUSTER}": "owned", **CA_TAGS}


def judge(
    tags: dict[str, str],
    *,
    cluster: str = CLUSTER,
    named: tuple[str, ...] = (),
    extra: dict[str, str] | None = None,
    exclude: tuple[str, ...] = (),
) -> Ownership:
    return decide_ownership("group", tags, cluster=cluster, named=named, extra=extra or {}, exclude=exclude)


@pytest.mark.parametrize(
    ("tags", "source"),
    [
        (CA_TAGS, "cluster-autoscaler"),
        (TERRAFORM, "cluster-autoscaler"),
        ({**EKSCTL, **CA_TAGS}, "cluster-autoscaler"),
        (EKS, "eks"),
        ({"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpu"}, "eks"),
        (KOPS, "kops"),
        ({"KubernetesCluster": CLUSTER, "KubernetesRole": "worker"}, "kops"),
        ({"KubernetesCluster": CLUSTER, "Role": "kubernetes-minion"}, "kops"),
        ({"KubernetesCluster": CLUSTER, "Role": "minion"}, "kops"),
    ],
)
def test_a_group_is_adopted_by_the_tags_of_the_tool_that_created_it(tags: dict[str, str], source: str) -> None:
    assert judge(tags) == Ownership(source)


@pytest.mark.parametrize("tags", [CA_TAGS, KOPS, EKS, EKSCTL, {f"{CA}/enabled": "true"}])
def test_without_a_cluster_name_nothing_is_adopted(tags: dict[str, str]) -> None:
    assert "no cluster name" in judge(tags, cluster="").reason
    assert "no cluster name" in judge(tags, cluster="", named=("group",)).reason


def test_a_group_with_only_the_enabled_tag_is_reported_and_not_adopted() -> None:
    verdict = judge({f"{CA}/enabled": "true"})

    assert verdict.source == ""
    assert verdict.reason.endswith(f"no tag names its cluster; add {CA}/{CLUSTER}=owned, or name it in aws.groups")


def test_an_enabled_group_with_another_ownership_tag_is_reported_with_the_missing_tag() -> None:
    verdict = judge({**EKSCTL, f"{CA}/enabled": "true"})

    assert verdict.source == ""
    assert (
        f"without {CA}/{CLUSTER}, expected both: the tag alpha.eksctl.io/cluster-name says that it is this cluster's; add" in verdict.reason
    )


@pytest.mark.parametrize(
    "claim",
    [
        {f"{CA}/other": "owned"},
        {"KubernetesCluster": "other"},
        {"eks:cluster-name": "other"},
        {"kubernetes.io/cluster/other": "shared"},
        {"alpha.eksctl.io/cluster-name": "other"},
    ],
)
def test_another_clusters_group_is_never_adopted_whatever_its_other_tags(claim: dict[str, str]) -> None:
    verdict = judge({**CA_TAGS, **claim, "team": "ml"}, named=("group",), extra={"team": "ml"})

    assert verdict.source == ""
    assert "'other'" in verdict.reason
    assert next(iter(claim)) in verdict.reason


def test_a_wrong_role_is_reported_with_the_known_roles() -> None:
    verdict = judge({"KubernetesCluster": CLUSTER, "Role": "minions"})

    assert verdict == Ownership(reason="the tag Role is 'minions', expected one of worker, kubernetes-minion, minion", tag="Role")


@pytest.mark.parametrize("role", ["control-plane", "master", "bastion", "apiserver"])
def test_kops_groups_without_user_pods_are_not_adopted(role: str) -> None:
    assert f"k8s.io/role/{role}" in judge({"KubernetesCluster": CLUSTER, f"k8s.io/role/{role}": "1"}).reason


def test_a_group_with_discovery_switched_off_is_not_adopted() -> None:
    assert judge({**CA_TAGS, f"{CA}/enabled": "false"}) == Ownership(reason=f"the tag {CA}/enabled is false")


def test_an_unmarked_group_of_the_cluster_is_reported_with_the_tags_to_add() -> None:
    assert f"add {CA}/enabled and {CA}/{CLUSTER}, or name it in aws.groups" in judge(EKSCTL).reason


def test_groups_with_configured_names_or_tags_are_adopted_and_unrelated_ones_ignored() -> None:
    assert judge({}, named=("group",)) == Ownership("named")
    assert judge({"team": "ml", "env": "prod"}, extra={"team": "ml", "env": "prod"}) == Ownership("tags")
    assert judge({"team": "ml"}, extra={"team": "ml", "env": "prod"}) == Ownership()
    assert judge({"Name": "web servers"}) == Ownership()


def test_node_template_tags_do_not_name_a_cluster() -> None:
    assert judge({**CA_TAGS, f"{CA}/node-template/label/team": "ml"}) == Ownership("cluster-autoscaler")


def test_a_managed_node_group_with_configured_tags_is_adopted_without_accelerators() -> None:
    assert judge({**EKS, "team": "ml"}, extra={"team": "ml"}) == Ownership("tags")
    assert judge(EKS, named=("group",)) == Ownership("named")


@pytest.mark.parametrize("entry", ["group", "gr*", "tag:eks:nodegroup-name=gpu", "tag:eks:nodegroup-name"])
def test_an_excluded_group_is_ignored_even_if_it_is_configured_by_name(entry: str) -> None:
    assert judge(EKS, exclude=(entry,)) == Ownership(reason=f"it matches '{entry}' in aws.exclude and is ignored")
    assert judge(EKS, named=("group",), exclude=(entry,)).source == ""


@pytest.mark.parametrize("entry", ["grou", "Group", "tag:eks:nodegroup-name=cpu", "tag:team"])
def test_an_exclude_entry_that_matches_no_group_excludes_nothing(entry: str) -> None:
    assert judge(EKS, exclude=(entry,)) == Ownership("eks")


def test_another_clusters_group_is_reported_as_one_of_another_cluster_even_if_excluded() -> None:
    assert "expected" in judge({"KubernetesCluster": "other"}, exclude=("group",)).reason
