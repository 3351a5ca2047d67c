"""Ending of a long-running command: SIGTERM, which Kubernetes sends, shuts it down cleanly, and Ctrl-C interrupts it."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_terminated(running: Coroutine[Any, Any, None]) -> None:
    """Run ``running`` to its end, or cancel it at SIGTERM and return once it has cleaned up. Raises its exceptions."""
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
