"""What all tests share.

Asynchronous tests run in virtual time: ``asyncio.sleep`` and time-outs take no time, and what waits for the world outside the event loop
makes no progress meanwhile. Tests over sockets, threads or processes say ``@pytest.mark.looptime(False)``.
"""

import ast
import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.soaking import examples
from tests.virtual_time import VirtualTimeLoop


def pytest_configure() -> None:
    # How long an example takes says something about the machine, not about the test.
    settings.register_profile(
        "patient", settings(), max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow], deadline=None
    )
    settings.load_profile("patient")
    # Up to Python 3.13, asking for the current event loop where there is none makes one that nobody closes, unless none was ever set.
    asyncio.set_event_loop(None)
    # A shell starts its background jobs with SIGINT ignored, and programs hand that on: those that tests interrupt would go on.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info < (3, 12):
        ast.parse = _alone(ast.parse)
    gc.disable()


def _alone(parse: Any) -> Any:
    """``parse`` while nothing is collected, as pytest does to show where a test failed.

    Up to CPython 3.11 a finaliser that runs meanwhile and parses too, such as one whose warning is shown with its traceback, ends this
    with "AST constructor recursion depth mismatch", and pytest with an internal error.
    """

    def parse_alone(*arguments: Any, **options: Any) -> ast.AST:
        collects = gc.isenabled()
        gc.disable()
        try:
            tree: ast.AST = parse(*arguments, **options)
        finally:
            if collects:
                gc.enable()
        return tree

    return parse_alone


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marker = item.get_closest_marker("looptime")
    return {"real": asyncio.SelectorEventLoop} if marker is not None and marker.args == (False,) else {"virtual": VirtualTimeLoop}


def pytest_collection_finish() -> None:
    # Ten thousand tests and their modules stay until the end: to look through them for garbage over and over takes a fifth of the time.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Whatever a test is about, no plan that is made meanwhile gives away room that others have (I11)."""
    from tests.planning import claims  # the package is not there for tests of what can do without numpy

    claims.watch_every_plan()
    claims.BROKEN.clear()
    yield
    broken, claims.BROKEN[:] = claims.BROKEN[:], []
    assert not broken, broken[0]
