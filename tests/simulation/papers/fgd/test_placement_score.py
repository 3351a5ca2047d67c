"""Fragmentation, prices of classes of pods, and the placement score built from both."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soaking import examples

from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Fragmentation, Ints, PodClasses
from gpuscaler.simulation.papers.fgd.placement_prices import SLOTS, packing_values, slots, solve
from gpuscaler.simulation.papers.fgd.placement_score import PlacementScore, points


def classes(*rows: tuple[int, int, int, float]) -> PodClasses:
    """Classes of (devices, thousandths, millicores, number) each."""
    gpus, milli, cpu, weight = zip(*rows, strict=True)
    return PodClasses(np.array(gpus), np.array(milli), np.array(cpu), np.array(weight, dtype=np.float64))


def array(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


SIZES = st.sampled_from([(0, 0), (1, 100), (1, 250), (1, 470), (1, 810), (1, 1000), (2, 1000), (4, 1000)])
CLASSES = st.lists(st.tuples(SIZES, st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6)


def plain_fragmentation(pods: PodClasses, cpu: int, devices: list[int]) -> float:
    """The definition of the paper, literally."""
    total = 0.0
    for gpus, milli, wanted, weight in zip(pods.gpus, pods.milli, pods.cpu, pods.weight, strict=True):
        fitting = [free for free in devices if gpus and free >= milli]
        fits = gpus > 0 and len(fitting) >= gpus and cpu >= wanted
        total += weight * (sum(devices) - sum(fitting) if fits else sum(devices))
    return float(total / pods.weight.sum())


@settings(max_examples=examples(100), deadline=None)
@given(drawn=CLASSES, free=st.lists(st.sampled_from([0, 190, 530, 1000]), min_size=1, max_size=4), cores=st.integers(0, 20))
def test_the_increase_of_fragmentation_is_that_of_the_papers_definition(
    drawn: list[tuple[tuple[int, int], int, int]], free: list[int], cores: int
) -> None:
    pods = classes(*((gpus, milli, 1000 * cpu, weight) for (gpus, milli), cpu, weight in drawn))
    grown = Fragmentation(pods).growth(pods, cpu=1000 * cores, devices=array(*free))
    before = plain_fragmentation(pods, 1000 * cores, free)
    for number, device in itertools.product(range(len(pods)), range(len(free))):
        gpus, milli, cpu = int(pods.gpus[number]), int(pods.milli[number]), int(pods.cpu[number])
        after = list(free)
        if gpus == 1 and milli < WHOLE:
            after[device] -= milli
        else:
            whole = [place for place, room in enumerate(free) if room == WHOLE][:gpus]
            if len(whole) < gpus:
                continue
            after = [0 if place in whole else room for place, room in enumerate(free)]
        if min(after) >= 0:
            expected = plain_fragmentation(pods, 1000 * cores - cpu, after) - before
            assert grown[number, device] == pytest.approx(expected)


def test_filling_a_partly_used_gpu_fragments_less_than_using_a_free_one() -> None:
    pods = classes((1, 500, 1000, 1), (1, 1000, 1000, 1))
    grown = Fragmentation(pods).growth(pods, cpu=64_000, devices=array(500, 1000))
    assert grown[0, 0] < grown[0, 1]


def test_the_value_of_a_node_is_that_of_its_best_packing() -> None:
    sizes = array(47, 32, 81)
    table, choice = packing_values(np.array([0.5, 0.3, 0.81]), sizes)
    assert table[SLOTS] == pytest.approx(1.0)
    assert table[SLOTS - 1] == pytest.approx(1.0)
    assert table[81] == pytest.approx(0.81)
    assert table[79] == pytest.approx(0.8)
    assert table[31] == 0.0
    assert choice[SLOTS] == -1
    assert choice[94] == 0


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([5, 16, 19, 32, 33, 47, 65, 81, 100]), st.integers(-3, 9)), min_size=1, max_size=5))
def test_values_of_nodes_agree_with_exhaustive_search(drawn: list[tuple[int, int]]) -> None:
    sizes, values = array(*(size for size, _ in drawn)), np.array([value / 10 for _, value in drawn])
    best = [0.0] * (SLOTS + 1)
    for room in range(1, SLOTS + 1):
        best[room] = max([best[room - 1], *(best[room - size] + value / 10 for size, value in drawn if size <= room)])
    assert packing_values(values, sizes)[0] == pytest.approx(best)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([110, 190, 320, 470, 810, 1000]), st.integers(0, 16), st.integers(1, 60)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(0, 400),
)
def test_prices_of_pod_classes_prove_that_no_more_pods_can_be_served(drawn: list[tuple[int, int, int]], devices: int, cores: int) -> None:
    pods = classes(*((1, milli, 1000 * cpu, count) for milli, cpu, count in drawn))
    prices = solve(pods, devices=devices, cpu=1000.0 * cores)
    assert -1e-6 <= prices.served <= min(devices, float(pods.demand @ pods.weight) / WHOLE) + 1e-6
    # By duality: the worth of all pods, all cores and the best packing of every device at these prices is exactly what is served.
    per_device = packing_values(pods.milli / WHOLE - prices.pods - prices.cpu * pods.cpu / WHOLE, slots(pods.milli))[0][SLOTS]
    proven = float(prices.pods @ pods.weight) + prices.cpu * cores + devices * per_device
    assert proven == pytest.approx(prices.served, abs=1e-3)


def test_only_a_scarce_pod_class_has_a_price() -> None:
    # 100 devices; 200 pods want four fifths of one, and 20 want one fifth: each of those saves a fifth that would be lost.
    prices = solve(classes((1, 800, 0, 200), (1, 200, 0, 20)), devices=100, cpu=float("inf"))
    assert prices.pods == pytest.approx([0.0, 0.2])
    assert prices.cpu == 0
    assert prices.served == pytest.approx(84.0)


def test_cpu_has_a_price_if_it_is_exhausted_first() -> None:
    prices = solve(classes((1, 1000, 10_000, 50), (1, 1000, 2000, 50)), devices=100, cpu=100_000.0)
    # Ten cores serve one device: the class with two cores is served whole, the other as far as cores go.
    assert prices.cpu == pytest.approx(0.1)
    assert prices.served == pytest.approx(50.0)


def test_a_pod_with_half_a_gpu_is_placed_on_a_gpu_whose_other_half_is_used() -> None:
    pods = classes((1, 500, 1000, 10), (1, 1000, 1000, 10))
    lost = PlacementScore(pods, devices=10, cpu=100_000).losses(pods, cpu=10_000, devices=array(500, 1000))
    assert lost[0, 0] < lost[0, 1]


def test_a_pod_with_many_cores_scores_better_on_a_node_with_spare_cores() -> None:
    pods = classes((1, 1000, 2000, 10), (1, 1000, 20_000, 1), (0, 0, 20_000, 1))
    score = PlacementScore(pods, devices=12, cpu=60_000)
    narrow = score.losses(pods, cpu=22_000, devices=array(1000, 1000))
    wide = score.losses(pods, cpu=64_000, devices=array(1000, 1000))
    assert wide[1, 0] < narrow[1, 0]
    assert wide[2, 0] < narrow[2, 0]


def test_pods_without_cpu_requests_are_scored_by_gpus_alone() -> None:
    pods = classes((1, 470, 0, 10), (2, 1000, 0, 1))
    lost = PlacementScore(pods, devices=10, cpu=0).losses(pods, cpu=0, devices=array(470, 1000, 1000))
    assert np.isfinite(lost).all()
    assert lost[0, 0] < lost[0, 1]
    assert lost[1, 0] == lost[1, 2]


def test_placements_whose_scores_differ_by_less_than_a_point_are_equal() -> None:
    assert points(np.array([0.0, 0.019, 0.021, -0.001])).tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize(("milli", "slot"), [(0, 0), (1, 1), (10, 1), (11, 2), (470, 47), (1000, 100)])
def test_the_slot_of_a_pod_is_its_gpu_request_rounded_up(milli: int, slot: int) -> None:
    assert slots(array(milli)).tolist() == [slot]
