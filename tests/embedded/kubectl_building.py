"""Builds the real kubectl, once for each state of its sources and each Go release, like the other programs of the conformance tests."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import built


def kubectl(say: Callable[[str], None] = print) -> Path:
    """The path of kubectl, which is built first if it is missing: about four minutes on two cores from scratch.

    Raises :exc:`~tests.conformance.building.BuildError`.
    """
    return built("kubectl", Path(__file__).parent / "kubectl", say)
