"""InterPodAffinity: the pod's own terms and those of existing pods."""

import msgspec
import pytest
from tests.planning.building import HOST, bare_node, near, pod, selector, spec
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.workloads import Namespace

ZONES = (bare_node("a1", {"zone": "a"}), bare_node("a2", {"zone": "a"}), bare_node("b1", {"zone": "b"}), bare_node("lost"))


def test_affinity_admits_the_domains_of_matching_pods() -> None:
    here = room(*ZONES, pod("web", on="a1", labels={"app": "web"}))
    assert rows(here, spec(affinity=(near("zone", app="web"),))) == ["a1", "a2"]
    assert rows(here, spec(affinity=(near(HOST, app="web"),))) == ["a1"]
    assert rows(here, spec(affinity=(near("zone", app="db"),))) == []


def test_one_pod_must_match_all_affinity_terms_each_in_its_own_domain() -> None:
    terms = (near("zone", app="web"), near(HOST, tier="front"))
    apart = room(*ZONES, pod("p", on="a1", labels={"app": "web"}), pod("q", on="a1", labels={"tier": "front"}))
    assert rows(apart, spec(affinity=terms)) == []
    together = room(*ZONES, pod("p", on="a1", labels={"app": "web", "tier": "front"}))
    assert rows(together, spec(affinity=terms)) == ["a1"]


def test_the_first_pod_with_affinity_to_itself_may_go_to_any_node_with_the_label() -> None:
    wanted = spec(affinity=(near("zone", app="web"),))
    assert rows(room(*ZONES), wanted, app="web") == ["a1", "a2", "b1"]
    assert rows(room(*ZONES), wanted, app="db") == []
    assert rows(room(*ZONES, pod("p", on="b1", labels={"app": "web"})), wanted, app="web") == ["b1"]


def test_a_matching_pod_outside_every_domain_does_not_end_the_first_pod_rule() -> None:
    here = room(*ZONES, pod("p", on="lost", labels={"app": "web"}), pod("q", on="gone", labels={"app": "web"}))
    assert rows(here, spec(affinity=(near("zone", app="web"),)), app="web") == ["a1", "a2", "b1"]


def test_anti_affinity_excludes_domains_of_matching_pods_but_no_node_without_the_label() -> None:
    here = room(*ZONES, pod("web", on="a1", labels={"app": "web"}))
    assert rows(here, spec(anti_affinity=(near("zone", app="web"),))) == ["b1", "lost"]
    assert rows(here, spec(anti_affinity=(near(HOST, app="web"),))) == ["a2", "b1", "lost"]


def test_one_matching_anti_affinity_term_is_enough_to_exclude_a_node() -> None:
    here = room(*ZONES, pod("p", on="a1", labels={"app": "web"}), pod("q", on="b1", labels={"app": "db"}))
    assert rows(here, spec(anti_affinity=(near("zone", app="web"), near("zone", app="db")))) == ["lost"]


def test_anti_affinity_of_existing_pods_excludes_matching_new_pods() -> None:
    shy = spec(anti_affinity=(near("zone", app="web"),))
    here = room(*ZONES, pod("shy", shy, on="a1", labels={"app": "other"}))
    assert rows(here, spec(), app="web") == ["b1", "lost"]
    assert rows(here, spec(), app="db") == ["a1", "a2", "b1", "lost"]


def test_affinity_counts_terminating_pods_and_ignores_finished_ones() -> None:
    wanted = spec(anti_affinity=(near(HOST, app="web"),))
    here = room(*ZONES, pod("p", on="a1", labels={"app": "web"}, deleted=1.0), pod("q", on="b1", labels={"app": "web"}, phase="Failed"))
    assert rows(here, wanted) == ["a2", "b1", "lost"]


def test_a_missing_affinity_selector_matches_no_pod_and_an_empty_one_every_pod() -> None:
    here = room(*ZONES, pod("p", on="a1", labels={"app": "web"}))
    nobody = PodAffinityTerm(HOST, None, ("default",))
    everybody = PodAffinityTerm(HOST, LabelSelector(), ("default",))
    assert rows(here, spec(anti_affinity=(nobody,))) == ["a1", "a2", "b1", "lost"]
    assert rows(here, spec(anti_affinity=(everybody,))) == ["a2", "b1", "lost"]
    assert rows(here, spec(affinity=(nobody,)), app="web") == []


def test_affinity_terms_apply_to_the_namespaces_that_they_list() -> None:
    here = room(*ZONES, pod("p", spec(namespace="other"), on="a1", labels={"app": "web"}))
    assert rows(here, spec(affinity=(near(HOST, app="web"),))) == []
    assert rows(here, spec(affinity=(near(HOST, where=("default", "other"), app="web"),))) == ["a1"]


def unlabelled(key: str) -> LabelSelector:
    return LabelSelector((Requirement(key, "DoesNotExist"),))


@pytest.mark.parametrize(
    ("spaces", "admitted"),
    [
        (selector(team="ml"), ["a1"]),
        (LabelSelector(), ["a1", "a2", "b1"]),
        (selector(team="web"), []),
        # kube-scheduler 1.35 also evaluates the namespace selector against an empty set of labels, whatever labels the namespace has.
        (unlabelled("team"), ["a1", "a2", "b1"]),
    ],
)
def test_a_namespace_selector_applies_to_the_namespaces_it_matches(spaces: LabelSelector, admitted: list[str]) -> None:
    here = room(
        *ZONES,
        Namespace("ml", {"team": "ml"}),
        Namespace("plain"),
        pod("p", spec(namespace="ml"), on="a1", labels={"app": "web"}),
        pod("q", spec(namespace="plain"), on="a2", labels={"app": "web"}),
        pod("r", spec(namespace="unknown"), on="b1", labels={"app": "web"}),
    )
    assert rows(here, spec(affinity=(near(HOST, where=(), spaces=spaces, app="web"),))) == admitted


def test_an_existing_pods_namespace_selector_uses_the_labels_of_the_new_pods_namespace() -> None:
    shy = spec(anti_affinity=(near(HOST, where=(), spaces=unlabelled("team"), app="web"),))
    here = room(*ZONES, Namespace("ml", {"team": "ml"}), pod("shy", shy, on="a1"))
    assert rows(here, spec(namespace="ml"), app="web") == ["a1", "a2", "b1", "lost"]
    assert rows(here, spec(namespace="elsewhere"), app="web") == ["a2", "b1", "lost"]


def test_pods_placed_by_a_plan_count_immediately_for_affinity_and_anti_affinity() -> None:
    here = room(*ZONES)
    follower, loner = spec(affinity=(near("zone", app="web"),)), spec(anti_affinity=(near("zone", app="web"),))
    assert rows(here, follower) == []
    here.place(loner, LabelSet(app="web"), 2)
    assert rows(here, follower) == ["b1"]
    assert rows(here, follower, app="web") == []
    assert rows(here, spec(), app="web") == ["a1", "a2", "lost"]
    here.remove(loner, LabelSet(app="web"), 2)
    assert rows(here, spec(), app="web") == ["a1", "a2", "b1", "lost"]


@pytest.mark.parametrize(("key", "copies"), [(HOST, [1, 1, 1, 1]), ("zone", [1, 1, 1, 640])])
def test_a_pod_with_anti_affinity_to_its_own_class_fits_once_in_a_domain(key: str, copies: list[int]) -> None:
    roomy = [bare_node(n.name, n.labels, allocatable={"cpu": 64_000, "pods": 1000}) for n in ZONES]
    wanted = spec(requests={"cpu": 100}, anti_affinity=(near(key, app="web"),))
    assert room(*roomy).capacity(wanted, LabelSet(app="web")).tolist() == copies


def test_the_reason_names_the_violated_affinity_rule() -> None:
    here = room(*ZONES, pod("shy", spec(anti_affinity=(near("zone", app="web"),)), on="a1", labels={"app": "db"}))
    assert rejection(here, spec(affinity=(near("zone", app="x"),)), "a1")[1] == "no pod matching the pod affinity is in the same zone"
    assert rejection(here, spec(affinity=(near("zone", app="x"),)), "lost")[1] == "pod affinity needs the node label zone, node has none"
    assert rejection(here, spec(anti_affinity=(near("zone", app="db"),)), "a2")[1] == "a pod matching the pod anti-affinity is in zone=a"
    assert rejection(here, spec(), "a2", app="web") == ("InterPodAffinity", "a pod in zone=a has anti-affinity to this pod")


ODD = LabelSelector((Requirement("app", "In", ("no label value",)),))


@pytest.mark.parametrize("part", ["affinity", "anti_affinity", "preferred_affinity", "preferred_anti_affinity"])
@pytest.mark.parametrize("term", [PodAffinityTerm(HOST, ODD, ("default",)), PodAffinityTerm(HOST, selector(app="web"), (), ODD)])
def test_a_pod_with_an_unreadable_affinity_selector_fits_no_node(part: str, term: PodAffinityTerm) -> None:
    here = room(*ZONES)
    odd = msgspec.structs.replace(spec(), **{part: (term,)})
    assert rows(here, odd, app="web") == []
    assert rejection(here, odd, "a1") == ("InterPodAffinity", "a label selector of the pod cannot be read")


def test_a_bound_pod_with_an_unreadable_selector_keeps_no_pods_away() -> None:
    shy = spec(anti_affinity=(near(HOST, app="web"), PodAffinityTerm(HOST, ODD, ("default",))))
    assert rows(room(*ZONES, pod("shy", shy, on="a1")), spec(), app="web") == ["a1", "a2", "b1", "lost"]


def undecided(name: str, *zones: str) -> Node:
    return msgspec.structs.replace(bare_node(name), may_be=tuple({HOST: name, "zone": zone} for zone in zones))


def test_anti_affinity_to_a_pod_of_undecided_zone_excludes_all_possible_zones() -> None:
    c1 = bare_node("c1", {"zone": "c"})
    here = room(*ZONES, c1, undecided("m", "a", "b"), pod("p", on="m", labels={"app": "web"}))
    assert rows(here, spec(anti_affinity=(near("zone", app="web"),))) == ["c1", "lost", "m"]
    loner = spec(anti_affinity=(near("zone", app="db"),))
    assert rows(room(*ZONES, c1, undecided("m", "b", "x"), pod("p", loner, on="m")), spec(), app="db") == ["a1", "a2", "c1", "lost", "m"]


def test_affinity_to_a_pod_of_undecided_zone_admits_none_of_the_possible_zones() -> None:
    here = room(*ZONES, undecided("m", "a", "b"), pod("p", on="m", labels={"app": "web"}))
    assert rows(here, spec(affinity=(near("zone", app="web"),))) == []
