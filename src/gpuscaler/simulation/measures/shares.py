"""Who used the machines: their cost, divided among the pods that held their GPUs."""

from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct

from gpuscaler.model.pools import Offering
from gpuscaler.simulation.measures.waits import class_of
from gpuscaler.simulation.traces.workload import GPU, Member


class Share(Struct, frozen=True, gc=False):
    """Dollars and GPU-hours of one ``name``: a user, a namespace, a kind of pods. None is machine time that no pod held."""

    name: str | None
    cost: float
    gpu_hours: float


class Shares:
    """Adds up the cost and GPU-hours that pods held, by user, by namespace and by kind of pods.

    From binding until it leaves, a pod is charged the part of its machine's cost that matches its part of the GPUs, or of the CPU if the
    machine has no GPUs. The rest belongs to no pod: boot, idle time, free GPUs beside others in use.
    """

    def __init__(self) -> None:
        #: By user, namespace and kind: dollars and GPU-hours.
        self._held: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, member: Member, offering: Offering, *, hours: float, cost: float) -> None:
        """Add a pod that was bound for ``hours`` to a machine of ``offering``, which cost ``cost`` dollars in that time."""
        sums = self._held[(member.user, member.namespace, class_of(member.gpus, member.options.gang))]
        sums[0] += cost * part_of(member, offering)
        sums[1] += hours * member.gpus

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that pods held."""
        return sum(gpu_hours for _, gpu_hours in self._held.values())

    def by_user(self, cost: float, gpu_hours: float) -> tuple[Share, ...]:
        """Every user's share, most expensive first, and the unheld rest, so that they add up to ``cost`` and the paid ``gpu_hours``."""
        return self._divide(lambda key: key[0], cost, gpu_hours)

    def by_namespace(self, cost: float, gpu_hours: float) -> tuple[Share, ...]:
        """The same by namespace."""
        return self._divide(lambda key: key[1], cost, gpu_hours)

    def by_class(self, cost: float, gpu_hours: float) -> tuple[Share, ...]:
        """The same by kind of pods."""
        return self._divide(lambda key: key[2], cost, gpu_hours)

    def _divide(self, name: Callable[[tuple[str, str, str]], str], cost: float, gpu_hours: float) -> tuple[Share, ...]:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for key, held in self._held.items():
            sums[name(key)][0] += held[0]
            sums[name(key)][1] += held[1]
        shares = sorted((Share(key, *held) for key, held in sums.items()), key=lambda share: (-share.cost, share.name or ""))
        # If pods held everything, rounding may leave a negative rest.
        left = [
            max(0.0, whole - held) for whole, held in ((cost, sum(s.cost for s in shares)), (gpu_hours, sum(s.gpu_hours for s in shares)))
        ]
        nobody = Share(None, *left)
        return (*shares, nobody)


def part_of(member: Member, offering: Offering) -> float:
    """The part of a machine that a pod holds, from 0 to 1: of its GPUs, or of its CPU if it has no GPUs."""
    gpus = offering.allocatable.get(GPU, 0)
    if gpus:
        return member.gpus / gpus
    cpu = offering.allocatable.get("cpu", 0)
    return member.spec.requests.get("cpu", 0) / cpu if cpu else 0.0
