"""Services in a replay that gives every pod a node after a delay."""

import heapq
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuscaler.simulation.services import LoadFile, Service, Services, read_load, services_of
from gpuscaler.simulation.services.loads import LoadSeries, Unit
from gpuscaler.simulation.services.running import SYNC_SECONDS, RunningService

BEGAN = 1_704_067_200.0
DATA = Path(__file__).parents[3].parent / "shared" / "data"


def load_of(*values: float, every: float = 600.0, unit: Unit = "requests/s", pods: int = 1) -> LoadFile:
    """The same values for each of several pods, or for one model."""
    times = tuple(every * number for number in range(len(values)))
    return LoadFile("load.csv", unit, tuple(LoadSeries(f"m{number}", times, values) for number in range(pods)))


def service(*values: float, every: float = 600.0, capacity: float = 10.0) -> Service:
    """A service of requests; a replica is kept at 70 % of its capacity."""
    service = services_of(load_of(*values, every=every))[0][0]
    target = service.autoscaler.metrics[0].target
    metric = service.autoscaler.metrics[0]
    metrics = (replace(metric, target=replace(target, average_value=int(700 * capacity))),)
    return service._replace(capacity=capacity, autoscaler=replace(service.autoscaler, metrics=metrics, max_replicas=100))


class ServiceReplay:
    """A small replay: every pod runs ``delay`` seconds after its creation."""

    def __init__(self, *services: Service, delay: float = 0.0) -> None:
        self.services = Services(services, began=BEGAN, seed=3)
        self.sizes: list[tuple[float, int]] = []
        self.live: dict[str, float] = {}
        self._delay = delay
        self._starting: list[tuple[float, str]] = []

    def until(self, end: float = math.inf) -> "ServiceReplay":
        while True:
            start_at = self._starting[0][0] if self._starting else math.inf
            at = min(self.services.next_at, start_at)
            if at > BEGAN + end or at == math.inf:
                return self
            if start_at <= self.services.next_at:
                _, key = heapq.heappop(self._starting)
                if key in self.live:
                    self.services.record_start(key, at)
                continue
            self._advance(at)

    def _advance(self, at: float) -> None:
        changes = self.services.advance(at)
        for member in changes.add:
            assert member.duration == math.inf
            self.live[member.key] = at
            heapq.heappush(self._starting, (at + self._delay, member.key))
        for key in changes.remove:
            del self.live[key]
        self.sizes.append((at - BEGAN, len(self.live)))

    @property
    def changes(self) -> list[tuple[float, int]]:
        """When the number of pods changed, and its new value."""
        changes: list[tuple[float, int]] = []
        for at, size in self.sizes:
            if not changes or changes[-1][1] != size:
                changes.append((at, size))
        return changes


def test_a_service_starts_with_the_replicas_for_its_initial_load_and_scales_with_the_load() -> None:
    # At 7 requests/s each: 70 need 10 replicas, 140 need 20; down again only when no recommendation of 5 minutes is higher.
    playing = ServiceReplay(service(70, 140, 35)).until()

    assert playing.changes == [(0, 10), (600, 20), (1500, 5), (1800, 0)]


def test_every_replica_ends_at_the_end_of_the_load_and_no_event_remains() -> None:
    playing = ServiceReplay(service(70)).until()

    assert playing.live == {}
    assert playing.services.next_at == math.inf


def test_a_service_at_most_doubles_its_replicas_in_each_step() -> None:
    assert ServiceReplay(service(7, 700), delay=0).until(700).changes == [
        (0, 1),
        (600, 4),
        (615, 8),
        (630, 16),
        (645, 32),
        (660, 64),
        (675, 100),
    ]


def test_a_constant_load_needs_few_autoscaler_steps() -> None:
    playing = ServiceReplay(service(*[70.0] * 1000)).until()

    assert playing.services.results()[0].steps < 5


def test_pods_of_a_service_belong_to_a_replica_set_and_request_a_replicas_gpus() -> None:
    large = service(70)._replace(gpus=4)
    member = Services((large,), began=BEGAN).advance(BEGAN).add[0]

    assert (member.owner.kind, member.owner.name, member.gpus) == ("ReplicaSet", "m0", 4.0)
    assert member.spec.requests["nvidia.com/gpu"] == 4
    assert member.spec.restart_policy == "Always"


def test_replicas_request_thousandths_of_gpus_in_a_run_with_gpu_shares() -> None:
    member = Services((service(70),), began=BEGAN, fractional=True).advance(BEGAN).add[0]

    assert member.spec.requests["gpuscaler.io/gpu-milli"] == 1000 * int(member.gpus)


def test_replicas_without_a_node_are_removed_first() -> None:
    services = Services((service(70, 35),), began=BEGAN)
    keys = [member.key for member in services.advance(BEGAN).add]
    for key in keys[:6]:
        services.record_start(key, BEGAN + 200)
    removed: tuple[str, ...] = ()
    while not removed:
        removed = services.advance(services.next_at).remove

    assert set(removed[:4]) == set(keys[6:])
    assert len(removed) == 5


def test_only_the_load_that_ready_replicas_can_handle_is_served() -> None:
    full, late = ServiceReplay(service(70, 70)).until(), ServiceReplay(service(70, 70), delay=600).until()

    assert full.services.results()[0].served == pytest.approx(full.services.results()[0].load)
    assert late.services.results()[0].served == pytest.approx(late.services.results()[0].load / 2)
    assert late.services.results()[0].ready_hours == pytest.approx(late.services.results()[0].replica_hours / 2)


def test_a_replica_that_lost_its_node_serves_again_after_loading_its_model_elsewhere() -> None:
    services = Services((service(7),), began=BEGAN)
    key = services.advance(BEGAN).add[0].key
    services.record_start(key, BEGAN)
    services.record_stop(key, BEGAN + 100)
    services.record_start(key, BEGAN + 200)
    services.advance(BEGAN + 600)
    result = services.results()[0]

    assert 600 - 100 - 120 <= result.ready_hours * 3600 <= 600 - 100 - 30
    assert result.served < result.load


def busy(*values: float, every: float = 60.0, pods: int = 40) -> Service:
    """The first of several services that share pods with these duty cycles."""
    return services_of(load_of(*values, every=every, unit="busy GPUs", pods=pods))[0][0]


def test_a_service_with_a_load_of_busy_gpus_is_scaled_to_its_target_duty_cycle() -> None:
    # Five pods at 0.6 are 3 busy GPUs: 5 replicas at 60 %.
    playing = ServiceReplay(busy(*[0.6] * 60), delay=100).until(3000)

    assert len(playing.live) == 5


def test_a_service_at_full_duty_cycle_needs_several_steps_to_grow() -> None:
    sizes = [size for at, size in ServiceReplay(busy(*[0.24] * 10, *[0.96] * 60), delay=60).until(4200).changes]

    assert sizes[0] == 2
    assert sizes[-1] == 8
    assert len(sizes) >= 4


def test_different_seeds_draw_different_services_and_the_same_seed_the_same() -> None:
    load = load_of(1, 2, 3)

    assert services_of(load, seed=1) == services_of(load, seed=1)
    assert len({services_of(load, seed=seed)[0][0].capacity for seed in range(5)}) > 1


def test_services_have_the_documented_targets_and_maximum_replicas() -> None:
    by_rate = services_of(load_of(35, 70))[0][0]
    by_duty = services_of(load_of(0.48, 0.96, unit="busy GPUs", pods=40))[0][0]
    peak = round(70 / by_rate.capacity)

    assert 4 <= peak <= 64
    assert by_rate.autoscaler.metrics[0].target.average_value == int(700 * by_rate.capacity)
    assert by_rate.autoscaler.max_replicas == math.ceil(1.25 * peak / 0.7)
    # Five pods: 4.8 busy GPUs, at 60 % each.
    assert by_duty.autoscaler.metrics[0].target.average_value == 60_000
    assert by_duty.autoscaler.max_replicas == 10


def test_derived_values_of_services_are_reported() -> None:
    lines = services_of(load_of(1, 2))[1]

    assert any("drawn, seed 0" in line and "load.csv: m0" in line for line in lines)
    assert any("assumed" in line for line in lines)


def test_a_service_without_load_keeps_its_minimum_replicas() -> None:
    service = services_of(load_of(0, 0))[0][0]

    assert ServiceReplay(service).until().changes == [(0, 1), (1200, 0)]


def test_a_run_without_services_has_no_service_events() -> None:
    assert Services((), began=BEGAN).next_at == math.inf


def sizes_of(service: Service, delays: Callable[[int], float], *, every_step: bool) -> list[int]:
    """The replicas at every step, computed at every step or only when the service asks for it."""
    running = RunningService(service, began=BEGAN, seed=0)
    starting: list[tuple[float, int]] = []
    sizes, at = [], BEGAN
    while at < running.end:
        while starting and starting[0][0] <= at:
            started, number = heapq.heappop(starting)
            if number in running.replicas:
                running.record_start(number, started)
        if every_step or running.next_at <= at:
            new, _ = running.advance(at)
            for replica in new:
                heapq.heappush(starting, (at + delays(replica.number), replica.number))
        sizes.append(len(running.replicas))
        at += SYNC_SECONDS
    return sizes


@pytest.mark.parametrize("seed", range(40))
def test_skipped_autoscaler_steps_would_not_have_changed_anything(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice([0.0, 0.1, 0.3, 0.5, 0.9]) for _ in range(40)]
    drawn = busy(*values, every=rng.choice([57.0, 600.0])) if seed % 2 else service(*[100 * value for value in values], every=600.0)
    delays = {number: rng.uniform(0, 400) for number in range(1, 2000)}

    assert sizes_of(drawn, delays.__getitem__, every_step=False) == sizes_of(drawn, delays.__getitem__, every_step=True)


@pytest.mark.skipif(not (DATA / "llm_rate_servegen_10min.csv.gz").exists(), reason="../shared/data is not there")
def test_two_weeks_of_published_request_rates_are_served_almost_completely() -> None:
    services = services_of(read_load(DATA / "llm_rate_servegen_10min.csv.gz"))[0]
    results = ServiceReplay(*services, delay=240).until().services.results()

    assert all(0.97 < result.served / result.load <= 1 for result in results)
    assert all(result.steps < 4000 for result in results)
