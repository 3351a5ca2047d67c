"""A scale set that others write at any moment while we buy and end: nothing is bought twice, and only named machines end.

The account is simulated as bad as a real one may be: lists that are behind, answers that are lost, deletions that other writes end,
evictions, attempts that fail in part and leave entries or only a number, other processes that go on.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import structlog
from tests.clouds.azure.schedules import Tally, play

from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time

SCHEDULES, SEED = 10_000, 1


def play_quietly(seed: int) -> Tally:
    """What happened in the schedule of ``seed``; its many refusals are not logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return run_in_virtual_time(partial(play, seed))


def figures(schedules: int = SCHEDULES) -> Iterator[Figure]:
    seeds = range(SEED * SCHEDULES, SEED * SCHEDULES + schedules)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        tallies = list(processes.map(play_quietly, seeds, chunksize=25))
    bad = [seed for seed, tally in zip(seeds, tallies, strict=True) if tally.unnamed or tally.surplus or tally.left_over]
    unnamed = sum(len(tally.unnamed) for tally in tallies)
    surplus, left_over = (sum(getattr(tally, name) for tally in tallies) for name in ("surplus", "left_over"))
    ordered, came = (sum(getattr(tally, name) for tally in tallies) for name in ("ordered", "came"))
    yield Figure(
        f"machines ended that no call named, machines no order wanted, capacity left over; {schedules:,} random schedules, seed {SEED}",
        "Cluster Autoscaler's issue 8323 and its like",
        "0",
        f"{unnamed}, {surplus}, {left_over}{f': seeds {bad[:10]}' if bad else ''}; {ordered:,} machines ordered, {came:,} came",
        not bad,
        {"schedules": schedules, "seed": SEED, "unnamed": unnamed, "surplus": surplus, "left_over": left_over, "ordered": ordered},
    )
