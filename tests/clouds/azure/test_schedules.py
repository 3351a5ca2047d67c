"""A few of the random schedules that `make bench` plays by the thousand."""

from functools import partial

import pytest
from benchmarks.live_scenes import run_in_virtual_time
from tests.clouds.azure.schedules import play
from tests.soaking import SEED, part_of_runs


@pytest.mark.parametrize(
    ("api", "seed"),
    # Those through AKS ended machines that no call had named while AKS's count was behind its scale set.
    [*(("auto", seed) for seed in range(10)), *(("agentpool", seed) for seed in (0, 1, 49, 64, 79, 131))],
)
def test_nothing_is_bought_twice_and_only_named_machines_end(api: str, seed: int) -> None:
    tally = run_in_virtual_time(partial(play, seed, api))

    assert tally.ordered
    assert not tally.unnamed
    assert not tally.surplus
    assert not tally.left_over


@pytest.mark.parametrize("seed", range(10_000 * SEED + 1000, 10_000 * SEED + 1000 + part_of_runs(10)))
def test_random_schedules_end_nobodys_machine_and_buy_nothing_twice(seed: int) -> None:
    tally = run_in_virtual_time(partial(play, seed))

    # A machine that Azure evicts while a number is lowered may stay listed for some seconds, and one number too many remains.
    assert not tally.unnamed
    assert not tally.surplus


def test_schedules_see_machines_come_and_go() -> None:
    tallies = [run_in_virtual_time(partial(play, seed)) for seed in range(10, 14)]

    assert sum(tally.came for tally in tallies) > 10
    assert sum(len(tally.named) for tally in tallies) > 3
