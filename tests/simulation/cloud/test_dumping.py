"""A simulated cloud that is saved and loaded continues as if nothing had happened."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.cloud.test_core import CPU, DRY_AT_1000, GPU, SPOT
from tests.soaking import examples

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import Delay, Delays, Faults
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.state import CloudState

POOLS = (Pool("gpu", (SPOT, GPU), max=6), Pool("cpu", (CPU,)))
ODD = Faults(
    never_registers=0.2, partial_grants=0.3, gpu_hours_between_failures=2.0, reclaim=Delay(0, 10, 60), never_visible=0.2, impaired=0.5
)
SPANS = Delays(boot=Delay(50, 100, 300), device_plugin=Delay(5, 20, 400), answer=Delay(0, 2, 20), image_pull=Delay(1, 10, 60))


def cloud(seed: int, capacity: Steps = DRY_AT_1000) -> SimulatedCloud:
    markets = Markets({SPOT.key: capacity}, {SPOT.key: Steps([0, 700], [1.0, 2.0])})
    return SimulatedCloud(POOLS, seed=seed, delays=SPANS, faults=ODD, markets=markets)


def reloaded(sky: SimulatedCloud, seed: int) -> SimulatedCloud:
    """Save it and load it again."""
    twin = cloud(seed)
    twin.restore(msgspec.json.decode(msgspec.json.encode(sky.dump()), type=CloudState))
    return twin


OFFERS = st.lists(
    st.sampled_from([SPOT.key, GPU.key, CPU.key, OfferingKey("gpu", "spot", "unknown", "z1")]), min_size=1, max_size=3, unique=True
)
CALLS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 8), OFFERS, st.integers(1, 4), st.booleans(), st.booleans()),
    st.tuples(st.just("withdraw"), st.integers(0, 8)),
    st.tuples(st.just("terminate"), st.integers(0, 8)),
    st.tuples(st.just("image"), st.integers(0, 8)),
    st.tuples(st.just("start")),
)
SCRIPTS = st.lists(st.tuples(st.integers(0, 400), CALLS), max_size=10)


def carry_out(sky: SimulatedCloud, now: float, call: tuple[Any, ...]) -> Any:
    match call:
        case ("ask", number, offerings, count, spread, standing):
            sky.ask(f"t{number}", tuple(offerings), count=count, now=now, spread=spread, standing=standing)
        case ("withdraw", number):
            sky.withdraw(f"t{number}")
        case ("terminate", place) if len(sky.list()) > place:
            return msgspec.to_builtins(sky.terminate(sky.list()[place].id, now))
        case ("image", place) if len(sky.list()) > place:
            return sky.image_pull(sky.list()[place].id, now)
        case ("start",):
            return msgspec.to_builtins(sky.start(SPOT.key, now))
    return None


def play(sky: SimulatedCloud, script: list[tuple[int, tuple[Any, ...]]], now: float) -> tuple[list[Any], float]:
    results: list[Any] = []
    for pause, call in script:
        now += pause
        # Copied at once: machines in events change later.
        results.append(
            (msgspec.to_builtins(sky.advance(now)), carry_out(sky, now, call), sky.busy, sky.dollars_per_hour(now), sky.next_event())
        )
    return results, now


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 5), SCRIPTS, SCRIPTS)
def test_a_loaded_cloud_has_the_same_later_events(seed: int, before: list[Any], after: list[Any]) -> None:
    sky = cloud(seed)
    _, now = play(sky, before, 0.0)
    twin = reloaded(sky, seed)
    assert play(sky, after, now) == play(twin, after, now)
    assert msgspec.to_builtins(sky.advance(now + 5_000)) == msgspec.to_builtins(twin.advance(now + 5_000))
    assert sky.dump() == twin.dump()
    assert sky.history() == twin.history()


def test_overdue_events_of_a_loaded_cloud_take_effect_in_order() -> None:
    sky = cloud(1)
    sky.ask("a", (GPU.key,), count=3, now=0.0)
    twin = reloaded(sky, 1)
    assert [event.kind for event in twin.advance(10_000)] == [event.kind for event in sky.advance(10_000)]


def test_a_loaded_cloud_repeats_the_answer_to_a_token_with_refusals_and_machines() -> None:
    sky = cloud(1)
    sky.ask("a", (GPU.key,), count=9, now=0.0)
    assert sky.answer("a") is None
    (event, *_) = sky.advance(30.0)
    twin = reloaded(sky, 1)
    answer = twin.answer("a")
    assert answer is not None
    assert event.answer is not None
    assert (answer.machines, answer.refusals) == (event.answer.machines, event.answer.refusals)
    twin.ask("a", (GPU.key,), count=9, now=40.0)
    assert twin.next_event() == sky.next_event()
    assert sky.answer("b") is None


def test_old_machines_and_tokens_are_not_saved_and_ids_are_not_reused() -> None:
    sky = cloud(1)
    for number in range(5):
        sky.ask(f"t{number}", (CPU.key,), count=1, now=number * 1000.0)
        sky.advance(number * 1000.0 + 20.0)
        sky.terminate(sky.list()[-1].id, number * 1000.0 + 20.0)
    state = sky.dump(ended_after=3000.0, tokens=2)
    assert [row.id for row in state.machines] == ["sim-00004", "sim-00005"]
    assert [token for token, _ in state.answers] == ["t3", "t4"]
    twin = cloud(1)
    twin.restore(state)
    assert twin.start(CPU.key, 9000.0).id == "sim-00006"


def test_a_loaded_cloud_reclaims_machines_of_a_market_that_lost_its_capacity_in_the_meantime() -> None:
    sky = cloud(1, Steps([0], [float("inf")]))
    machine = sky.start(SPOT.key, 0.0)
    twin = cloud(1, Steps([0], [0]))
    twin.restore(sky.dump())
    assert twin.advance(100.0) == ()
    twin.check_markets(100.0)
    lost = [event for event in twin.advance(500.0) if event.kind == "lost"]
    assert [event.machine and event.machine.id for event in lost] == [machine.id]


def test_machines_of_removed_pools_stay_until_they_end() -> None:
    sky = cloud(1)
    machine = sky.start(SPOT.key, 0.0)
    other = SimulatedCloud((POOLS[1],), seed=1)
    other.restore(sky.dump())
    other.check_markets(0.0)
    other.advance(10.0)
    assert other.list() == (machine,)
    assert other.dollars_per_hour(0.0) == SPOT.price
    other.terminate(machine.id, 20.0)
    assert other.list() == ()


def test_a_saved_state_of_another_format_is_rejected() -> None:
    with pytest.raises(ValueError, match="form 9, expected 1"):
        cloud(1).restore(CloudState(form=9))
