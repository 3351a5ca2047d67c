"""Long work lets the event loop run in between."""

import asyncio

from gpuscaler.kube.turns import yield_to_loop


async def test_a_task_that_yields_continues_after_all_tasks_that_are_due() -> None:
    loop, ran = asyncio.get_running_loop(), list[str]()
    loop.call_at(loop.time(), ran.append, "a timer")
    loop.call_soon(ran.append, "a callback")

    await yield_to_loop()

    assert ran == ["a callback", "a timer"]
