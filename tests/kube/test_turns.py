"""The event loop goes round between turns of long work."""

import asyncio

from gpuscaler.kube.turns import breathe


async def test_whoever_lets_others_run_comes_after_what_has_become_due() -> None:
    loop, ran = asyncio.get_running_loop(), list[str]()
    loop.call_at(loop.time(), ran.append, "a timer")
    loop.call_soon(ran.append, "a callback")

    await breathe()

    assert ran == ["a callback", "a timer"]
