"""Builds the program that runs prometheus-adapter's own code, once for each version of its sources and each Go release."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import built


def adapter(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, built if it is missing: about two minutes on two cores. Raises :exc:`BuildError`."""
    return built("adapter", Path(__file__).parent / "oracle", say)
