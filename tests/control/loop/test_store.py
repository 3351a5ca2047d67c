"""A corrupted saved state: a controller that knows the state writes it again; a new controller waits, reports that, and does nothing."""

import zlib
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from tests.control.test_faults import check_still_working, until_bought
from tests.control.world import ONE_GPU_MACHINES, World, world

from gpuscaler.control.loop.store import MOST_UNPACKED, MemoryStore, OvertakenError, UnreadableError
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.kube.resources import CONFIG_MAPS, PODS
from gpuscaler.lifecycle.memory import Memory

NAME, SPACE = "gpuscaler-state", "kube-system"
SPOILT = b64encode(b"a person was here").decode()
IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"


async def corrupt_memory(here: World, packed: str = SPOILT) -> str:
    """Overwrite the saved memory; return what it was."""
    config_map: dict[str, Any] = msgspec.json.decode(await here.user.get(CONFIG_MAPS, NAME, namespace=SPACE))
    await here.user.merge_patch(CONFIG_MAPS, NAME, {"binaryData": {"memory": packed}}, namespace=SPACE)
    before: str = config_map["binaryData"]["memory"]
    return before


async def read(here: World) -> Memory:
    return await MemoryStore(here.user, namespace=SPACE).load()


@pytest.mark.parametrize("after", [0.0, 1.0, 10.0])
async def test_a_saved_state_that_is_corrupted_while_machines_start_is_written_again(after: float) -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await until_bought(here, 1)
        await here.sleep(after)
        await corrupt_memory(here)
        await here.sleep(120.0)

        assert all((await here.bound()).values())
        assert len(here.cluster.core.history()) == 1
        await read(here)
        await check_still_working(here)


async def test_a_saved_state_that_is_corrupted_after_a_write_without_an_answer_is_written_again() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await until_bought(here, 1)
        here.cluster.api.faults.add(Fault(method="PUT", path="configmaps", sever="after"))
        await here.sleep(60.0)
        await corrupt_memory(here)
        here.cluster.api.faults.clear()
        await here.sleep(120.0)

        assert all((await here.bound()).values())
        assert len(here.cluster.core.history()) == 1
        await read(here)


async def test_a_controller_that_starts_with_a_corrupted_saved_state_does_nothing_until_it_is_restored() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(120.0)
        (machine,) = here.cluster.core.list()
        await here.kill()
        before = await corrupt_memory(here)
        here.start()
        await here.user.delete(PODS, "p", namespace="default")
        await here.submit("q", 1)
        await here.submit("r", 1)
        await here.sleep(900.0)

        assert here.controller is not None
        trouble = here.controller.trouble
        assert trouble.startswith(f"ConfigMap {SPACE}/{NAME}: saw a memory that cannot be read (")
        for phrase in ("nothing is bought or removed", "restore the ConfigMap", "delete it once"):
            assert phrase in trouble
        assert here.notes.failures
        assert [machine.id for machine in here.cluster.core.list()] == [machine.id]
        await corrupt_memory(here, before)
        await here.sleep(300.0)
        assert here.controller.trouble == ""
        assert all((await here.bound()).values())
        assert len(here.cluster.core.history()) == 2
        await check_still_working(here)


async def test_after_a_corrupted_saved_state_is_deleted_registered_machines_are_removed_as_usual() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(120.0)
        await here.kill()
        await corrupt_memory(here)
        here.start()
        await here.sleep(120.0)
        await here.user.delete(CONFIG_MAPS, NAME, namespace=SPACE)
        await here.sleep(300.0)

        assert all((await here.bound()).values())
        assert len(here.cluster.core.history()) == len(here.cluster.core.list()) == 1
        await here.user.delete(PODS, "p", namespace="default")
        await here.sleep(300.0)
        assert here.cluster.core.list() == ()


async def test_a_saved_state_that_another_controller_repaired_is_not_overwritten() -> None:
    async with world() as here:
        first, second = (MemoryStore(here.user, namespace=SPACE) for _ in range(2))
        await first.save(Memory(decisions=1))
        await second.load()
        await corrupt_memory(here)
        await second.save(Memory(decisions=2))

        with pytest.raises(OvertakenError, match=NAME):
            await first.save(Memory(decisions=3))
        assert (await read(here)).decisions == 2


@pytest.mark.parametrize("packed", [SPOILT, b64encode(b"").decode(), "eJwr"])
async def test_an_unreadable_saved_state_is_not_treated_as_a_missing_one(packed: str) -> None:
    async with world() as here:
        await MemoryStore(here.user, namespace=SPACE).save(Memory(decisions=1))
        await corrupt_memory(here, packed)

        with pytest.raises(UnreadableError, match="saw a memory that cannot be read"):
            await read(here)


async def test_a_saved_state_that_decompresses_beyond_the_limit_is_rejected() -> None:
    """Anyone who may write the ConfigMap can make a gibibyte of a megabyte."""
    async with world() as here:
        await MemoryStore(here.user, namespace=SPACE).save(Memory(decisions=1))
        await corrupt_memory(here, b64encode(zlib.compress(msgspec.json.encode(Memory(decisions=1)) + b" " * MOST_UNPACKED)).decode())

        with pytest.raises(UnreadableError, match="more than 64 MiB long"):
            await read(here)
