"""What steps look at again and again: a scale set's number, ETag and machines, and how they move."""

from collections.abc import Mapping
from typing import Any, Final

from tests.embedded.azure.contract.sides import Exchange, Side

VIEW: Final = {"$expand": "instanceView"}
NO_POWER: Final = "no power state"


async def numbers(side: Side, path: str) -> dict[str, Any]:
    """State, capacity and ETag of a scale set."""
    shown = await side.get(path)
    return {
        "state": shown.properties.get("provisioningState"),
        "capacity": (shown.fields.get("sku") or {}).get("capacity"),
        "etag": shown.fields.get("etag") or shown.headers.get("etag"),
    }


async def machines(side: Side, path: str, *, flexible: bool = False) -> list[dict[str, Any]]:
    """The machines of a scale set, as lists with instance views show them."""
    if flexible:
        found = await list_flexible(side, path)
    else:
        found = await side.get(f"{path}/virtualMachines", parameters=VIEW)
    return [item for item in found.values if isinstance(item, dict)]


async def list_flexible(side: Side, path: str) -> Exchange:
    """The machines of a Flexible scale set, as gpuscaler lists them."""
    wanted = {"$filter": f"'virtualMachineScaleSet/id' eq '{path}'", **VIEW}
    return await side.get(f"{side.group_path}/providers/Microsoft.Compute/virtualMachines", parameters=wanted)


def state_of(machine: Mapping[str, Any]) -> str:
    """Provisioning and power state of a machine, such as ``Creating, no power state``."""
    properties = machine.get("properties") or {}
    codes = [str(status.get("code")) for status in (properties.get("instanceView") or {}).get("statuses") or ()]
    power = next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), NO_POWER)
    return f"{properties.get('provisioningState')}, {power}"


def key_of(machine: Mapping[str, Any]) -> str:
    """The id with which a machine is deleted."""
    return str(machine.get("instanceId") or machine.get("name"))


class Watch:
    """Collects the states that the machines and the number of a scale set go through."""

    def __init__(self, side: Side, path: str, *, flexible: bool = False) -> None:
        self._side, self._path, self._flexible = side, path, flexible
        #: States of machines, and (state, capacity, machines listed), each in the order of its first appearance.
        self.states: dict[str, None] = {}
        self.course: list[str] = []

    async def look(self) -> None:
        shown = await numbers(self._side, self._path)
        listed = await machines(self._side, self._path, flexible=self._flexible)
        for machine in listed:
            self.states[state_of(machine)] = None
        now = f"{shown['state']}: capacity {shown['capacity']}, {len(listed)} listed"
        if self.course[-1:] != [now]:
            self.course.append(now)

    def shown(self) -> dict[str, Any]:
        return {"states of machines": sorted(self.states), "course": self.course}


def error_of(followed: Mapping[str, Any]) -> str:
    """How an operation ended: its status, and the code of its error."""
    last = (followed.get("azure-asyncoperation") or followed.get("location") or {}).get("last") or {}
    body = last.get("body")
    body = body if isinstance(body, dict) else {}
    code = (body.get("error") or {}).get("code", "")
    return f"{body.get('status', last.get('status'))} {code}".strip()


def code_of(answer: Exchange) -> str:
    """The HTTP status of an answer, and the code of its error."""
    error = answer.fields.get("error")
    code = (error if isinstance(error, dict) else answer.fields).get("code", "")
    return f"{answer.status} {code}".strip()


def moves(before: Mapping[str, Any], during: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """When a value changed: ``at once``, ``at the end``, both or ``never``."""
    when = [
        *(["at once"] if before[name] != during[name] else []),
        *(["at the end"] if during[name] != after[name] else []),
    ]
    return " and ".join(when) or "never"
