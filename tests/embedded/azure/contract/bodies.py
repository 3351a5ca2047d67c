"""What the script writes: scale sets as small as Azure takes them, and the resource group and network around them."""

from typing import Any, Final

from tests.embedded.azure.contract.sides import NETWORK, RESOURCES, TAG, Exchange, Side, StoppedError

_IMAGE: Final = {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server", "version": "latest"}
#: The lowest price limit that Azure takes, in dollars per hour, and the one that stands for the on-demand price.
LOWEST, ANY_PRICE = 0.00001, -1
#: Ends with a number that says so, without needing a network.
_FAILS: Final = {
    "name": "vmssCSE",
    "properties": {
        "publisher": "Microsoft.Azure.Extensions",
        "type": "CustomScript",
        "typeHandlerVersion": "2.1",
        "autoUpgradeMinorVersion": True,
        "settings": {"commandToExecute": "exit 50"},
    },
}


def scale_set_body(
    side: Side, *, flexible: bool = False, maximum: float | None = ANY_PRICE, fails: bool = False, size: str = ""
) -> dict[str, Any]:
    """A scale set without machines: spot up to ``maximum`` dollars per hour, or on-demand if that is None."""
    profile: dict[str, Any] = {
        # A name of 15 characters at most, and a password that is not kept: the machines have no public address.
        "osProfile": {"computerNamePrefix": "contract", "adminUsername": "azureuser", "adminPassword": side.password},
        "storageProfile": {
            "imageReference": _IMAGE,
            "osDisk": {"createOption": "FromImage", "caching": "ReadOnly", "managedDisk": {"storageAccountType": "StandardSSD_LRS"}},
        },
        "networkProfile": {"networkInterfaceConfigurations": [_interface(side.subnet)]},
    }
    properties: dict[str, Any] = {"singlePlacementGroup": False, "virtualMachineProfile": profile}
    if flexible:
        profile["networkProfile"]["networkApiVersion"] = "2022-11-01"
        properties |= {"orchestrationMode": "Flexible", "platformFaultDomainCount": 1}
    else:
        properties |= {"orchestrationMode": "Uniform", "overprovision": False, "upgradePolicy": {"mode": "Manual"}}
    if maximum is not None:
        profile |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": maximum}}
    if fails:
        profile["extensionProfile"] = {"extensions": [_FAILS]}
    return {**capacity_body(side, 0, size=size), "tags": {TAG: side.run, "kept": "yes"}, "properties": properties}


def capacity_body(side: Side, capacity: int, *, size: str = "") -> dict[str, Any]:
    """A new capacity, as gpuscaler writes it."""
    return {"location": side.location, "sku": {"name": size or side.size, "tier": "Standard", "capacity": capacity}}


def _interface(subnet: str) -> dict[str, Any]:
    address = {"name": "address", "properties": {"subnet": {"id": subnet}}}
    return {"name": "interface", "properties": {"primary": True, "ipConfigurations": [address]}}


async def prepare(side: Side) -> None:
    """Create the resource group and the network, unless they are given. Raises :class:`StoppedError` if that is refused."""
    if side.own_group:
        side.later(f"resource group {side.group}", side.group_path, version=RESOURCES, inside=False)
        body = {"location": side.location, "tags": {TAG: side.run}}
        _check(await side.call("PUT", side.group_path, body, version=RESOURCES), side.group)
    else:
        _check(await side.get(side.group_path, version=RESOURCES), side.group)
    if not side.subnet:
        network = side.path("Microsoft.Network/virtualNetworks", side.run)
        side.later(f"network {side.run}", network, version=NETWORK)
        subnet = {"name": "machines", "properties": {"addressPrefix": "10.90.0.0/24"}}
        space = {"addressSpace": {"addressPrefixes": ["10.90.0.0/24"]}, "subnets": [subnet]}
        body = {"location": side.location, "tags": {TAG: side.run}, "properties": space}
        made = await side.call("PUT", network, body, version=NETWORK)
        _check(made, side.run)
        await side.follow(made, 300.0)
        side.subnet = f"{network}/subnets/machines"


def _check(answer: Exchange, name: str) -> None:
    if answer.status not in (200, 201):
        error = answer.fields.get("error") or {}
        raise StoppedError(f"{name}: saw {answer.status} {error.get('code', '')}, expected it to be usable: {error.get('message', '')}")
