"""What all tests share.

Asynchronous tests run in virtual time (looptime): ``asyncio.sleep`` and time-outs take no time, and what waits for the world outside the
event loop makes no progress meanwhile. Tests over sockets, threads or processes say ``@pytest.mark.looptime(False)``.
"""

import asyncio
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings


def pytest_configure() -> None:
    # How long an example takes says something about the machine, not about the test.
    settings.register_profile("patient", settings(), suppress_health_check=[HealthCheck.too_slow], deadline=None)
    settings.load_profile("patient")
    # looptime asks for the current event loop also around tests that have none, and up to Python 3.13 asking makes one that nobody closes.
    # Once a loop, or none, was set, asking raises what looptime expects.
    asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Whatever a test is about, no plan that is made meanwhile gives away room that others have (I11)."""
    from tests.planning import claims  # the package is not there for tests of what can do without numpy

    claims.watch_every_plan()
    claims.BROKEN.clear()
    yield
    broken, claims.BROKEN[:] = claims.BROKEN[:], []
    assert not broken, broken[0]
