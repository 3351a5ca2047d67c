"""What becomes of a test for which something is not there."""

from pathlib import Path

import pytest
from tests.metrics.real_prometheus import binary


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no program, no package and nothing in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_is_skipped_where_somebody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install the package prometheus"):
        binary()


def test_it_fails_where_everything_is_to_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install the package prometheus"):
        binary()
