"""The guard that watches the invariants in these tests detects violations: a guard that cannot fail proves nothing."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
from tests.control.leaving import run
from tests.control.violations import Violation
from tests.control.world import World
from tests.faults.guarding import IDLE_STRANGER, Watch
from tests.faults.kit import IDLE, bought, faulty, watch_of
from tests.faults.test_adoption import REPLACING

from gpuscaler.control.loop import awaiting
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.transport import Request
from gpuscaler.lifecycle.reconcile import stages
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.machines import LOST, RECLAIMED

LIMITED = "limits: {LIMIT}\n" + IDLE


@pytest.mark.parametrize("limit", ["gpus: 1", "machines: 1", "machines_per_minute: 1", "dollars_per_hour: 0.6"])
async def test_the_guard_detects_a_purchase_beyond_a_limit(limit: str) -> None:
    narrow = parse_policy(LIMITED.replace("LIMIT", limit))
    with pytest.raises((AssertionError, Violation), match="I5"):
        async with faulty(IDLE, watch=lambda here: Watch(here, lambda: narrow)) as here:
            await two(here)


async def test_the_guard_detects_a_pool_above_its_maximum() -> None:
    narrow = parse_policy(IDLE + "    max: 1\n")
    with pytest.raises(AssertionError, match="2 machines of pool gpu, and the limit is 1"):
        async with faulty(IDLE, watch=lambda here: Watch(here, lambda: narrow)) as here:
            await two(here)


async def two(here: World) -> None:
    for name in ("a", "b"):
        await here.submit(name)
    await bought(here, 2)
    await here.sleep(5.0)


async def write(here: World) -> None:
    """Write as if by the controller; catching the error hides nothing."""
    with suppress(AssertionError):
        await watch_of(here).write(Request("PATCH", f"/api/v1/nodes/{IDLE_STRANGER}", body=b"{}"))


async def change(here: World) -> None:
    """Change it in a way that no request shows."""
    await here.user.merge_patch(NODES, IDLE_STRANGER, {"spec": {"taints": None}})


async def end(here: World) -> None:
    with suppress(AssertionError):
        await watch_of(here).remove([f"simulated:///us-east-1a/{IDLE_STRANGER}"])


async def take_taint_away(here: World) -> None:
    """Remove a foreign taint from a node of ours."""
    await here.submit("p")
    await here.sleep(60.0)
    (node,) = await here.nodes()
    name = node["metadata"]["name"]
    await here.user.merge_patch(NODES, name, {"spec": {"taints": [{"key": "example.com/theirs", "effect": "NoSchedule"}]}})
    version = msgspec.json.decode(await here.user.get(NODES, name))["metadata"]["resourceVersion"]
    body = msgspec.json.encode({"metadata": {"resourceVersion": version}, "spec": {"taints": []}})
    with suppress(AssertionError):
        await watch_of(here).write(Request("PATCH", f"/api/v1/nodes/{name}", body=body))


@pytest.mark.parametrize(
    ("touch", "message"), [(write, "I7"), (change, "I7"), (end, "I1"), (take_taint_away, "I7: foreign taints of node")]
)
async def test_the_guard_detects_any_change_to_objects_of_others(touch: Callable[[World], Awaitable[None]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        async with faulty(IDLE) as here:
            await touch(here)


async def test_the_guard_detects_a_machine_bought_in_addition_to_one_that_a_group_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "unordered_machines", lambda *_what, **_more: ())
    monkeypatch.setattr(awaiting, "LONGEST_WAIT", 0.0)
    with pytest.raises(AssertionError, match="I12: sim-00002 was launched replacing sim-00001"):
        async with faulty(IDLE, faults=REPLACING) as here:
            await lose(here)


async def lose(here: World) -> None:
    """Let the pool replace a machine while another pod comes."""
    await run(here, "web")
    await here.sleep(120.0)
    here.cluster.core._schedule(here.now(), LOST, here.cluster.core.list()[0].id, why=RECLAIMED)
    here.cluster.provider._changed.set()
    await here.sleep(20.0)
    await here.submit("more")
    await here.sleep(5.0)
