"""Objects that make planning fail are found in few attempts, and as few of them as possible."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from tests.planning.building import node, pod, pods, spec

from gpuscaler.lifecycle.quarantine import TRIALS, Poison, culprits, remaining, without_poison
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod


class Attempts:
    """Fails while ``wrong`` holds for the pods of a cluster, and counts the attempts."""

    def __init__(self, wrong: Callable[[set[str]], bool]) -> None:
        self.wrong = wrong
        self.made = 0

    def __call__(self, cluster: Cluster) -> None:
        self.made += 1
        if self.wrong(set(cluster.pods)):
            raise OverflowError("too much")


def crowd(count: int = 1000) -> list[Pod]:
    return [replace(each, created=float(number)) for number, each in enumerate(pods("p", count))]


def keys(poisons: Sequence[Poison]) -> list[str]:
    return sorted(each.key for each in poisons)


@pytest.mark.parametrize("bad", [{"default/p-0"}, {"default/p-999"}, {"default/p-7", "default/p-500", "default/p-501"}])
def test_a_single_faulty_object_is_found_in_few_attempts(bad: set[str]) -> None:
    attempt = Attempts(lambda there: bool(there & bad))

    assert keys(culprits(Cluster.of(crowd()), None, attempt, "why")) == sorted(bad)
    assert attempt.made < 45


def test_of_two_objects_that_fail_only_together_the_later_is_skipped() -> None:
    attempt = Attempts(lambda there: there >= {"default/p-3", "default/p-800"})

    assert keys(culprits(Cluster.of(crowd()), None, attempt, "why")) == ["default/p-800"]


def test_the_latest_objects_are_skipped_if_a_plan_fails_because_of_their_number() -> None:
    attempt = Attempts(lambda there: len(there) > 490)
    poisons = culprits(Cluster.of(crowd()), None, attempt, "why")

    assert keys(poisons) == sorted(f"default/p-{number}" for number in range(490, 1000))
    assert attempt.made < TRIALS


def test_faulty_objects_of_one_namespace_do_not_cause_other_namespaces_to_be_skipped() -> None:
    theirs = [replace(pod(f"t-{number}", spec(namespace="tenant")), created=float(number)) for number in range(300)]
    attempt = Attempts(lambda there: sum(key.startswith("tenant/") for key in there) > 100)
    poisons = culprits(Cluster.of([*crowd(), *theirs]), None, attempt, "why")

    assert {each.key.split("/")[0] for each in poisons} == {"tenant"}


def test_objects_changed_since_the_last_success_are_suspected_first() -> None:
    before = Cluster.of(crowd())
    after = Cluster.of([*before.pods.values(), pod("new")])
    attempt = Attempts(lambda there: "default/new" in there)

    assert keys(culprits(after, before, attempt, "why")) == ["default/new"]
    assert attempt.made <= 3


def test_no_object_is_skipped_if_the_failure_occurs_without_any() -> None:
    attempt = Attempts(lambda _: True)

    assert culprits(Cluster.of([node("n"), *crowd(10)]), None, attempt, "why") == ()


def test_a_skipped_object_keeps_its_node_and_is_tried_again_when_it_changes() -> None:
    cluster = Cluster.of([node("n"), pod("bad", on="n"), pod("good")])
    poisons = culprits(cluster, None, Attempts(lambda there: "default/bad" in there), "why")
    rest = without_poison(cluster, poisons)

    assert set(rest.pods) == {"default/good"}
    assert [(entry.object, entry.node, entry.reason) for entry in rest.set_aside] == [("Pod default/bad", "n", "why")]
    assert remaining(poisons, cluster) == poisons
    assert remaining(poisons, Cluster.of([pod("bad", spec(gpus=2), on="n")])) == ()
    assert remaining(poisons, Cluster.of([replace(pod("bad", on="n"), phase="Unknown")])) == poisons
    assert without_poison(cluster, ()) is cluster
