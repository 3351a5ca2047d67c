"""Pods on a node that is being removed."""

from typing import Any

from tests.planning.building import DAEMON, NOW, node, offering, pod, spec

from gpuscaler.lifecycle.termination.eviction import EvictionRound, evict
from gpuscaler.lifecycle.termination.node_pods import residents
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.taints import Toleration
from gpuscaler.planning.state.ledger.entries import DRAINING, Eviction, Removal

KIND = offering()
CRITICAL = 2_000_001_000
TOLERATES = (Toleration("gpuscaler.io/leaving", "Exists"),)


def resident(
    name: str = "p",
    *,
    grace_seconds: int = 30,
    priority: int = 0,
    tolerations: tuple[Toleration, ...] = (),
    daemon: bool = False,
    **more: Any,
) -> Pod:
    of = spec(gpus=1, grace_seconds=grace_seconds, priority=priority, tolerations=tolerations)
    own: dict[str, Any] = {"owner": DAEMON, **more} if daemon else more
    return pod(name, of, on="n", uid=f"uid-{name}", **own)


def draining(*evictions: Eviction, **more: Any) -> Removal:
    fields: dict[str, Any] = {"reason": "idle", "at": NOW - 20.0, "since": NOW - 9.0, "step": DRAINING, **more}
    return Removal("n", "i-1", KIND.key, evictions=evictions, **fields)


def forced(left: float, *evictions: Eviction, **more: Any) -> Removal:
    """A machine that ends in ``left`` seconds."""
    return draining(*evictions, forced=True, ends=NOW + left, **more)


def tried_eviction(name: str = "p", *, again: float = 0.0, **more: Any) -> Eviction:
    """An eviction that is tried again in ``again`` seconds."""
    return Eviction(f"default/{name}", f"uid-{name}", again=NOW + again, **{"tries": 1, **more})


def next_evictions(removal: Removal, *pods: Pod, now: float = NOW, awaited: frozenset[str] = frozenset()) -> EvictionRound:
    cluster = Cluster.of((node("n", KIND), *pods))
    return evict(removal, residents(cluster, cluster.nodes["n"], now), now, awaited)
