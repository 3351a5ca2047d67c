"""The chain of owners of a pod, as far as it is known."""

from collections.abc import Iterator, Mapping

from gpuscaler.model.pods import Owner
from gpuscaler.model.workloads import Workload

#: Maximum length of a chain of owners, which also ends cycles.
GENERATIONS = 8


def owner_chain(workloads: Mapping[str, Workload], namespace: str, owner: Owner) -> Iterator[Workload]:
    """Yield the ``owner`` of an object in ``namespace`` and its owners, nearest first, as long as they are among ``workloads``."""
    for _ in range(GENERATIONS):
        workload = workloads.get(f"{owner.kind}/{namespace}/{owner.name}")
        if workload is None or (owner.uid and workload.uid and owner.uid != workload.uid):
            return
        yield workload
        owner = workload.owner


def top_owner(workloads: Mapping[str, Workload], namespace: str, owner: Owner) -> Owner:
    """Return the topmost owner, which for pods of a Deployment is the Deployment; ``owner`` itself if it is unknown."""
    for workload in owner_chain(workloads, namespace, owner):
        owner = Owner(workload.kind, workload.name, workload.uid)
    return owner
