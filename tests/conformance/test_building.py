import stat
import sys
from pathlib import Path

import pytest
from tests.conformance import building
from tests.conformance.building import BuildError, digest, needed_version, oracle, release, run, toolchain


def silent(_: str) -> None:
    pass


def fake_go(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "go"
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


VERSION = "if sys.argv[1] == 'version': print('go version go{} linux/amd64'); sys.exit()"
COMPILE = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('binary')"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(building, "CACHE", folder)
    return folder


@pytest.mark.parametrize(("text", "numbers"), [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("1.25", (1, 25, 0)), ("devel", ())])
def test_a_release_is_read_from(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers


def test_the_binary_is_named_after_its_sources_and_the_release(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main")
    first = digest(tmp_path, "go1.26")
    assert first == digest(tmp_path, "go1.26")
    assert first != digest(tmp_path, "go1.27")
    (tmp_path / "notes.txt").write_text("no source")
    assert first == digest(tmp_path, "go1.26")
    (tmp_path / "main.go").write_text("package other")
    assert first != digest(tmp_path, "go1.26")


def test_the_oracle_is_built_once_and_older_ones_are_removed(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_go(tmp_path / "bin", f"{VERSION.format('1.26.8')}\n{COMPILE}").parent))
    cache.mkdir()
    (cache / "oracle-old").touch()
    said: list[str] = []
    binary = oracle(said.append)
    assert [path.name for path in cache.iterdir()] == [binary.name]
    assert oracle(said.append) == binary
    assert len(said) == 1


def test_a_failed_build_tells_what_the_compiler_said_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{VERSION.format('1.26.8')}\nsys.exit('undefined: judge')"
    monkeypatch.setenv("PATH", str(fake_go(tmp_path / "bin", script).parent))
    with pytest.raises(BuildError, match="undefined: judge"):
        oracle(silent)
    assert list(cache.iterdir()) == []


def test_a_release_that_is_too_old_is_passed_over_for_the_one_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_go(tmp_path / "old", VERSION.format("1.19.8")).parent))
    own = fake_go(tmp_path / "own", VERSION.format("1.26.1"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(own.parent))
    assert toolchain(silent) == own


def test_a_release_is_installed_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    installed: list[tuple[str, ...]] = []

    def install(command: tuple[str, ...], **_: object) -> str:
        installed.append(command)
        fake_go(tmp_path, VERSION.format("1.26.1"))
        return ""

    monkeypatch.setattr(building, "run", install)
    assert toolchain(silent) == tmp_path / "go"
    assert installed[0][-1] == str(building.GO_LOCK)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(BuildError, match="cannot run no-such-program"):
        run(("no-such-program",), cwd=Path())


def test_a_module_without_a_go_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    with pytest.raises(BuildError, match="no go line"):
        needed_version(tmp_path / "go.mod")
