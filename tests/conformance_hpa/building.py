"""Builds the program that runs kube-controller-manager's controller, once for each version of its sources and each Go release."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import BuildError, built

__all__ = ["BuildError", "horizontal"]


def horizontal(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, which is built if it is missing: about two minutes on two cores. Raises :exc:`BuildError`."""
    return built("horizontal", Path(__file__).parent / "oracle", say)
