"""What all tests share.

Asynchronous tests run in virtual time (looptime): ``asyncio.sleep`` and time-outs take no time, and what waits for the world outside the
event loop makes no progress meanwhile. Tests over sockets, threads or processes say ``@pytest.mark.looptime(False)``.
"""

import asyncio


def pytest_configure() -> None:
    # looptime asks for the current event loop also around tests that have none, and up to Python 3.13 asking makes one that nobody closes.
    # Once a loop, or none, was set, asking raises what looptime expects.
    asyncio.set_event_loop(None)
