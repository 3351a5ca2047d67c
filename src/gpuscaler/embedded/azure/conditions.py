"""Conditions of the endpoint's Azure: delays and behaviour that Azure does not publish or that differ between accounts."""

from typing import Literal

from msgspec import Struct

from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delays, Faults


class Conditions(Struct, frozen=True, gc=False):
    """Values are in seconds unless noted otherwise. Unpublished figures are assumptions.

    Scale sets: ``allocation`` passes between an accepted write and the attempt to place the machines, when failures are known,
    ``provisioning`` from there to Succeeded, ``deleting`` and ``forced`` from a deletion, without or with force, to its end. ``failed``
    says whether machines that failed to be placed ``stay`` in lists until they are deleted, or ``vanish`` and leave only the capacity.
    With ``fails_fast`` an operation ends at its first failure, else when all its machines are done. ``nesting`` is where an operation's
    error has its cause: ``plain`` at the top, else under an outer error in ``details``, or in its ``text``, there also as ``json``.
    ``capacity_falls`` at the ``start`` of a deletion, or at its ``end``. With ``etag_of_deletions`` deletions and evictions change the
    ETag as writes do. With ``preempts`` a later write ends running deletions as OperationPreempted. ``quota`` is where too small quotas
    are reported: in the ``answer`` (409) or in the ``operation``.

    AKS: ``aks_sync`` passes until an agent pool shows a count that its scale set got from others, ``aks_end`` between the end of a scale
    set's operation and the end of AKS's own. ``lockdown`` is the code of the refusal to write in a locked node resource group.
    With ``auto_drain`` AKS cordons and drains nodes before announced evictions, redeployments and reboots, if they are nodes of a cluster.

    All: ``read_lag`` is the age of what lists of machines show, ``retry_after`` the header of accepted writes and unfinished operations
    (None: no header), ``page`` the items in a page of a list, ``spelling`` how lists spell ids (see
    :mod:`~gpuscaler.embedded.azure.wire.spellings`), ``operations_kept`` how long an ended operation can be read. ``follow`` are the
    headers of accepted writes. With ``throttling`` calls are counted. ``authorization`` accepts ``any`` token and none, or only ``issued``
    ones. ``machines`` and ``boot`` are about the machines themselves: failures, evictions, boot times. ``notice`` is the time between the
    notice of an eviction and the eviction.
    """

    allocation: float = 5.0
    provisioning: float = 40.0
    deleting: float = 30.0
    forced: float = 5.0
    failed: Literal["stay", "vanish"] = "stay"
    fails_fast: bool = False
    nesting: Literal["plain", "details", "text", "json"] = "plain"
    capacity_falls: Literal["start", "end"] = "start"
    etag_of_deletions: bool = True
    preempts: bool = False
    quota: Literal["answer", "operation"] = "answer"
    aks_sync: float = 10.0
    aks_end: float = 5.0
    lockdown: Literal["DenyAssignmentAuthorizationFailed", "AuthorizationFailed", "ScopeLocked"] = "DenyAssignmentAuthorizationFailed"
    auto_drain: bool = True
    read_lag: float = 0.0
    retry_after: int | None = None
    page: int = 100
    spelling: Literal["kept", "group", "lower", "random"] = "group"
    operations_kept: float = 86_400.0
    follow: Literal["both", "operation", "location"] = "both"
    throttling: bool = True
    authorization: Literal["any", "issued"] = "any"
    notice: float = 30.0
    machines: Faults = NO_FAULTS
    boot: Delays = Delays()
