"""How a command that runs on ends: SIGTERM, which is how Kubernetes asks for it, ends it in order, and Ctrl-C interrupts it."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_terminated(running: Coroutine[Any, Any, None]) -> None:
    """Let ``running`` run to its end, or cancel it at SIGTERM and return once it has tidied up. Raises what it raises."""
    life = asyncio.create_task(running)
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        life.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        await life
    except asyncio.CancelledError:
        if not terminated:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
