"""Builds the program that asks prometheus-adapter's own code, once for each state of its sources and each Go release."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import built


def adapter(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, built first where it is missing: some two minutes on two cores. Raises :exc:`BuildError`."""
    return built("adapter", Path(__file__).parent / "oracle", say)
