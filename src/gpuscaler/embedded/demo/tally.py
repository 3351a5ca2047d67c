"""Records the life of every pod, from the API server's watch."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.nodes.plugins import is_plugin
from gpuscaler.kube.reflector import Batch
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.simulation.measures.waits import PodWait, class_of
from gpuscaler.simulation.world.meter import TimelineSample

GPU = "nvidia.com/gpu"


class PodLife(Struct, gc=False):
    """One pod. Times are seconds since the epoch, None before they are reached."""

    key: str
    spec: PodSpec
    gang: str
    created: float
    #: The Job that created it, or "".
    job: str = ""
    bound: float | None = None
    started: float | None = None
    ended: float | None = None
    finished: bool = False

    @property
    def gpus(self) -> int:
        return self.spec.requests.get(GPU, 0)

    def wait(self, now: float) -> PodWait:
        """How long it was pending, or has been so far."""
        until = self.started if self.started is not None else self.ended if self.ended is not None else now
        return PodWait(self.key, class_of(self.gpus, self.gang), max(0.0, until - self.created), self.started is not None, self.created)


def first_waits(lives: Iterable[PodLife], sizes: Mapping[str, int], now: float) -> Iterator[PodWait]:
    """How long the pods of Jobs were pending until they first ran, counted as in a simulation; ``sizes`` has each Job's number of pods.

    A Job replaces an evicted pod. That counts as an eviction and as no further wait, unless the evicted pod never ran.
    """
    by_job: dict[str, list[PodLife]] = {}
    for life in lives:
        by_job.setdefault(life.job or life.key, []).append(life)
    for job, group in by_job.items():
        group.sort(key=lambda life: life.created)
        count = sizes.get(job, len(group))
        again = iter(group[count:])
        for first in group[:count]:
            last = first
            while last.started is None and last.ended is not None and (successor := next(again, None)) is not None:
                last = successor
            yield replace(last, created=first.created).wait(now)


class Tally:
    """Lives of pods, from the batches of a watch that it receives. ``now`` is the wall clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lives: dict[str, PodLife] = {}
        self._by_key: dict[str, str] = {}
        self.timeline: list[TimelineSample] = []

    @property
    def lives(self) -> tuple[PodLife, ...]:
        return tuple(self._lives.values())

    def hear(self, batch: Batch) -> None:
        if batch.model is not Pod:
            return
        for key, item in batch.changes.items():
            uid = self._by_key.get(key)
            if uid is not None and (item is None or (isinstance(item, Pod) and item.uid != uid)):
                self._end(self._lives[uid], finished=False)
            # Device plugins are not work.
            if isinstance(item, Pod) and not is_plugin(item.namespace, item.owner.name):
                self._by_key[key] = item.uid
                self._see(item)

    def _see(self, pod: Pod) -> None:
        life = self._lives.get(pod.uid)
        if life is None:
            life = self._lives[pod.uid] = PodLife(pod.key, pod.spec, pod.options.gang, pod.created or self._now(), pod.owner.name)
        if pod.node_name and life.bound is None:
            life.bound = self._now()
        if pod.phase != "Pending" and life.started is None and pod.node_name:
            life.started = self._now()
        if pod.finished:
            self._end(life, finished=pod.phase == "Succeeded")

    def _end(self, life: PodLife, *, finished: bool) -> None:
        if life.ended is None:
            life.ended, life.finished = self._now(), finished

    def sample(self, *, paid: float, dollars_per_hour: float) -> None:
        """Record the current state."""
        alive = [life for life in self._lives.values() if life.ended is None]
        wanted = sum(life.gpus for life in alive)
        used = sum(life.gpus for life in alive if life.started is not None)
        self.timeline.append(TimelineSample(self._now(), wanted, used, paid, dollars_per_hour))
