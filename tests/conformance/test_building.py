from pathlib import Path

import pytest
from tests.conformance import building
from tests.conformance.building import BuildError, built
from tests.embedded.controlplane.going import working_go


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(working_go(tmp_path / "bin").parent))
    folder = tmp_path / "oracle"
    folder.mkdir()
    (folder / "go.mod").write_text("module oracle\n\ngo 1.25.0\n")
    return folder


def test_a_program_is_built_once_and_older_ones_are_removed(sources: Path) -> None:
    (building.CACHE).mkdir()
    (building.CACHE / "oracle-old").touch()
    said: list[str] = []
    binary = built("oracle", sources, said.append)
    assert [path.name for path in building.CACHE.iterdir()] == [binary.name]
    assert built("oracle", sources, said.append) == binary
    assert len(said) == 1


def test_a_failed_build_leaves_the_older_programs(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(working_go(tmp_path / "broken", "sys.exit('undefined: judge')").parent))
    building.CACHE.mkdir()
    (building.CACHE / "oracle-old").touch()
    with pytest.raises(BuildError, match="undefined: judge"):
        built("oracle", sources, lambda _: None)
    assert [path.name for path in building.CACHE.iterdir()] == ["oracle-old"]
