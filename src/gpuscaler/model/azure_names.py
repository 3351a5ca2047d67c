"""Names of Azure's machines: provider ids, resource ids, and the names that nodes and scheduled events use for the same machine. Pure.

Azure spells one resource id in different cases in lists, in answers and on nodes, so ids are compared by :func:`fold_id`, and shown as the
cluster spells them.
"""

import re
from typing import Final

from msgspec import Struct

#: Prefix of ``spec.providerID`` of Azure's nodes; a resource id follows.
SCHEME: Final = "azure://"
_SET_MACHINE: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute"
    r"/virtualMachineScaleSets/(?P<scale_set>[^/]+)/virtualMachines/(?P<name>[^/]+)",
    re.IGNORECASE,
)
_MACHINE: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute/virtualMachines/(?P<name>[^/]+)",
    re.IGNORECASE,
)
#: A node of a Uniform scale set: the set's name and six digits in base 36, lower case (AKS issue 3293).
_NODE: Final = re.compile(r"(?P<scale_set>.+?vmss)(?P<number>[0-9a-z]{6})")
#: A machine of a Uniform scale set, as lists and scheduled events name it.
_LISTED: Final = re.compile(r"(?P<scale_set>.+)_(?P<number>[0-9]{1,10})")
#: aks-POOL-HASH-…, k8s-POOL-HASH-… of acs-engine and aks-engine: three letters or digits, the pool, eight hexadecimal digits.
_POOL_OF: Final = re.compile(r"(?:aks|k8s)-(?P<pool>[a-z0-9]+)-[0-9a-f]{8}-{1,2}[0-9a-z-]+", re.IGNORECASE)


class MachineName(Struct, frozen=True, gc=False):
    """A machine: ``name`` is the instance id in ``scale_set``, or the name of a virtual machine if ``scale_set`` is empty."""

    subscription: str
    group: str
    scale_set: str
    name: str


def fold_id(text: str) -> str:
    """``text`` in a form that is equal for all spellings of a resource id."""
    return text.lower()


def machine_name(provider_id: str) -> MachineName | None:
    """The machine with the provider id or resource id ``provider_id``; None if it is not one of Azure."""
    path = provider_id.removeprefix(SCHEME)
    if match := _SET_MACHINE.fullmatch(path):
        return MachineName(match["subscription"], match["group"], match["scale_set"], match["name"])
    if match := _MACHINE.fullmatch(path):
        return MachineName(match["subscription"], match["group"], "", match["name"])
    return None


def event_resource(node: str) -> str:
    """The name under which scheduled events list the machine of node ``node``: ``…vmss00000a`` is ``…vmss_10``, other names are equal."""
    match = _NODE.fullmatch(node)
    return f"{match['scale_set']}_{int(match['number'], 36)}" if match else node


def node_name(resource: str) -> str:
    """The node name of the machine that scheduled events and lists call ``resource``; the reverse of :func:`event_resource`."""
    match = _LISTED.fullmatch(resource)
    if match is None or not match["scale_set"].endswith("vmss"):
        return resource
    return f"{match['scale_set']}{base_36(int(match['number'])).rjust(6, '0')}"


def base_36(number: int) -> str:
    """``number``, at least 0, in base 36 with lower-case letters."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = digits[number % 36]
    while number := number // 36:
        text = digits[number % 36] + text
    return text


def pool_in_name(name: str) -> str:
    """The agent pool in the name of a node or scale set of AKS, acs-engine or aks-engine; empty if there is none."""
    match = _POOL_OF.fullmatch(name)
    return match["pool"] if match else ""


def canonical_provider_id(provider_id: str) -> str:
    """``provider_id`` of a node or machine in the form in which machines of Azure are compared; those of other clouds are unchanged."""
    return fold_id(provider_id) if provider_id.startswith(SCHEME) else provider_id
