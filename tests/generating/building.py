"""Builds the program that runs kOps' own code, once for each version of its sources and each Go release."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import built


def kops(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, built if it is missing: about five minutes on two cores. Raises :exc:`BuildError`."""
    return built("kops", Path(__file__).parent / "oracle", say)
