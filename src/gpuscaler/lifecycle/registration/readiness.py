"""When a new node is ready to open: the resources it has to show, and the taints of a node that is not finished."""

from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.model.accelerators import ACCELERATORS, are_divided, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import CLOSING_TAINTS

#: Taints of any node that is not finished yet; those that end with a dot or a slash match as prefixes.
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
    """What a node still lacks, as text; ``resource`` is its name if it is a resource."""

    words: str
    resource: str = ""


#: The text for a machine whose time was over in the pass that found it ready.
NOTHING = "it became ready too late"


def describe_lack(node: Node, offering: Offering | None, pool: Pool | None) -> str | None:
    """Return what ``node`` has yet to show before it opens, as text; None if it is ready except for our own taint."""
    what = find_lack(node, offering, pool)
    return what.words if what is not None else None


def find_lack(node: Node, offering: Offering | None, pool: Pool | None, requested: frozenset[str] = frozenset()) -> Lack | None:
    """Return what ``node`` still lacks; None if it is ready except for our own taint.

    It has to show the accelerators that its offering promises, and the resources in ``requested``, which the pods it was bought for
    request. Pods that request nothing else need not wait for a network adapter's plug-in. Any amount of a resource will do: a smaller
    amount than promised is learned for the next machines, and not waited for.
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
    """Whether ``node`` lacks only whole devices and shows slices or shares of them: it will not show them whole."""
    return lack.resource in ACCELERATORS and offering is not None and are_divided(node.allocatable, offering.allocatable)


def awaited_resources(offering: Offering, requested: frozenset[str]) -> tuple[str, ...]:
    """Return the resources that a new node of ``offering`` must show: whole devices, or parts if it offers none, and ``requested``."""
    promised = [name for name, amount in offering.allocatable.items() if amount]
    whole = [name for name in promised if name in ACCELERATORS]
    devices = frozenset(whole or [name for name in promised if is_device(name)])
    return tuple(name for name in promised if name in devices or name in requested)


def requested_resources(pods: Iterable[str], cluster: Cluster) -> frozenset[str]:
    """Return the resources that any of ``pods`` requests."""
    asking = (cluster.pods.get(key) for key in pods)
    return frozenset(name for pod in asking if pod is not None for name, amount in pod.spec.requests.items() if amount)


def is_startup(taint: Taint, configured: Iterable[Taint]) -> bool:
    """Whether ``taint`` means that its node is not finished; our own taints do not."""
    if taint.key in CLOSING_TAINTS or taint.effect not in HARD_EFFECTS:
        return False
    is_common = any(taint.key == name or (name.endswith("/") and taint.key.startswith(name)) for name in STARTUP_TAINTS)
    return is_common or any((taint.key, taint.effect) == (startup.key, startup.effect) for startup in configured)
