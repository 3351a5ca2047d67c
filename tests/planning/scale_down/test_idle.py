"""Idle machines: the meaning of idle, when they are removed, and which are kept as headroom."""

from tests.planning.building import DAEMON, NOW, TYPE, node, offering, pool, spec
from tests.planning.scale_down.kit import BIG, big, blockers, detail, movable, removed, scale_down_of, situation

from gpuscaler.lifecycle.observed.machine_index import MachineIndexes
from gpuscaler.model.pools import Spare
from gpuscaler.planning.state import State


def idle_for(**seconds: float) -> State:
    return State(idle_seconds=seconds)


def test_an_idle_machine_is_removed_after_the_idle_time_of_its_pool() -> None:
    result = scale_down_of([big("a"), big("b")], pool(BIG, idle_after=600), state=idle_for(a=600, b=599))
    assert removed(result) == ["a"]
    assert result.removals[0].saving_per_hour == 1.0
    assert result.removals[0].reason == "idle for 10m; pool main waits for 10m"
    assert detail(result, "b") == "idle 9m59s of 10m"
    assert blockers(result) == {"b": "idle-clock"}


def test_an_unknown_idle_time_keeps_the_machine() -> None:
    assert blockers(scale_down_of([big("a")], pool(BIG, idle_after=600), state=idle_for())) == {"a": "idle-unknown"}


def test_an_unknown_idle_time_does_not_matter_if_idle_after_is_zero() -> None:
    assert removed(scale_down_of([big("a")], pool(BIG, idle_after=0), state=idle_for())) == ["a"]


def test_an_idle_time_longer_than_the_age_of_the_machine_is_ignored() -> None:
    result = scale_down_of([big("a", created=NOW - 60)], pool(BIG, idle_after=600), state=idle_for(a=7000))
    assert blockers(result) == {"a": "young"}


def test_a_machine_with_only_daemonset_mirror_and_finished_pods_is_idle() -> None:
    here = [
        movable("agent", "a", owner=DAEMON),
        movable("static", "a", options={"mirror": True}),
        movable("done", "a", phase="Succeeded"),
    ]
    assert removed(scale_down_of([big("a"), *here])) == ["a"]
    assert MachineIndexes().idle(situation([big("a"), big("b"), *here, movable("p", "b")]).cluster, NOW) == {"a"}


def test_pending_pods_that_need_another_pool_do_not_keep_an_idle_machine() -> None:
    pools = (pool(BIG), pool(offering("m.other", pool="other", gpus=0), name="other"))
    result = scale_down_of([big("a"), node("b", offering("m.other", pool="other", gpus=0))], *pools, taken=["b"])
    assert removed(result) == ["a"]
    assert blockers(result) == {"b": "needed"}


def test_the_cheapest_idle_machines_are_kept_for_the_minimum_size() -> None:
    dear = offering("m.dear", 9.0, gpus=0)
    result = scale_down_of([big("a"), node("b", dear), big("c")], pool(BIG, dear, min=2))
    assert removed(result) == ["b"]
    assert blockers(result) == {"a": "minimum-size", "c": "minimum-size"}
    assert detail(result, "a") == "pool main keeps at least 2 machines"


def test_leaving_machines_do_not_count_towards_the_minimum_size() -> None:
    state = State(idle_seconds={"a": 9e9, "b": 9e9}, disrupting=frozenset(["a"]))
    assert blockers(scale_down_of([big("a"), big("b")], pool(BIG, min=1), state=state)) == {"a": "disrupting", "b": "minimum-size"}


def test_machines_that_stay_anyway_count_as_spare_machines() -> None:
    result = scale_down_of([big("a"), big("b"), big("c")], pool(BIG, spare=Spare(machines=1)), state=idle_for(a=9e9, b=9e9, c=1))
    assert removed(result) == ["a", "b"]
    assert blockers(result) == {"c": "idle-clock"}


def test_idle_machines_are_kept_as_spare_machines() -> None:
    result = scale_down_of([big("a"), big("b"), big("c")], pool(BIG, spare=Spare(machines=2)))
    assert removed(result) == ["c"]
    assert blockers(result) == {"a": "spare", "b": "spare"}


def test_free_gpus_of_partly_used_machines_count_first_as_spare_gpus() -> None:
    gpu = offering("g.big", gpus=8, pods=20)
    half = movable("p", "busy", spec(requests={"nvidia.com/gpu": 5}), options={"do_not_disrupt": True})
    nodes = [node("busy", gpu), node("a", gpu), node("b", gpu)]
    assert removed(scale_down_of([*nodes, half], pool(gpu, spare=Spare(gpus=3)))) == ["a", "b"]
    result = scale_down_of([*nodes, half], pool(gpu, spare=Spare(gpus=4)))
    assert removed(result) == ["b"]
    assert blockers(result) == {"busy": "do-not-disrupt", "a": "spare"}


def test_an_idle_machine_of_unknown_price_is_removed() -> None:
    lost = big("a", labels={TYPE: "retired"})
    result = scale_down_of([lost])
    assert removed(result) == ["a"]
    assert result.removals[0].saving_per_hour == 0.0
