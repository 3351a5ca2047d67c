"""Settings and hooks for all tests.

Asynchronous tests run in virtual time: ``asyncio.sleep`` and time-outs take no time, and code that waits for anything outside the event
loop makes no progress during them. Tests with sockets, threads or processes are marked ``@pytest.mark.looptime(False)``.
"""

import ast
import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests.soaking import examples
from tests.virtual_time import VirtualTimeLoop


def pytest_configure() -> None:
    # The duration of an example depends on the machine, not on the test.
    settings.register_profile(
        "patient", settings(), max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow], deadline=None
    )
    settings.load_profile("patient")
    # Up to Python 3.13, asking for the current event loop creates one that is never closed, unless a loop (or None) was set before.
    asyncio.set_event_loop(None)
    # A shell starts background jobs with SIGINT ignored, and child processes inherit that. Programs that tests interrupt would not stop.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # nohup does the same with SIGHUP, which the tests themselves go on to ignore: a handler is not inherited.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if sys.version_info < (3, 12):
        ast.parse = _alone(ast.parse)
    # Rendered by rich, with all local variables, the traceback of each logged exception takes half a second.
    *processors, _ = structlog.get_config()["processors"]
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, console])
    gc.disable()


def _alone(parse: Any) -> Any:
    """Wrap ``parse`` so that no garbage is collected while it runs. pytest parses to show where a test failed.

    Up to CPython 3.11, parsing fails with "AST constructor recursion depth mismatch" if a finaliser runs during it and parses too, for
    example to show a warning with its traceback. pytest then stops with an internal error.
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
    # Ten thousand tests and their modules live until the end. Scanning them for garbage repeatedly takes a fifth of the time.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # pytest ends with five full collections. The process that distributes tests has run none, and its reports of all tests are no garbage.
    if session.config.getoption("numprocesses", None):
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Check in every test that no plan gives away room that is promised to other pods (I11)."""
    from tests.planning import claims  # not at the top, because some tests run without numpy

    claims.check_every_plan()
    claims.BROKEN.clear()
    yield
    broken, claims.BROKEN[:] = claims.BROKEN[:], []
    assert not broken, broken[0]
