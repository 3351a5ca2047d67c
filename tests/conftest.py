"""What holds for all tests."""

import asyncio


def pytest_configure() -> None:
    """Say that there is no event loop yet: looptime asks for one before each test, and Python would make one that nobody closes."""
    asyncio.set_event_loop(None)
