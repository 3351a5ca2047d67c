"""Steps that start machines, and so cost money: growth, deletions, evictions, extensions that fail."""

from typing import Any, Final

from tests.embedded.azure.contract.bodies import capacity_body
from tests.embedded.azure.contract.failing import GROWTH_SECONDS
from tests.embedded.azure.contract.observing import Watch, code_of, error_of, key_of, machines, moves, numbers, state_of
from tests.embedded.azure.contract.sides import Exchange, Side, Skipped
from tests.embedded.azure.contract.steps import OPERATION_SECONDS, Step, create

#: The most machines at the same time, and the hours after which the script ends them, whatever is still to be seen.
MOST_MACHINES, MOST_HOURS = 3, 2.0
#: Azure simulates evictions "within 30 minutes".
_EVICTION_SECONDS: Final = 2400.0


async def _grow(side: Side, name: str, capacity: int, *, flexible: bool = False) -> dict[str, Any]:
    """Set a capacity as gpuscaler does, follow it to its end, and tell how number, ETag and machines moved."""
    path = side.scale_set(name)
    before = await numbers(side, path)
    asked = await side.call("PUT", path, capacity_body(side, capacity), headers={"if-match": str(before["etag"])})
    during, watch = await numbers(side, path), Watch(side, path, flexible=flexible)
    await watch.look()
    followed = await side.follow(asked, GROWTH_SECONDS, watch.look)
    await watch.look()
    return {
        "write": asked.shown(),
        "operation": followed,
        "watched": watch.shown(),
        "before": before,
        "during": during,
        "after": await numbers(side, path),
    }


async def grown(side: Side) -> Any:
    """Two spot machines."""
    path = side.scale_set("uniform")
    result = await _grow(side, "uniform", 2)
    listed = await machines(side, path)
    single = await side.get(f"{path}/virtualMachines/{key_of(listed[0])}/instanceView") if listed else None
    states = result["watched"]["states of machines"]
    return {
        **result,
        "set": (await side.get(path)).shown(),
        "machines": listed,
        "view": single.shown() if single is not None else None,
        "answers": {
            "states that new machines go through": states,
            "a growth changes the ETag": moves(result["before"], result["during"], result["after"], "etag"),
            "a growth ends as": error_of(result["operation"]),
        },
    }


async def with_unknown(side: Side) -> Any:
    """Delete one machine that exists and one that does not, in one call."""
    path = side.scale_set("uniform")
    listed = await machines(side, path)
    if not listed:
        raise Skipped("no machine came")
    asked = await side.call("POST", f"{path}/delete", {"instanceIds": [key_of(listed[0]), "999"]})
    followed = await side.follow(asked, OPERATION_SECONDS)
    left = await machines(side, path)
    return {
        "delete": asked.shown(),
        "operation": followed,
        "answers": {
            "a deletion with one unknown id": code_of(asked) if asked.status >= 400 else error_of(followed),
            "it deletes the other machine": key_of(listed[0]) not in map(key_of, left),
        },
    }


async def deleted(side: Side) -> Any:
    """Delete one machine by id: when capacity and ETag move."""
    path = side.scale_set("uniform")
    await _grow(side, "uniform", 2)
    before, listed = await numbers(side, path), await machines(side, path)
    if not listed:
        raise Skipped("no machine came")
    asked = await side.call("POST", f"{path}/delete", {"instanceIds": [key_of(listed[0])]})
    during, watch = await numbers(side, path), Watch(side, path)
    await watch.look()
    followed = await side.follow(asked, OPERATION_SECONDS, watch.look)
    after = await numbers(side, path)
    return {
        "delete": asked.shown(),
        "operation": followed,
        "watched": watch.shown(),
        "before": before,
        "during": during,
        "after": after,
        "answers": {
            "a deletion by id lowers the capacity": moves(before, during, after, "capacity"),
            "a deletion by id changes the ETag": moves(before, during, after, "etag"),
            "states that deleted machines go through": sorted(watch.states),
        },
    }


async def preempted(side: Side) -> Any:
    """Delete a machine, and raise the capacity at once: what becomes of the deletion."""
    path = side.scale_set("uniform")
    await _grow(side, "uniform", 2)
    listed = await machines(side, path)
    if not listed:
        raise Skipped("no machine came")
    gone = key_of(listed[0])
    deletion = await side.call("POST", f"{path}/delete", {"instanceIds": [gone]})
    during = await numbers(side, path)
    growth = await side.call("PUT", path, capacity_body(side, 2), headers={"if-match": str(during["etag"])})
    ended, watch = await side.follow(deletion, OPERATION_SECONDS), Watch(side, path)
    grown = await side.follow(growth, GROWTH_SECONDS, watch.look)
    left = await machines(side, path)
    survivors = [machine for machine in left if key_of(machine) == gone]
    return {
        "delete": deletion.shown(body=False),
        "during": during,
        "write": growth.shown(body=False),
        "deletion": ended,
        "growth": grown,
        "watched": watch.shown(),
        "after": await numbers(side, path),
        "answers": {
            "a deletion that a growth follows ends as": error_of(ended),
            "the growth after a deletion ends as": error_of(grown),
            "its machine is then": state_of(survivors[0]) if survivors else "gone",
            "machines and capacity then": [len(left), (await numbers(side, path))["capacity"]],
        },
    }


async def evicted(side: Side) -> Any:
    """Simulate the eviction of a spot machine: what it does to capacity and ETag."""
    path = side.scale_set("uniform")
    before, listed = await numbers(side, path), await machines(side, path)
    if not listed:
        raise Skipped("no machine came")
    key = key_of(listed[0])
    asked = await side.call("POST", f"{path}/virtualMachines/{key}/simulateEviction")
    during, watch = await numbers(side, path), Watch(side, path)
    since = side.now()

    async def is_gone() -> bool:
        await watch.look()
        states = {key_of(machine): state_of(machine) for machine in await machines(side, path)}
        return key not in states or states[key].endswith("deallocated")

    came = asked.status < 400 and await side.until(is_gone, _EVICTION_SECONDS)
    side.notes.append(f"the eviction took {side.now() - since:.0f} s")
    after = await numbers(side, path)
    return {
        "evict": asked.shown(),
        "came": came,
        "watched": watch.shown(),
        "before": before,
        "during": during,
        "after": after,
        "answers": {
            "an eviction with the policy Delete leaves": [
                state_of(machine) for machine in await machines(side, path) if key_of(machine) == key
            ],
            "an eviction lowers the capacity by": int(before["capacity"]) - int(after["capacity"]),
            "an eviction changes the ETag": before["etag"] != after["etag"],
            "states that evicted machines go through": sorted(watch.states),
        },
    }


async def emptied(side: Side) -> Any:
    """Lower the capacity to 0."""
    result = await _grow(side, "uniform", 0)
    listed = await machines(side, side.scale_set("uniform"))
    return {**result, "left": [state_of(machine) for machine in listed]}


async def flexible(side: Side) -> Any:
    """One spot machine of a Flexible scale set, which is then deleted as a virtual machine of its own."""
    path = side.scale_set("flexible")
    result = await _grow(side, "flexible", 1, flexible=True)
    listed = await machines(side, path, flexible=True)
    if not listed:
        return {**result, "answers": {"a growth of a Flexible scale set ends as": error_of(result["operation"])}}
    before = await numbers(side, path)
    single = side.path("Microsoft.Compute/virtualMachines", key_of(listed[0]))
    asked = await side.call("DELETE", single, parameters={"forceDeletion": "true"})
    during = await numbers(side, path)
    followed = await side.follow(asked, OPERATION_SECONDS)
    after = await numbers(side, path)
    return {
        **result,
        "machines": listed,
        "delete": asked.shown(),
        "deletion": followed,
        "afterwards": after,
        "answers": {
            "states that new machines of Flexible scale sets go through": result["watched"]["states of machines"],
            "deleting a virtual machine lowers the capacity of its Flexible scale set": moves(before, during, after, "capacity"),
            "deleting a virtual machine changes the ETag of its Flexible scale set": moves(before, during, after, "etag"),
        },
    }


async def broken(side: Side) -> Any:
    """One on-demand machine whose extension fails: it runs and costs, and is Failed."""
    await create(side, "broken", maximum=None, fails=True)
    path = side.scale_set("broken")
    side.break_machines()
    result = await _grow(side, "broken", 1)
    listed = await machines(side, path)
    ended: Exchange | None = None
    if listed:
        ended = await side.call(
            "POST", f"{path}/delete", {"instanceIds": [key_of(machine) for machine in listed]}, parameters={"forceDeletion": "true"}
        )
        await side.follow(ended, OPERATION_SECONDS)
    extensions = [machine["properties"].get("instanceView", {}).get("extensions") for machine in listed]
    return {
        **result,
        "extensions": extensions,
        "delete": ended.shown() if ended is not None else None,
        "answers": {
            "a failed extension ends the growth as": error_of(result["operation"]),
            "a machine with a failed extension is": [state_of(machine) for machine in listed],
        },
    }


PAID: Final = (
    Step("two spot machines", grown),
    Step("deletion of a known and an unknown machine", with_unknown),
    Step("deletion of a machine", deleted),
    Step("growth right after a deletion", preempted),
    Step("a simulated eviction", evicted),
    Step("a capacity of 0", emptied),
    Step("a machine of a Flexible scale set", flexible),
    Step("a machine whose extension fails", broken),
)
