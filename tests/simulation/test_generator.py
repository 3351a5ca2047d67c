"""The generated day."""

import math
from collections import Counter

import pytest

from gpuscaler.simulation.generator import DAY, DURATIONS, duration, generate


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    assert generate(seed=3, jobs=50) == generate(seed=3, jobs=50)
    assert generate(seed=3, jobs=50).jobs != generate(seed=4, jobs=50).jobs


def test_jobs_come_in_order_within_one_day_and_last_no_longer_than_the_source_is_cut_at() -> None:
    trace = generate(seed=1, jobs=2000)
    submits = [job.submit for job in trace.jobs]
    assert submits == sorted(submits)
    assert 0 <= submits[0] <= submits[-1] < DAY
    assert max(job.duration for job in trace.jobs) <= DURATIONS[-1][1]


def test_the_mix_of_gpus_is_that_of_the_source() -> None:
    trace = generate(seed=1, jobs=20_000)
    counts = Counter(job.gpus if job.gpu_milli == 1000 else "part" for job in trace.jobs)
    # 931 of the table's 6,037 requests have no GPU, 2,143 a part of one.
    assert counts[0] / 20_000 == pytest.approx(931 / 6037, abs=0.01)
    assert counts["part"] / 20_000 == pytest.approx(2143 / 6037, abs=0.012)
    assert set(counts) == {0, "part", 1, 2, 4, 8}


@pytest.mark.parametrize(("quantile", "seconds"), DURATIONS)
def test_durations_hit_the_published_quantiles(quantile: float, seconds: float) -> None:
    assert duration(quantile) == pytest.approx(seconds)


def test_between_quantiles_a_duration_is_interpolated_on_a_logarithmic_scale() -> None:
    assert duration(0.375) == pytest.approx(math.sqrt(145.0 * 485.0))
