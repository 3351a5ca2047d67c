"""Soft taints that keep new pods off little-used machines, so that these machines become idle.

By default kube-scheduler scores the node with the most free capacity highest. A nearly empty machine therefore gets new pods again and
again, and is never idle for long enough to be removed. Two taints with the effect PreferNoSchedule reverse this without excluding any pod:
one on machines of which half or less is used, another one on machines that are not used at all. The TaintToleration plug-in weighs three
times as much as each score for resources, so a pod gets such a machine only if no other has room, and then at once. Cluster Autoscaler
marks unneeded nodes in the same way (``--max-bulk-soft-taint-count``).
"""

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from gpuscaler.lifecycle.actions import Discourage
from gpuscaler.model.accelerators import ACCELERATORS, GPU_MILLI
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import Array, Floats
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import CLOSING_TAINTS, LEAVING_TAINT
from gpuscaler.planning.capacity.pool_membership import members

SOFT = "PreferNoSchedule"
#: A machine gets the first taints of this tuple, as many as :func:`taints_due` returns.
LITTLE_USED, IDLE = SOFT_TAINTS = (Taint("gpuscaler.io/little-used", effect=SOFT), Taint("gpuscaler.io/idle", effect=SOFT))
_KEYS = tuple(taint.key for taint in SOFT_TAINTS)
#: One taint is due at or below each of these used shares of a machine. Finer steps save 1 % more on public traces, but change taints more
#: often.
LIMITS = (0.5, 0.0)
#: Resources that determine the use of a machine without devices.
ORDINARY = ("cpu", "memory")
#: All resources that determine the use of a machine.
MEASURED = (*ACCELERATORS, GPU_MILLI, *ORDINARY)


def shares_used(taken: Mapping[str, Array], whole: Mapping[str, Array]) -> Floats:
    """Return the used share of each machine, 0 to 1, shape (n,): of its devices, or of CPU or memory if it has no devices.

    ``taken`` and ``whole`` are used and total amounts by resource, shape (n,) each. The resource with the largest used share counts. Pods
    without devices do not count on a machine with devices, because they can run on other machines.
    """
    rows = len(next(iter(whole.values())))
    devices = [name for name in (*ACCELERATORS, GPU_MILLI) if name in whole]
    has_devices = np.zeros(rows, dtype=np.bool_)
    for name in devices:
        # Pods keep their devices even while the device plugin does not run.
        has_devices |= (whole[name] > 0) | (taken[name] > 0 if name in taken else np.False_)
    return np.where(has_devices, _largest_shares(taken, whole, devices, rows), _largest_shares(taken, whole, ORDINARY, rows))


def taints_due(shares: Floats, limits: Sequence[float] = LIMITS) -> Array:
    """Return how many of :data:`SOFT_TAINTS` each machine should have, by its share of use."""
    due: Array = (shares[:, None] <= np.array(limits)).sum(axis=1)
    return due


def update_soft_taints(cluster: Cluster, policy: Policy, unlisted: Set[str]) -> tuple[Discourage, ...]:
    """Return the changes of soft taints that are due on open machines of the pools, in the order of nodes.

    Closed machines and machines that are being removed get no new pods, and kept machines only pods that a plan places there: all of these
    are skipped. So are machines without measured resources, and ``unlisted`` nodes, which are not ours.
    """
    table = cluster.table
    if not len(table):
        return ()
    whole = {name: table.allocatable(name) for name in MEASURED}
    nothing = np.zeros(len(table), dtype=np.int64)
    shares = shares_used({name: cluster.requested.get(name, nothing) for name in MEASURED}, whole)
    due = taints_due(shares)
    codes, lists = table.taints
    # There are few distinct lists of taints, and most machines have the right ones: only the others are checked one by one.
    wrong = (np.array([_count_soft_taints(taints) for taints in lists], dtype=np.int64)[codes] != due) & (sum(whole.values(), nothing) > 0)
    wrong &= ~np.array([_is_shut(taints) for taints in lists], dtype=np.bool_)[codes]
    rows = [row for row in np.flatnonzero(wrong).tolist() if not table.nodes[row].deleted]
    pools = {name: member.pool for name, member in members({table.names[row]: table.nodes[row] for row in rows}, policy, unlisted).items()}
    return tuple(
        Discourage(name, _KEYS[: due[row]], f"{shares[row]:.0%} of it is used")
        for row in rows
        if (name := table.names[row]) in pools and not pools[name].keeps_closed
    )


def _count_soft_taints(taints: Iterable[Taint]) -> int:
    """Count the soft taints among ``taints``, as :func:`taints_due` does; -1 for a combination that is never due."""
    borne = {taint.key for taint in taints}.intersection(_KEYS)
    return len(borne) if borne == set(_KEYS[: len(borne)]) else -1


def _is_shut(taints: Iterable[Taint]) -> bool:
    return any(taint.key in (*CLOSING_TAINTS, LEAVING_TAINT) for taint in taints)


def _largest_shares(taken: Mapping[str, Array], whole: Mapping[str, Array], names: tuple[str, ...] | list[str], rows: int) -> Floats:
    """Return, for each machine, the largest used share of a resource among ``names``."""
    largest = np.zeros(rows)
    for name in names:
        if name in whole and name in taken:
            np.maximum(largest, np.minimum(taken[name] / np.maximum(whole[name], 1), 1.0), out=largest)
    return largest
