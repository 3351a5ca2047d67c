"""Requirements of tests that are missing on this machine."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(message: str) -> NoReturn:
    """Skip the test, or fail it if ``CI`` is set: there, every test has to run."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
