"""Growth that fails without starting a machine: beyond a quota, and below the market's price."""

from typing import Any, Final

from tests.embedded.azure.contract.bodies import LOWEST, capacity_body
from tests.embedded.azure.contract.observing import Watch, code_of, error_of, key_of, machines, moves, numbers, state_of
from tests.embedded.azure.contract.sides import Side, Skipped
from tests.embedded.azure.contract.steps import OPERATION_SECONDS, Step, create

GROWTH_SECONDS: Final = 1800.0


async def beyond_quota(side: Side) -> Any:
    """One machine of a size whose quota has no room for it."""
    size = side.refused_size
    if not size:
        raise Skipped("every GPU size that the location offers has a quota")
    made = await create(side, "quota", maximum=None, size=size)
    path = side.scale_set("quota")
    before = await numbers(side, path)
    asked = await side.call("PUT", path, capacity_body(side, 1, size=size), headers={"if-match": str(before["etag"])})
    followed = await side.follow(asked, GROWTH_SECONDS)
    after = await numbers(side, path)
    return {
        "created": made["write"]["status"],
        "write": asked.shown(),
        "operation": followed,
        "before": before,
        "after": after,
        "answers": {
            "a quota that is too small is refused by": "the write" if asked.status >= 400 else f"the operation: {error_of(followed)}",
            "a refused write changes the ETag": before["etag"] != after["etag"],
        },
    }


async def below_the_price(side: Side) -> Any:
    """One spot machine for the lowest price that can be set, which no market has: what a failed allocation leaves behind."""
    await create(side, "price", maximum=LOWEST)
    path = side.scale_set("price")
    before = await numbers(side, path)
    asked = await side.call("PUT", path, capacity_body(side, 1), headers={"if-match": str(before["etag"])})
    during, watch = await numbers(side, path), Watch(side, path)
    followed = await side.follow(asked, GROWTH_SECONDS, watch.look)
    after, left = await numbers(side, path), await machines(side, path)
    views = {status["code"]: None for machine in left for status in machine["properties"].get("instanceView", {}).get("statuses", ())}
    return {
        "write": asked.shown(),
        "operation": followed,
        "watched": watch.shown(),
        "before": before,
        "during": during,
        "after": after,
        "left": left,
        "answers": {
            "a spot price below the market is refused by": f"the write: {code_of(asked)}"
            if asked.status >= 400
            else f"the operation: {error_of(followed)}",
            "a failed allocation leaves": [state_of(machine) for machine in left],
            "instance view of a machine that was not allocated": list(views),
            "capacity after a failed allocation of 1": after["capacity"],
            "state of the scale set after a failed allocation": after["state"],
            "a growth that fails changes the ETag": moves(before, during, after, "etag"),
        },
    }


async def same_again(side: Side) -> Any:
    """The same capacity once more: whether Azure tries to allocate machines that failed."""
    path = side.scale_set("price")
    before, listed = await numbers(side, path), await machines(side, path)
    if not listed:
        raise Skipped("nothing is left of the failed allocation")
    asked = await side.call("PUT", path, capacity_body(side, int(before["capacity"])), headers={"if-match": str(before["etag"])})
    watch = Watch(side, path)
    followed = await side.follow(asked, GROWTH_SECONDS, watch.look)
    left = await machines(side, path)
    return {
        "write": asked.shown(body=False),
        "operation": followed,
        "watched": watch.shown(),
        "answers": {
            "a write of the same capacity after a failure ends as": error_of(followed),
            "it leaves": [state_of(machine) for machine in left],
            "it replaces failed machines": sorted(map(key_of, left)) != sorted(map(key_of, listed)),
        },
    }


async def deleted_by_id(side: Side) -> Any:
    """Delete what the failed allocation left by id: how capacity and ETag move."""
    path = side.scale_set("price")
    before, listed = await numbers(side, path), await machines(side, path)
    if not listed:
        raise Skipped("nothing is left of the failed allocation")
    asked = await side.call("POST", f"{path}/delete", {"instanceIds": [key_of(machine) for machine in listed]})
    during, watch = await numbers(side, path), Watch(side, path)
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
            "deleting a machine that was not allocated lowers the capacity": moves(before, during, after, "capacity"),
            "deleting a machine that was not allocated changes the ETag": moves(before, during, after, "etag"),
        },
    }


async def lowered(side: Side) -> Any:
    """Lower the capacity to the machines that are listed, as after failures that leave only a number."""
    path = side.scale_set("price")
    before, listed = await numbers(side, path), await machines(side, path)
    asked = await side.call("PUT", path, capacity_body(side, len(listed)), headers={"if-match": str(before["etag"])})
    followed = await side.follow(asked, OPERATION_SECONDS)
    return {"write": asked.shown(body=False), "operation": followed, "after": await numbers(side, path)}


FAILING: Final = (
    Step("growth beyond a quota", beyond_quota),
    Step("growth below the spot price", below_the_price),
    Step("the same capacity after a failure", same_again),
    Step("deletion of what was not allocated", deleted_by_id),
    Step("a capacity without machines", lowered),
)
