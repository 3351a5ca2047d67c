"""Nodes with pods that Cluster Autoscaler could remove: low utilization, and their pods fit on the other nodes.

Source: kubernetes/autoscaler 1.35, ``cluster-autoscaler/core/scaledown`` (eligibility/eligibility.go, planner/planner.go),
``simulator/utilization/info.go`` and ``simulator/cluster.go`` (``SimulateNodeRemoval``). Nodes are tried one after the other, nodes that
were unneeded before first. The pods of a removable node take their room on the others, and no pods are moved to that node any more. A node
that cannot be removed is not tried again for a while.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from gpuscaler.model.pods import PodSpec
from gpuscaler.simulation.world.autoscaler import ObservedMachine
from gpuscaler.simulation.world.scheduler import Scheduler, Seat

NEVER = math.inf


class Draining:
    """Remembers which nodes could not be drained, and until when they are not tried again.

    A node has low utilization below ``threshold``, or ``gpu_threshold`` if it has GPUs: shares of its resources that pods request.
    """

    def __init__(self, *, threshold: float, gpu_threshold: float, recheck: float) -> None:
        self._threshold = threshold
        self._gpu_threshold = gpu_threshold
        self._recheck = recheck
        self._tried: dict[str, float] = {}

    def find(
        self, nodes: Iterable[ObservedMachine], room: Scheduler, *, most: int, now: float, news: float
    ) -> tuple[list[ObservedMachine], float]:
        """The nodes that could be removed together, ``most`` at most, and when to try the next node that is not tried now.

        A node that was tried after the last ``news`` (time of the last event) would give the same result again.

        ``nodes`` are those with movable pods only, in the order of trial; ``room`` has the nodes that may take pods, and is used up.
        """
        self._tried = {name: until for name, until in self._tried.items() if until > now}
        removable: list[ObservedMachine] = []
        retry_at = NEVER
        moved: dict[str, list[PodSpec]] = defaultdict(list)
        for observed in filter(self._underutilized, nodes):
            if len(removable) >= most:
                break
            until = self._tried.get(observed.node)
            if until is not None:
                retry_at = min(retry_at, until) if until - self._recheck <= news else retry_at
            elif self._move_pods(observed, room, moved):
                removable.append(observed)
            else:
                self._tried[observed.node] = now + self._recheck
        return removable, retry_at

    def _underutilized(self, observed: ObservedMachine) -> bool:
        allocatable = observed.offering.allocatable
        devices = [name for name in allocatable if "/" in name]
        used = max(_share(observed, name) for name in devices or ("cpu", "memory"))
        return used < (self._gpu_threshold if devices else self._threshold)

    def _move_pods(self, observed: ObservedMachine, room: Scheduler, moved: dict[str, list[PodSpec]]) -> bool:
        """Move the pods of a node, and those moved to it, to others; if one finds no place, all stay."""
        room.close(observed.node)
        seats: list[tuple[PodSpec, Seat]] = []
        for spec in (*observed.pods.values(), *moved[observed.node]):
            node = room.first(spec)
            if node is None:
                for placed, seat in seats:
                    room.leave(placed, seat)
                room.open(observed.node)
                return False
            seats.append((spec, room.place(spec, node)))
        for spec, seat in seats:
            moved[seat.node].append(spec)
        return True


def _share(observed: ObservedMachine, resource: str) -> float:
    """The share of a node's resource that its pods request."""
    allocatable = observed.offering.allocatable.get(resource, 0)
    return sum(spec.requests.get(resource, 0) for spec in observed.pods.values()) / allocatable if allocatable else 0.0
