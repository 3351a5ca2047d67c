"""Kept and broken promises, and offerings that are paused because of them."""

from functools import reduce

import msgspec
import pytest
from tests.planning.building import offering, planned, pod, pool, reasons, spec

from gpuscaler.planning.state import State
from gpuscaler.planning.state.promises import Broken, Kept, Promises, forgive, paused_offerings, step

CHEAP, DEAR = offering("cheap", 0.5), offering("dear", 2.0)
PODS = "digest"


def after(*events: Kept | Broken) -> Promises:
    return reduce(step, events, Promises())


def broken(at: float, pods: str = PODS) -> Broken:
    return Broken(CHEAP.key, pods, at, why="Insufficient memory")


def pauses(times: int) -> list[float]:
    """The lengths of the pauses if the pair is tried again as soon as possible."""
    promises, now, lengths = after(broken(0.0)), 0.0, []
    for _ in range(times):
        promises = step(promises, broken(now))
        (pair,) = promises.pairs
        lengths.append(pair.until - now)
        now = pair.until
    return lengths


def test_one_broken_promise_does_not_pause_the_offering() -> None:
    assert paused_offerings(after(broken(0.0)), 1.0) == {}


def test_two_broken_promises_pause_the_offering_for_this_pod_class_for_an_hour() -> None:
    promises = after(broken(0.0), broken(10.0), broken(11.0, "other"))

    assert paused_offerings(promises, 3609.0) == {PODS: frozenset({CHEAP.key})}
    assert paused_offerings(promises, 3610.0) == {}


def test_a_promise_that_could_never_be_kept_pauses_the_offering_for_the_pods_at_once() -> None:
    promises = after(Broken(CHEAP.key, PODS, 0.0, why="label team=ml wanted", certain=True))

    assert paused_offerings(promises, 3599.0) == {PODS: frozenset({CHEAP.key})}


def test_a_changed_configuration_ends_the_pauses_of_a_pool() -> None:
    promises = after(broken(0.0), broken(10.0))

    assert forgive(promises, "another") is promises
    assert forgive(promises, "main").pairs == forgive(promises, "").pairs == ()


def test_several_offerings_can_be_paused_for_several_pod_classes() -> None:
    promises = after(broken(0.0), broken(1.0), *[Broken(DEAR.key, PODS, at) for at in (2.0, 3.0)], *[broken(at, "a") for at in (4.0, 5.0)])

    assert paused_offerings(promises, 6.0) == {PODS: frozenset({CHEAP.key, DEAR.key}), "a": frozenset({CHEAP.key})}


def test_the_pause_of_an_offering_doubles_up_to_a_day() -> None:
    assert pauses(7) == [3600.0, 7200.0, 14400.0, 28800.0, 57600.0, 86400.0, 86400.0]


def test_broken_promises_of_pods_of_one_purchase_count_once() -> None:
    assert after(*[broken(float(number)) for number in range(9)]).pairs[0].broken == 2


def test_one_kept_promise_ends_the_pause_of_an_offering() -> None:
    promises = after(broken(0.0), Kept(CHEAP.key, PODS, 5.0), broken(10.0))

    assert paused_offerings(promises, 11.0) == {}
    assert (promises.kept, promises.broken) == (1, 2)


def test_promise_outcomes_can_be_encoded_as_json_and_decoded() -> None:
    promises = after(broken(0.0), broken(1.0), Kept(DEAR.key, PODS, 2.0))

    assert msgspec.json.decode(msgspec.json.encode(promises), type=Promises) == promises


@pytest.fixture
def paused_pairs() -> State:
    return State(paused_offerings={spec(gpus=1).digest: frozenset({CHEAP.key})})


def test_a_paused_offering_is_not_bought_for_the_pod_class_it_is_paused_for(paused_pairs: State) -> None:
    assert [machine.instance_type for machine in planned([pod("p")], pool(CHEAP, DEAR), state=paused_pairs).machines] == ["dear"]


def test_other_pods_still_get_a_paused_offering(paused_pairs: State) -> None:
    made = planned([pod("p"), pod("q", spec(gpus=1, cpu=2))], pool(CHEAP, DEAR), state=paused_pairs)

    assert {machine.pods: machine.instance_type for machine in made.machines} == {("default/p",): "dear", ("default/q",): "cheap"}


def test_all_members_of_a_gang_avoid_a_paused_offering(paused_pairs: State) -> None:
    gang = {"gang": "train", "gang_size": 2, "gang_source": "annotation"}
    made = planned([pod("a", options=gang), pod("b", options=gang)], pool(CHEAP, DEAR), state=paused_pairs)

    assert [machine.instance_type for machine in made.machines] == ["dear", "dear"]


def test_the_reason_of_an_unplaced_pod_says_that_the_offering_is_paused(paused_pairs: State) -> None:
    (reason,) = reasons(planned([pod("p")], pool(CHEAP), state=paused_pairs), "p")

    assert reason.excluded_by == "market"
    assert reason.detail.startswith("cheap in z1: the last machines bought for these pods did not get them scheduled")
