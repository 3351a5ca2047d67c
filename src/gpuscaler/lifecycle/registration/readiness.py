"""When a new node is ready to open: the resources that it has to show, and the startup taints that it must not have."""

from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.model.accelerators import ACCELERATORS, are_divided, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import CLOSING_TAINTS

#: Startup taints of all clusters; a key that ends with a slash matches as a prefix.
STARTUP_TAINTS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/network-unavailable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cilium.io/agent-not-ready",
    "ebs.csi.aws.com/agent-not-ready",
    "efs.csi.aws.com/agent-not-ready",
    "disk.csi.azure.com/agent-not-ready",
    "karpenter.sh/unregistered",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)


class Lack(Struct, frozen=True, gc=False):
    """What a node still lacks, as text; ``resource`` is the name of the missing resource, or empty."""

    words: str
    resource: str = ""


#: The text for a machine that became ready in the pass in which it timed out.
NOTHING = "it became ready too late"


def find_lack(node: Node, offering: Offering | None, pool: Pool | None, requested: frozenset[str] = frozenset()) -> Lack | None:
    """Return what ``node`` still lacks before it can open; None if only our own taint keeps pods off.

    It has to show the accelerators that its offering promises, and ``requested``, the resources that its promised pods request. Other
    resources are not awaited: if no pod requests a network adapter, its plug-in need not run yet. Any amount of a resource is enough. If it
    is smaller than promised, this is learned for the next machines.
    """
    if not node.ready:
        return Lack("it is not Ready")
    configured = pool.startup_taints if pool is not None else ()
    for taint in node.taints:
        if is_startup(taint, configured):
            return Lack(f"it has the taint {taint}")
    for name in awaited_resources(offering, requested) if offering is not None else ():
        if not node.allocatable.get(name):
            return Lack(f"it shows no {name}: is its device plugin running?", name)
    return None


def is_divided(lack: Lack, node: Node, offering: Offering | None) -> bool:
    """Whether ``node`` lacks whole devices because it shows slices or shares of them: then it will never show whole ones."""
    return lack.resource in ACCELERATORS and offering is not None and are_divided(node.allocatable, offering.allocatable)


def awaited_resources(offering: Offering, requested: frozenset[str]) -> tuple[str, ...]:
    """Return the resources that a new node of ``offering`` must show: its devices, whole ones if it has any, and ``requested``."""
    promised = [name for name, amount in offering.allocatable.items() if amount]
    whole = [name for name in promised if name in ACCELERATORS]
    devices = frozenset(whole or [name for name in promised if is_device(name)])
    return tuple(name for name in promised if name in devices or name in requested)


def requested_resources(pods: Iterable[str], cluster: Cluster) -> frozenset[str]:
    """Return the resources that any of ``pods`` requests."""
    asking = (cluster.pods.get(key) for key in pods)
    return frozenset(name for pod in asking if pod is not None for name, amount in pod.spec.requests.items() if amount)


def is_startup(taint: Taint, configured: Iterable[Taint]) -> bool:
    """Whether ``taint`` is a startup taint. Our own taints are none."""
    if taint.key in CLOSING_TAINTS or taint.effect not in HARD_EFFECTS:
        return False
    is_common = any(taint.key == name or (name.endswith("/") and taint.key.startswith(name)) for name in STARTUP_TAINTS)
    return is_common or any((taint.key, taint.effect) == (startup.key, startup.effect) for startup in configured)
