"""Resource ids of Azure: building and taking apart paths of scale sets, agent pools and their machines."""

import re
from typing import Final

from msgspec import Struct

_RESOURCE: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/(?P<kind>[^/]+/[^/]+)/(?P<name>[^/]+)"
    r"(?P<rest>(?:/[^/]+/[^/]+)*)",
    re.IGNORECASE,
)


class ResourceId(Struct, frozen=True, gc=False):
    """The parts of a resource id. ``kind`` is in lower case; ``rest`` is what follows the name."""

    subscription: str
    group: str
    kind: str
    name: str
    rest: str = ""


def resource_id(text: str) -> ResourceId | None:
    """The parts of ``text``, None if it is not a resource id in a resource group."""
    match = _RESOURCE.fullmatch(text)
    if match is None:
        return None
    return ResourceId(match["subscription"], match["group"], match["kind"].lower(), match["name"], match["rest"])


def group_path(subscription: str, group: str) -> str:
    """The path of a resource group."""
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def scale_set_path(subscription: str, group: str, name: str = "") -> str:
    """The path of a scale set, or of the list of a resource group's scale sets."""
    path = f"{group_path(subscription, group)}/providers/Microsoft.Compute/virtualMachineScaleSets"
    return f"{path}/{name}" if name else path


def cluster_path(subscription: str, group: str, cluster: str) -> str:
    """The path of an AKS cluster."""
    return f"{group_path(subscription, group)}/providers/Microsoft.ContainerService/managedClusters/{cluster}"


def agent_pool_path(subscription: str, group: str, cluster: str, pool: str = "") -> str:
    """The path of an agent pool, or of the list of a cluster's agent pools."""
    path = f"{cluster_path(subscription, group, cluster)}/agentPools"
    return f"{path}/{pool}" if pool else path
