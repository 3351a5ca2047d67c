"""The results of an eviction: the answers of the eviction subresource that a drain acts on."""

from dataclasses import dataclass
from typing import TypeAlias

from gpuscaler.kube.errors import ApiError, Conflict, NotFound, TooManyRequests

#: The cause that marks a refusal by a PodDisruptionBudget (policy/v1 DisruptionBudgetCause).
_BUDGET = "DisruptionBudget"


@dataclass(frozen=True, slots=True)
class Evicted:
    """The pod is being deleted (in a dry run: it could be)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A disruption budget does not allow it now: ``why`` in the server's words, ``retry_after`` in seconds if the server gives it."""

    why: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class AlreadyDeleted:
    """The pod no longer exists, or only another one with the same name does."""


@dataclass(frozen=True, slots=True)
class MultipleBudgets:
    """More than one budget selects the pod; the API never evicts such a pod, and waiting does not help."""

    why: str


Eviction: TypeAlias = Evicted | Refused | AlreadyDeleted | MultipleBudgets


def eviction_result(error: ApiError, uid: str) -> Eviction | None:
    """The meaning of an error of the eviction subresource, None if it does not concern the pod: overload, permissions, a failure.

    The cases are those of kube-apiserver's ``pkg/registry/core/pod/storage/eviction.go`` (1.33). ``uid`` is the precondition that was sent.
    """
    if isinstance(error, TooManyRequests):
        # Priority and fairness also answers 429. It names no budget, and does not concern the pod.
        causes = [cause.message for cause in error.causes if cause.reason == _BUDGET]
        return Refused("; ".join(filter(None, causes)) or error.message, error.retry_after) if causes else None
    if isinstance(error, NotFound):
        # A deleted namespace gets the same answer; a server without the resource gives no name.
        return AlreadyDeleted() if error.name else None
    if isinstance(error, Conflict):
        return AlreadyDeleted() if uid and "UID" in error.message and "precondition" in error.message.lower() else None
    if error.status == 500 and "more than one PodDisruptionBudget" in error.message:
        return MultipleBudgets(error.message)
    if error.status == 403 and error.kind.startswith("poddisruptionbudget"):
        return Refused(error.message, error.retry_after)
    if error.reason == "Timeout" and "PodDisruptionBudget" in error.message:
        return Refused(error.message, error.retry_after)
    return None
