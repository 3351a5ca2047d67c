"""Fixtures for the exporter: fake drivers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.fake_nvml import FakeNvml, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver library, in a current version."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def make_nvml(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], FakeNvml]:
    """Makes a fake driver with the given number of GPUs."""
    return lambda count: FakeNvml(library, tmp_path_factory.mktemp("driver"), count)


@pytest.fixture
def nvml(make_nvml: Callable[[int], FakeNvml]) -> FakeNvml:
    """A fake driver with two GPUs."""
    return make_nvml(2)
