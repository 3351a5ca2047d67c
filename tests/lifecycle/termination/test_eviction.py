"""Which pods are evicted now, in which order, how often, and what gives way to a deadline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lifecycle.termination.kit import CRITICAL, TOLERATES, draining, forced, next_evictions, resident, tried_eviction
from tests.planning.building import NOW

from gpuscaler.lifecycle.actions import Checkpoint, Delete, Evict
from gpuscaler.lifecycle.termination.eviction import LAST_SECONDS, LONGEST_PAUSE, MARGIN_SECONDS, PROTECTED_SECONDS, EvictionRound
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.planning.scale_down.disruption import CRITICAL as CRITICAL_FROM

IN_ORDER = (
    resident("web"),
    resident("logs", daemon=True),
    resident("dns", priority=CRITICAL_FROM),
    resident("net", priority=CRITICAL, daemon=True),
)


def evicted(eviction_round: EvictionRound) -> list[str]:
    """Return the names of the evicted pods, in order."""
    return [act.pod.removeprefix("default/") for act in eviction_round.acts if isinstance(act, Evict)]


# Order


def test_each_group_of_pods_is_evicted_after_the_previous_group_is_gone() -> None:
    for count, pod in enumerate(IN_ORDER):
        assert evicted(next_evictions(draining(), *IN_ORDER[count:])) == [pod.name]
    assert next_evictions(draining()).done


def test_a_terminating_pod_delays_eviction_of_the_next_group() -> None:
    eviction_round = next_evictions(draining(), resident("web", deleted=NOW + 20.0), resident("dns", priority=CRITICAL))

    assert (evicted(eviction_round), eviction_round.done) == ([], False)


def test_eviction_of_a_protected_daemonset_pod_is_tried_once_and_does_not_delay_the_end() -> None:
    daemon, refused = resident("logs", daemon=True), tried_eviction("logs", again=5.0, why="the budget", budget=True)

    assert not next_evictions(draining(tried_eviction("logs", again=5.0)), daemon).done
    assert next_evictions(draining(refused), daemon).done
    assert next_evictions(draining(refused), daemon).acts == ()
    assert next_evictions(draining(tried_eviction("logs", again=-1.0)), daemon).done


def test_pods_that_tolerate_the_taint_static_pods_and_finished_pods_are_not_evicted() -> None:
    left_alone = (
        resident("a", tolerations=TOLERATES),
        resident("b", tolerations=TOLERATES, daemon=True),
        resident("c", options={"mirror": True}),
        resident("d", owner=Owner("Node", "n", "u")),
        resident("e", phase="Succeeded"),
    )

    assert next_evictions(draining(), *left_alone) == EvictionRound((), (), True, "", ())


def test_a_terminating_pod_overdue_by_half_a_minute_does_not_delay_the_drain() -> None:
    assert next_evictions(draining(), resident(deleted=NOW - 31.0)).done
    assert not next_evictions(draining(), resident(deleted=NOW - 29.0)).done


def test_pods_of_one_group_are_evicted_together() -> None:
    assert evicted(next_evictions(draining(), resident("b"), resident("a"))) == ["a", "b"]


# Refusals


def test_an_eviction_uses_the_uid_and_own_grace_period_and_is_retried_with_growing_pauses() -> None:
    eviction_round = next_evictions(draining(), resident())
    assert eviction_round.acts == (Evict("default/p", "uid-p", "n"),)

    pauses = []
    removal = draining()
    now = NOW
    for _ in range(6):
        eviction_round = next_evictions(removal, resident(), now=now)
        (entry,) = eviction_round.evictions
        pauses.append(entry.again - now)
        assert next_evictions(draining(entry), resident(), now=entry.again - 0.1).acts == ()
        removal, now = draining(entry), entry.again
    assert pauses == [5.0, 10.0, 20.0, 40.0, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_refused_eviction_is_reported_with_the_reason_and_the_number_of_others() -> None:
    removal = draining(tried_eviction("a", again=9.0, why="the budget web"), tried_eviction("b", again=9.0, why="the budget web"))

    assert next_evictions(removal, resident("a"), resident("b")).held == "pod default/a cannot be evicted: the budget web (and 1 more)"


def test_a_recreated_pod_with_the_same_name_is_evicted_again() -> None:
    eviction_round = next_evictions(draining(tried_eviction(again=50.0)), resident(), resident("q"))
    assert evicted(eviction_round) == ["q"]

    fresh = Pod("default", "p", resident().spec, resident().labels, uid="another", node_name="n")
    assert evicted(next_evictions(draining(tried_eviction(again=50.0)), fresh)) == ["p"]


def test_eviction_attempts_of_a_deleted_pod_are_forgotten() -> None:
    assert next_evictions(draining(tried_eviction("gone"), tried_eviction(again=9.0)), resident()).evictions == (tried_eviction(again=9.0),)


# Saving work


def saver(**more: object) -> Pod:
    return resident(options={"grace": 300.0}, **more)  # type: ignore[arg-type]  # fields of any pod


def test_a_pod_with_a_grace_annotation_is_notified_and_evicted_after_its_answer() -> None:
    eviction_round = next_evictions(draining(), saver())
    assert eviction_round.acts == (Checkpoint("default/p", "uid-p", "n", NOW, 300.0),)
    assert (eviction_round.held, eviction_round.idle) == ("pod default/p is saving its work", ())

    removal = draining(*eviction_round.evictions)
    assert next_evictions(removal, saver(checkpoint_requested=NOW), now=NOW + 60.0).acts == ()
    answered = next_evictions(removal, saver(checkpoint_requested=NOW, checkpointed=NOW), now=NOW + 1.0)
    assert answered.acts == (Evict("default/p", "uid-p", "n"),)


def test_a_pods_answer_to_an_earlier_notice_does_not_count() -> None:
    removal = draining(tried_eviction(tries=0, signalled=NOW))

    assert next_evictions(removal, saver(checkpoint_requested=NOW, checkpointed=NOW - 100.0)).acts == ()


def test_a_notice_missing_from_the_pod_is_written_again() -> None:
    removal = draining(tried_eviction(again=1.0, tries=0, signalled=NOW - 4.0))

    assert next_evictions(removal, saver()).acts == ()
    assert next_evictions(removal, saver(), now=NOW + 1.0).acts == (Checkpoint("default/p", "uid-p", "n", NOW - 4.0, 300.0),)


def test_a_notified_pod_that_does_not_answer_is_evicted_when_its_time_is_over() -> None:
    removal = draining(tried_eviction(tries=0, signalled=NOW))

    assert next_evictions(removal, saver(checkpoint_requested=NOW), now=NOW + 299.0).acts == ()
    assert next_evictions(removal, saver(checkpoint_requested=NOW), now=NOW + 300.0).acts == (Evict("default/p", "uid-p", "n"),)


# Machines that end at a known moment


def test_the_grace_period_is_cut_to_the_remaining_time() -> None:
    assert next_evictions(forced(120.0), resident(grace_seconds=600)).acts == (Evict("default/p", "uid-p", "n", 115),)
    assert next_evictions(forced(120.0), resident(grace_seconds=60)).acts == (Evict("default/p", "uid-p", "n"),)
    assert next_evictions(forced(-10.0), resident(grace_seconds=60)).acts == (Evict("default/p", "uid-p", "n", 1),)


def test_a_pod_that_would_end_too_late_is_evicted_again_with_a_shorter_grace_period() -> None:
    assert next_evictions(forced(100.0), resident(deleted=NOW + 500.0)).acts == (Evict("default/p", "uid-p", "n", None),)
    assert next_evictions(forced(20.0), resident(deleted=NOW + 500.0)).acts == (Evict("default/p", "uid-p", "n", 15),)
    assert next_evictions(forced(100.0), resident(deleted=NOW + 50.0)).acts == ()
    assert next_evictions(draining(), resident(deleted=NOW + 500.0)).acts == ()


def test_a_pod_that_needs_all_remaining_time_is_evicted_before_its_group() -> None:
    pods = resident("web"), resident("dns", priority=CRITICAL)

    assert evicted(next_evictions(forced(120.0), *pods)) == ["web"]
    assert evicted(next_evictions(forced(MARGIN_SECONDS + 30.0), *pods)) == ["web", "dns"]


def test_time_to_save_work_is_shortened_to_leave_time_for_termination() -> None:
    eviction_round = next_evictions(forced(120.0), saver())
    assert eviction_round.acts == (Checkpoint("default/p", "uid-p", "n", NOW, 85.0),)

    removal = forced(120.0, *eviction_round.evictions)
    assert next_evictions(removal, saver(checkpoint_requested=NOW), now=NOW + 84.0).acts == ()
    assert next_evictions(removal, saver(checkpoint_requested=NOW), now=NOW + 85.0).acts == (Evict("default/p", "uid-p", "n"),)
    assert evicted(next_evictions(forced(30.0), saver())) == ["p"]


def test_only_disruption_budgets_are_overridden_and_only_at_the_last_moment() -> None:
    refused = tried_eviction(again=1.0, why="the budget", budget=True)

    assert next_evictions(forced(LAST_SECONDS + 1.0, refused), resident(), now=NOW + 0.5).acts == ()
    assert isinstance(next_evictions(forced(LAST_SECONDS + 2.0, refused), resident(), now=NOW + 1.0).acts[0], Evict)
    last = next_evictions(forced(LAST_SECONDS, refused), resident(), now=NOW + 1.0)
    assert last.acts == (Delete("default/p", "uid-p", "n", 9),)
    far = tried_eviction(again=40.0, why="the budget", budget=True)
    assert next_evictions(forced(LAST_SECONDS, far), resident()).acts == (Delete("default/p", "uid-p", "n", 10),)
    assert next_evictions(forced(LAST_SECONDS, *last.evictions), resident(), now=NOW + 2.0).acts == ()
    another = tried_eviction(again=-1.0, why="the server is overloaded")
    assert isinstance(next_evictions(forced(LAST_SECONDS, another), resident()).acts[0], Evict)


def test_a_disruption_budget_is_never_overridden_without_a_deadline() -> None:
    refused = tried_eviction(again=-1.0, tries=99, why="the budget", budget=True)

    assert isinstance(next_evictions(draining(refused), resident(), now=NOW + 1e6).acts[0], Evict)


def test_pauses_between_evictions_do_not_grow_if_there_is_a_deadline() -> None:
    (entry,) = next_evictions(forced(100.0, tried_eviction(tries=5, again=-1.0)), resident()).evictions

    assert entry.again == NOW + 5.0


@pytest.mark.parametrize("more", [{"options": {"do_not_disrupt": True}}, {"owner": Owner("Job", "j", "u")}], ids=["annotated", "job"])
def test_a_protected_pod_stays_as_long_as_possible_if_the_end_was_announced_early(more: dict[str, object]) -> None:
    pod = resident(**more)  # type: ignore[arg-type]  # fields of any pod

    assert evicted(next_evictions(forced(PROTECTED_SECONDS + 1.0), pod)) == []
    assert evicted(next_evictions(forced(PROTECTED_SECONDS), pod)) == ["p"]
    slow = resident(grace_seconds=600, **more)  # type: ignore[arg-type]  # fields of any pod
    assert evicted(next_evictions(forced(610.0), slow)) == []
    assert evicted(next_evictions(forced(605.0), slow)) == ["p"]


def test_eviction_waits_for_the_replacement_machine_if_there_is_time() -> None:
    awaited = frozenset({"default/p"})
    waits = next_evictions(forced(PROTECTED_SECONDS + 1.0), resident(), awaited=awaited)

    assert (evicted(waits), waits.held) == ([], "pod default/p waits for the replacement of this machine")
    assert evicted(next_evictions(forced(PROTECTED_SECONDS), resident(), awaited=awaited)) == ["p"]
    assert evicted(next_evictions(forced(PROTECTED_SECONDS + 1.0), resident())) == ["p"]
    assert evicted(next_evictions(draining(), resident(), awaited=awaited)) == ["p"]


# Random cases


@st.composite
def homes(draw: st.DrawFn) -> list[Pod]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
    return [
        resident(
            name,
            grace_seconds=draw(st.sampled_from((0, 30, 600))),
            priority=draw(st.sampled_from((0, CRITICAL))),
            daemon=draw(st.booleans()),
            deleted=draw(st.sampled_from((0.0, 0.0, NOW + 20.0))),
            options={"grace": draw(st.sampled_from((None, 60.0)))},
            checkpointed=draw(st.sampled_from((0.0, NOW))),
        )
        for name in names
    ]


@given(homes(), st.sampled_from((None, 400.0, 100.0, 30.0, 10.0, -5.0)), st.booleans())
def test_pods_are_deleted_only_at_the_last_moment_and_end_before_the_machine(pods: list[Pod], left: float | None, blocked: bool) -> None:
    entries = [tried_eviction(pod.name, again=-1.0, why="the budget", budget=blocked, signalled=NOW - 1.0) for pod in pods]
    removal = draining(*entries) if left is None else forced(left, *entries)
    eviction_round = next_evictions(removal, *pods)

    by_key = {pod.key: pod for pod in pods}
    for act in eviction_round.acts:
        if isinstance(act, Delete):
            assert blocked
            assert left is not None
            assert left <= LAST_SECONDS
        if isinstance(act, Evict) and left is not None:
            grace = by_key[act.pod].spec.grace_seconds if act.grace is None else act.grace
            assert grace <= max(1.0, left - MARGIN_SECONDS)
    if eviction_round.done:
        assert all(pod.owner.kind == "DaemonSet" for pod in pods)
