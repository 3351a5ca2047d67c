"""What a test needs beside the project itself, and cannot have here."""

import os
from typing import NoReturn

import pytest


def lacking(said: str) -> NoReturn:
    """Skip the test. Where everything is tested (``CI`` is set) it fails: a test that is never run there would be one on paper."""
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)
