"""What an eviction comes to: the answers of the eviction subresource that a drain acts on."""

from dataclasses import dataclass
from typing import TypeAlias

from gpuscaler.kube.errors import ApiError, Conflict, NotFound, TooManyRequests

#: The cause that marks a refusal by a PodDisruptionBudget (policy/v1 DisruptionBudgetCause).
_BUDGET = "DisruptionBudget"


@dataclass(frozen=True, slots=True)
class Evicted:
    """The pod is being deleted (on a dry run: it could be)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A disruption budget does not allow it now: ``why`` in the server's words, ``retry_after`` in seconds where it says when."""

    why: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class GoneAlready:
    """There is no such pod any more, or only another one of the same name."""


@dataclass(frozen=True, slots=True)
class Overlapping:
    """More than one budget selects the pod; the API never evicts such a pod, and waiting changes nothing."""

    why: str


Eviction: TypeAlias = Evicted | Refused | GoneAlready | Overlapping


def verdict(error: ApiError, uid: str) -> Eviction | None:
    """What an error of the eviction subresource means, None where it says nothing about the pod: overload, permissions, a fault.

    The cases are those of kube-apiserver's ``pkg/registry/core/pod/storage/eviction.go`` (1.33). ``uid`` is the precondition that was sent.
    """
    if isinstance(error, TooManyRequests):
        # Priority and fairness also answers 429. It names no budget, and it says nothing about the pod.
        causes = [cause.message for cause in error.causes if cause.reason == _BUDGET]
        return Refused("; ".join(filter(None, causes)) or error.message, error.retry_after) if causes else None
    if isinstance(error, NotFound):
        # A namespace that is gone answers the same way; a server without the resource says no name.
        return GoneAlready() if error.name else None
    if isinstance(error, Conflict):
        return GoneAlready() if uid and "UID" in error.message and "precondition" in error.message.lower() else None
    if error.status == 500 and "more than one PodDisruptionBudget" in error.message:
        return Overlapping(error.message)
    if error.status == 403 and error.kind.startswith("poddisruptionbudget"):
        return Refused(error.message, error.retry_after)
    if error.reason == "Timeout" and "PodDisruptionBudget" in error.message:
        return Refused(error.message, error.retry_after)
    return None
