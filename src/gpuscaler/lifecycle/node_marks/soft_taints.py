"""Soft taints that steer new pods away from little-used machines, so that those become idle.

By default kube-scheduler scores the machine with the most free capacity highest. A nearly empty machine is therefore filled again and
again, and is never idle for long enough to be removed. Two taints with the effect PreferNoSchedule reverse that without excluding any pod:
one on machines that are used by half or less, another on machines that nothing uses. TaintToleration counts them with three times the
weight of each score by resources, so a pod goes there only where nothing else would do, and then at once. Cluster Autoscaler marks nodes
that it does not need in the same way (``--max-bulk-soft-taint-count``).
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
#: A machine has as many of these as :func:`taints_due` returns, starting with the first.
LITTLE_USED, IDLE = SOFT_TAINTS = (Taint("gpuscaler.io/little-used", effect=SOFT), Taint("gpuscaler.io/idle", effect=SOFT))
_KEYS = tuple(taint.key for taint in SOFT_TAINTS)
#: One taint is due at or below each of these shares of use: half a machine or less is little. Finer steps save 1 % more on public traces,
#: but change taints more often.
LIMITS = (0.5, 0.0)
#: Resources that determine the use of a machine without devices.
ORDINARY = ("cpu", "memory")
#: All resources that determine the use of a machine.
MEASURED = (*ACCELERATORS, GPU_MILLI, *ORDINARY)


def shares_used(taken: Mapping[str, Array], whole: Mapping[str, Array]) -> Floats:
    """Return how much of each machine is used, 0 to 1, shape (n,): of its devices, or of CPU or memory if it has none.

    ``taken`` and ``whole`` are amounts by resource, shape (n,) each; resources that are in neither count as absent. The resource with the
    highest use decides. Pods without devices on a machine with devices do not count: they can go elsewhere.
    """
    rows = len(next(iter(whole.values())))
    devices = [name for name in (*ACCELERATORS, GPU_MILLI) if name in whole]
    has_devices = np.zeros(rows, dtype=np.bool_)
    for name in devices:
        # Pods keep their devices when the plugin is gone.
        has_devices |= (whole[name] > 0) | (taken[name] > 0 if name in taken else np.False_)
    return np.where(has_devices, _largest_shares(taken, whole, devices, rows), _largest_shares(taken, whole, ORDINARY, rows))


def taints_due(shares: Floats, limits: Sequence[float] = LIMITS) -> Array:
    """Return how many of :data:`SOFT_TAINTS` each machine should have, by its share of use."""
    due: Array = (shares[:, None] <= np.array(limits)).sum(axis=1)
    return due


def update_soft_taints(cluster: Cluster, policy: Policy, unlisted: Set[str] = frozenset()) -> tuple[Discourage, ...]:
    """Return the changes that give every open machine of the pools its due soft taints, in the order of nodes.

    Machines that arrive or leave take no new pods, and kept machines take only pods that a plan places there: both are skipped. So are
    machines that offer none of the measured resources, and ``unlisted`` nodes, which are not ours.
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
        if (name := table.names[row]) in pools and not pools[name].min_gpus_per_pod
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
