"""The command ``gpuscaler generate cluster``: what it prints, and what it does with files that are there."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuscaler.cli import main

DESCRIPTION = """
cloud: aws
cluster: {name: research, region: us-west-2}
gpu_pools:
- {name: train, types: [p4d.24xlarge], min: 1}
- {name: serve, gpus: 1, gpu_memory: 40G, markets: [on-demand], zones: [us-west-2a]}
"""
TEAMS = "teams: [{name: vision, gpus: 8}]\n"


def generate(folder: Path, text: str, *options: str) -> Any:
    return CliRunner().invoke(main, ["generate", "cluster", "-", "--output", str(folder), *options], input=text)


def test_it_prints_what_may_be_bought_and_notes_beside_standard_output(tmp_path: Path) -> None:
    done = generate(tmp_path / "out", DESCRIPTION)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    assert done.stdout.endswith("files; begin with " + str(tmp_path / "out" / "README.md") + "\n")
    rows = [line.split() for line in done.stderr.splitlines()]
    assert rows[0] == "pool type markets zones groups min machines max machines max GPUs $/h of a machine".split()
    assert rows[1][:4] == ["train", "p4d.24xlarge", "spot,", "on-demand"]
    assert rows[1][6:10] == ["4", "4", "40", "320"]
    assert "21.96" in rows[1][-1]
    assert rows[2][:7] == ["serve", "g6e.xlarge", "on-demand", "us-west-2a", "1", "0", "10"]
    assert "note: Pool train: min: 1 in 4 groups keeps 4 machines (32 GPUs) running" in done.stderr
    assert "min: 1 in 4 groups keeps 4 machines" in (tmp_path / "out" / "README.md").read_text()


def test_files_that_the_description_no_longer_has_are_named_and_stay(tmp_path: Path) -> None:
    generate(tmp_path, DESCRIPTION + TEAMS)
    own = tmp_path / "lab.yaml"
    own.write_text("")
    done = generate(tmp_path, DESCRIPTION, "--force")
    assert "warning: 1 file of an earlier run remained" in done.stderr
    assert f"  {tmp_path / 'kubernetes' / 'teams.yaml'}\n" in done.stderr
    assert str(own) not in done.stderr
    assert (tmp_path / "kubernetes" / "teams.yaml").exists()
    assert "remained" not in generate(tmp_path, DESCRIPTION).stderr


@pytest.mark.parametrize(("edited", "said"), [(1, "saw 1 file with other content"), (2, "saw 2 files with other content")])
def test_files_that_differ_are_counted(tmp_path: Path, edited: int, said: str) -> None:
    generate(tmp_path, DESCRIPTION)
    for name in ("README.md", "gpuscaler/values.yaml")[:edited]:
        (tmp_path / name).write_text("edited")
    done = generate(tmp_path, DESCRIPTION)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("link", "target"), [("README.md", "rc"), ("README.md", "there"), ("kubernetes", "."), ("kubernetes", "../out/eksctl")]
)
def test_no_symbolic_link_in_the_folder_is_followed(tmp_path: Path, link: str, target: str, force: bool) -> None:
    output, victim = tmp_path / "out", tmp_path / "victim"
    output.mkdir()
    victim.mkdir()
    (victim / "there").write_text("mine")
    (output / link).symlink_to(victim / target)
    done = generate(output, DESCRIPTION, *(["--force"] if force else []))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{output / link}: saw a symbolic link" in done.stderr
    assert [path.name for path in victim.iterdir()] == ["there"]
    assert (victim / "there").read_text() == "mine"
    assert [path.name for path in output.iterdir()] == [link]


def test_the_folder_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert generate(tmp_path / "out", DESCRIPTION).exit_code == 0
    assert (tmp_path / "real" / "README.md").exists()


def test_control_characters_of_a_description_do_not_reach_the_terminal(tmp_path: Path) -> None:
    done = generate(tmp_path, DESCRIPTION.replace("name: research", r'name: "a\e]0;pwn\a\u202e"') + '"k\\e[31m": 1\n')
    assert done.exit_code == 2
    assert r"\x1b]0;pwn\x07\u202e" in done.stderr
    assert all(map(str.isprintable, done.stderr.split("\n")))
