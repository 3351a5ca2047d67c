"""Where new pods had better not go: soft taints under which little-used machines fall idle.

kube-scheduler's default scores send a pod to the machine with most room. A machine that is nearly empty is therefore filled again and
again, and never idle for long enough to be given back. Two taints with the effect PreferNoSchedule turn that round without keeping anybody
from anywhere: one on machines that are used by half or less, another on those that nobody uses. TaintToleration counts them with three
times the weight of each score by resources, so a pod goes there only where nothing else would do, and then at once. Cluster Autoscaler
marks nodes that it does not need in the same way (``--max-bulk-soft-taint-count``).
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
#: A machine bears as many of these as :func:`taints_due` says, the first of them first.
LITTLE_USED, IDLE = SOFT_TAINTS = (Taint("gpuscaler.io/little-used", effect=SOFT), Taint("gpuscaler.io/idle", effect=SOFT))
_KEYS = tuple(taint.key for taint in SOFT_TAINTS)
#: One taint is due at or below each of these shares of use: half a machine or less is little. Finer steps save 1 % more on public traces
#: and change taints more often.
LIMITS = (0.5, 0.0)
#: What a machine is measured by that has no devices.
ORDINARY = ("cpu", "memory")
#: The names of resources that a machine is measured by.
MEASURED = (*ACCELERATORS, GPU_MILLI, *ORDINARY)


def shares_used(taken: Mapping[str, Array], whole: Mapping[str, Array]) -> Floats:
    """How much of each machine is used, 0 to 1, shape (n,): of its devices, or of CPU or memory where it has none.

    ``taken`` and ``whole`` are amounts by resource, shape (n,) each; resources that are in neither count as absent. Of several the one
    that is used most decides. Pods without devices on a machine with devices do not count: they can go elsewhere.
    """
    rows = len(next(iter(whole.values())))
    devices = [name for name in (*ACCELERATORS, GPU_MILLI) if name in whole]
    has_devices = np.zeros(rows, dtype=np.bool_)
    for name in devices:
        # Where a plugin has gone, pods keep the devices that they have.
        has_devices |= (whole[name] > 0) | (taken[name] > 0 if name in taken else np.False_)
    return np.where(has_devices, _most(taken, whole, devices, rows), _most(taken, whole, ORDINARY, rows))


def taints_due(shares: Floats, limits: Sequence[float] = LIMITS) -> Array:
    """How many of :data:`SOFT_TAINTS` each machine is to bear, by the share of it that is used."""
    due: Array = (shares[:, None] <= np.array(limits)).sum(axis=1)
    return due


def discourage(cluster: Cluster, policy: Policy, unlisted: Set[str] = frozenset()) -> tuple[Discourage, ...]:
    """What has to change for every open machine of the pools to bear the soft taints that are due, in the order of nodes.

    Machines that arrive or leave take no new pods, those kept for large pods only whom a plan places there: they are left as they are. So
    are machines that offer none of what they are measured by, and nodes that are ``unlisted``, which are not ours.
    """
    table = cluster.table
    if not len(table):
        return ()
    whole = {name: table.allocatable(name) for name in MEASURED}
    nothing = np.zeros(len(table), dtype=np.int64)
    shares = shares_used({name: cluster.requested.get(name, nothing) for name in MEASURED}, whole)
    due = taints_due(shares)
    codes, lists = table.taints
    # Few lists of taints are different, and most machines bear what they should: only the others are looked at one by one.
    wrong = (np.array([_borne(taints) for taints in lists], dtype=np.int64)[codes] != due) & (sum(whole.values(), nothing) > 0)
    wrong &= ~np.array([_is_shut(taints) for taints in lists], dtype=np.bool_)[codes]
    rows = [row for row in np.flatnonzero(wrong).tolist() if not table.nodes[row].deleted]
    pools = {name: member.pool for name, member in members({table.names[row]: table.nodes[row] for row in rows}, policy, unlisted).items()}
    return tuple(
        Discourage(name, _KEYS[: due[row]], f"{shares[row]:.0%} of it is used")
        for row in rows
        if (name := table.names[row]) in pools and not pools[name].min_gpus_per_pod
    )


def _borne(taints: Iterable[Taint]) -> int:
    """How many of the soft taints are among ``taints``, as :func:`taints_due` counts; -1 for a set of them that is never due."""
    borne = {taint.key for taint in taints}.intersection(_KEYS)
    return len(borne) if borne == set(_KEYS[: len(borne)]) else -1


def _is_shut(taints: Iterable[Taint]) -> bool:
    return any(taint.key in (*CLOSING_TAINTS, LEAVING_TAINT) for taint in taints)


def _most(taken: Mapping[str, Array], whole: Mapping[str, Array], names: tuple[str, ...] | list[str], rows: int) -> Floats:
    """Of each machine the largest share of a resource among ``names`` that is taken."""
    most = np.zeros(rows)
    for name in names:
        if name in whole and name in taken:
            np.maximum(most, np.minimum(taken[name] / np.maximum(whole[name], 1), 1.0), out=most)
    return most
