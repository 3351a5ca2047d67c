"""Lives of pods, from the events of a watch."""

from dataclasses import dataclass, field

from tests.planning.building import node, pod, spec

from gpuscaler.embedded.demo.tally import PodLife, Tally, first_waits
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod

BEGAN = 1000.0


@dataclass
class Watch:
    """A watch of pods, and a clock that stands still until it is moved."""

    time: float = BEGAN
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(lambda: self.time)

    def brings(self, at: float, *pods: Pod, removed: str = "") -> None:
        self.time = BEGAN + at
        changes: dict[str, Pod | None] = {pod.key: pod for pod in pods}
        self.tally.hear(Batch(PODS, Pod, {**changes, **({removed: None} if removed else {})}))


def pod_a(uid: str = "u1", *, on: str = "", phase: str = "Pending", created: float = BEGAN) -> Pod:
    return pod("a", spec(gpus=2), uid=uid, on=on, phase=phase, created=created)


def test_a_pod_is_pending_until_it_runs_and_done_when_it_has_succeeded() -> None:
    watch = Watch()
    watch.brings(1, pod_a())
    watch.brings(30, pod_a(on="n1"))
    watch.brings(45, pod_a(on="n1", phase="Running"))
    watch.brings(345, pod_a(on="n1", phase="Succeeded"))
    watch.brings(400, removed="default/a")

    (life,) = watch.tally.lives

    assert (life.bound, life.started, life.ended, life.finished) == (BEGAN + 30, BEGAN + 45, BEGAN + 345, True)
    wait = life.wait(BEGAN + 500)
    assert (wait.seconds, wait.ran, wait.pod_class) == (45.0, True, "2-3 GPUs")


def test_a_running_pod_that_is_deleted_counts_as_interrupted() -> None:
    watch = Watch()
    watch.brings(45, pod_a(on="n1", phase="Running"))
    watch.brings(60, removed="default/a")

    (life,) = watch.tally.lives

    assert (life.ended, life.finished) == (BEGAN + 60, False)


def test_a_pod_recreated_with_the_same_name_is_another_pod() -> None:
    watch = Watch()
    watch.brings(45, pod_a("u1", on="n1", phase="Running"))
    watch.brings(60, pod_a("u2", created=BEGAN + 60))

    first, second = watch.tally.lives

    assert (first.ended, first.finished, second.ended) == (BEGAN + 60, False, None)
    wait = second.wait(BEGAN + 70)
    assert (wait.seconds, wait.ran) == (10.0, False)


def test_samples_distinguish_requested_gpus_from_busy_ones() -> None:
    watch = Watch()
    watch.brings(5, pod_a("u1", on="n1", phase="Running"), pod("b", spec(gpus=4), uid="u2", created=BEGAN))
    watch.tally.sample(paid=8, dollars_per_hour=3.0)
    watch.brings(9, removed="default/b")
    watch.tally.sample(paid=2, dollars_per_hour=1.0)

    assert [(sample.at, sample.wanted, sample.used, sample.paid, sample.dollars_per_hour) for sample in watch.tally.timeline] == [
        (BEGAN + 5, 6, 2, 8, 3.0),
        (BEGAN + 9, 2, 2, 2, 1.0),
    ]


def test_the_pod_tally_ignores_events_of_nodes() -> None:
    watch = Watch()
    watch.tally.hear(Batch(NODES, Node, {"n": node("n")}))

    assert watch.tally.lives == ()


def life(name: str, created: float, *, started: float | None = None, ended: float | None = None, finished: bool = False) -> PodLife:
    return PodLife(f"default/{name}", spec(gpus=1), "", created, job="train", started=started, ended=ended, finished=finished)


def test_the_wait_of_a_pod_recreated_after_an_eviction_does_not_count() -> None:
    lives = [life("a", 0.0, started=50.0, ended=90.0), life("b", 1.0, started=41.0), life("c", 90.0, started=400.0)]

    assert [(pod_wait.pod, pod_wait.seconds, pod_wait.ran) for pod_wait in first_waits(lives, {"train": 2}, 500.0)] == [
        ("default/a", 50.0, True),
        ("default/b", 40.0, True),
    ]


def test_the_wait_of_a_pod_deleted_before_it_ran_continues_in_its_successor() -> None:
    lives = [life("a", 0.0, ended=30.0), life("b", 30.0, started=100.0)]

    assert [(pod_wait.seconds, pod_wait.ran) for pod_wait in first_waits(lives, {"train": 1}, 500.0)] == [(100.0, True)]


def test_a_pod_deleted_before_it_ran_without_a_successor_never_ran() -> None:
    assert [(pod_wait.seconds, pod_wait.ran) for pod_wait in first_waits([life("a", 0.0, ended=30.0)], {"train": 1}, 500.0)] == [
        (30.0, False)
    ]
