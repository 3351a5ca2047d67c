"""A scale set that others write at any moment while we buy and end: nothing is bought twice, and only named machines end.

The account is simulated as bad as a real one may be: lists that are behind, answers that are lost, deletions that other writes end,
evictions, attempts that fail in part and leave entries or only a number, other processes that go on.
"""

import logging
from collections.abc import Iterator
from functools import partial

import structlog
from tests.clouds.azure.schedules import play

from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time

SCHEDULES, SEED = 10_000, 1


def figures(schedules: int = SCHEDULES) -> Iterator[Figure]:
    with structlog.testing.capture_logs():
        logging.disable(logging.CRITICAL)
        tallies = {seed: run_in_virtual_time(partial(play, seed)) for seed in range(SEED * SCHEDULES, SEED * SCHEDULES + schedules)}
        logging.disable(logging.NOTSET)
    bad = [seed for seed, tally in tallies.items() if tally.unnamed or tally.surplus or tally.left_over]
    unnamed = sum(len(tally.unnamed) for tally in tallies.values())
    surplus, left_over = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("surplus", "left_over"))
    ordered, came = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("ordered", "came"))
    yield Figure(
        f"machines ended that no call named, machines no order wanted, capacity left over; {schedules:,} random schedules, seed {SEED}",
        "Cluster Autoscaler's issue 8323 and its like",
        "0",
        f"{unnamed}, {surplus}, {left_over}{f': seeds {bad[:10]}' if bad else ''}; {ordered:,} machines ordered, {came:,} came",
        not bad,
        {"schedules": schedules, "seed": SEED, "unnamed": unnamed, "surplus": surplus, "left_over": left_over, "ordered": ordered},
    )
