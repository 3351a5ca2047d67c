"""Which nodes with pods Cluster Autoscaler could do without: little used, and their pods fit on the other nodes.

Source: kubernetes/autoscaler 1.35, ``cluster-autoscaler/core/scaledown`` (eligibility/eligibility.go, planner/planner.go),
``simulator/utilization/info.go`` and ``simulator/cluster.go`` (``SimulateNodeRemoval``). Nodes are tried one after the other, those first
that were unneeded before; the pods of one that can go take their room on the others, and no pods are moved to it any more. One that
cannot go is not tried again for a while.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from gpuscaler.model.pods import PodSpec
from gpuscaler.simulation.world.autoscaler import Seen
from gpuscaler.simulation.world.scheduler import Scheduler, Seat

NEVER = math.inf


class Draining:
    """Remembers which nodes could not be drained, and until when they are not tried again.

    A node is little used below ``threshold``, or ``gpu_threshold`` where it has GPUs: shares of what it has that pods request.
    """

    def __init__(self, *, threshold: float, gpu_threshold: float, recheck: float) -> None:
        self._threshold = threshold
        self._gpu_threshold = gpu_threshold
        self._recheck = recheck
        self._tried: dict[str, float] = {}

    def find(self, nodes: Iterable[Seen], room: Scheduler, *, most: int, now: float, news: float) -> tuple[list[Seen], float]:
        """The nodes that could go together, ``most`` at most, and when one is to be tried again that is not tried now.

        What was tried after the last ``news`` (when something happened) would end the same way again.

        ``nodes`` are those whose pods may be moved, in the order of trial; ``room`` has the nodes that may take pods, and is used up.
        """
        self._tried = {name: until for name, until in self._tried.items() if until > now}
        found: list[Seen] = []
        again = NEVER
        moved: dict[str, list[PodSpec]] = defaultdict(list)
        for seen in filter(self._little_used, nodes):
            if len(found) >= most:
                break
            until = self._tried.get(seen.node)
            if until is not None:
                again = min(again, until) if until - self._recheck <= news else again
            elif self._moves(seen, room, moved):
                found.append(seen)
            else:
                self._tried[seen.node] = now + self._recheck
        return found, again

    def _little_used(self, seen: Seen) -> bool:
        there = seen.offering.allocatable
        devices = [name for name in there if "/" in name]
        used = max(_share(seen, name) for name in devices or ("cpu", "memory"))
        return used < (self._gpu_threshold if devices else self._threshold)

    def _moves(self, seen: Seen, room: Scheduler, moved: dict[str, list[PodSpec]]) -> bool:
        """Move the pods of a node, and those that were to come to it, to others; where one finds no place all stay."""
        room.close(seen.node)
        seats: list[tuple[PodSpec, Seat]] = []
        for spec in (*seen.pods.values(), *moved[seen.node]):
            node = room.first(spec)
            if node is None:
                for taken, seat in seats:
                    room.leave(taken, seat)
                room.open(seen.node)
                return False
            seats.append((spec, room.place(spec, node)))
        for spec, seat in seats:
            moved[seat.node].append(spec)
        return True


def _share(seen: Seen, resource: str) -> float:
    """Of what a node has of a resource, how much its pods request."""
    there = seen.offering.allocatable.get(resource, 0)
    return sum(spec.requests.get(resource, 0) for spec in seen.pods.values()) / there if there else 0.0
