"""What controls a pod, what controls that, and so on, as far as it is known."""

from collections.abc import Iterator, Mapping

from gpuscaler.model.pods import Owner
from gpuscaler.model.workloads import Workload

#: Owners of owners are followed this far: a circle of them ends, too.
GENERATIONS = 8


def line_of(workloads: Mapping[str, Workload], namespace: str, owner: Owner) -> Iterator[Workload]:
    """The ``owner`` of something in ``namespace`` and its own owners, the nearest first; ends at one that is not among ``workloads``."""
    for _ in range(GENERATIONS):
        workload = workloads.get(f"{owner.kind}/{namespace}/{owner.name}")
        if workload is None or (owner.uid and workload.uid and owner.uid != workload.uid):
            return
        yield workload
        owner = workload.owner


def top_of(workloads: Mapping[str, Workload], namespace: str, owner: Owner) -> Owner:
    """The topmost of them, which for the pods of a Deployment is the Deployment; ``owner`` itself where nothing is known of it."""
    for workload in line_of(workloads, namespace, owner):
        owner = Owner(workload.kind, workload.name, workload.uid)
    return owner
