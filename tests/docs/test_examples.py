"""Every example in the documentation, run.

Fenced blocks are distinguished by their info string:

- ``console``: each ``$ command`` runs in a folder of its own page that starts as a copy of ``docs/examples``, and must print what follows
  it. ``...`` stands for anything, within a line or as a line of its own. A command must succeed, unless the block says ``exit=N``.
- ``yaml pools-file``: a pools file that ``gpuscaler validate`` accepts.
- ``yaml description``: a description that ``gpuscaler generate cluster`` accepts.
- ``yaml file=NAME`` (or ``json``): the content of ``docs/examples/NAME``.
- ``sh``: for a shell elsewhere; every ``make TARGET`` in it must be a target of the Makefile.
- ``text`` and ``mermaid``: nothing to run.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE

from gpuscaler.cli import main
from gpuscaler.generating.description.reading import read_description

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
#: The exit code of ``timeout`` after a time-out.
TIMED_OUT = 124
#: Syntax that needs a shell.
SHELL = re.compile(r"[|<>;&$`*?~(){}\[\]\n]")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/**/*.md")])


class Block(NamedTuple):
    """A fenced block: the words of its info string, its text, and its first line."""

    page: Path
    line: int
    kind: str
    options: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def option(self, name: str, default: str = "") -> str:
        return next((word.partition("=")[2] for word in self.options if word.startswith(f"{name}=")), default)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", text, re.MULTILINE):
        kind, *options = match[2].split() or [""]
        indent = len(match[1])
        body = "".join(line[indent:] or "\n" for line in match[3].splitlines(keepends=True))
        yield Block(page, text.count("\n", 0, match.start()) + 1, kind, tuple(options), body)


def every(kind: str, option: str = "") -> list[Block]:
    return [
        block
        for page in PAGES
        for block in blocks(page)
        if block.kind == kind and option in (word.partition("=")[0] for word in ("", *block.options))
    ]


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block with the output shown for each. A backslash continues a command."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, output = re.match(r"((?:.*\\\n)*.*\n?)((?:.*\n?)*)", part).groups()  # type: ignore[union-attr]
        yield command.strip(), output


class Done(NamedTuple):
    """The result of a command: exit code and output."""

    code: int
    output: str


def run(command: str, folder: Path, shown: str = "") -> Done:
    """Run a command line of a page in ``folder``.

    A single gpuscaler command needs no shell and no separate process, which would take several times as long as the command. A command
    that runs until its time-out is ended once it has printed ``shown``, independent of the machine's speed.
    """
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "COLUMNS": "120",
    }
    words = [] if SHELL.search(command) else shlex.split(command)
    if words[:1] == ["gpuscaler"]:
        with patch.dict(os.environ, environment, clear=True), contextlib.chdir(folder):
            done = CliRunner().invoke(main, words[1:])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Done(done.exit_code, done.output)
    if (goes_on := re.fullmatch(r"timeout \d+ (.*)", command)) is not None:
        return Done(TIMED_OUT, until_shown(f"exec {goes_on[1]}", shown, folder, environment))
    shell = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=120,
    )
    return Done(shell.returncode, shell.stdout)


def until_shown(command: str, shown: str, folder: Path, environment: dict[str, str]) -> str:
    """Return the output of ``command``, which does not end by itself, once it matches ``shown`` or the command has ended."""
    printed = ""
    words = ["bash", "-c", command]
    with subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE, process.kill)
        patience.start()
        for line in process.stdout:
            printed += line
            if matches(shown, printed):
                break
        patience.cancel()
        process.kill()
    return printed


def tidy(output: str) -> str:
    """Return output without trailing blanks and surrounding empty lines, which pages cannot show."""
    return "\n".join(line.rstrip() for line in output.strip("\n").splitlines())


def matches(shown: str, printed: str) -> bool:
    """Whether output matches the shown text. A line of dots stands for any number of lines; dots within a line match within it."""
    lines = tidy(shown).splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*?") + r"\n" for line in lines)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in tidy(printed).splitlines())) is not None


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.kind == "console" for block in blocks(page))], ids=lambda page: page.stem
)
def test_the_commands_on_a_page_print_the_shown_output(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder)
    for block in blocks(page):
        if block.kind != "console":
            continue
        for command, shown in commands(block):
            done = run(command, folder, shown)
            assert done.code == int(block.option("exit", "0")), f"{block.place}: $ {command}\n{done.output}"
            assert matches(shown, done.output), f"{block.place}: $ {command}\nprinted:\n{done.output}\nshown:\n{shown}"


@pytest.mark.parametrize("block", every("yaml", "pools-file"), ids=lambda block: block.place)
def test_a_pools_file_on_a_page_is_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(block.text)

    done = run("gpuscaler validate pools.yaml", tmp_path)

    assert done.code == 0, f"{block.place}\n{done.output}"


@pytest.mark.parametrize("block", every("yaml", "description"), ids=lambda block: block.place)
def test_a_description_on_a_page_is_valid(block: Block) -> None:
    assert read_description(block.text, block.place).groups


@pytest.mark.parametrize("block", every("yaml", "file") + every("json", "file"), ids=lambda block: block.place)
def test_a_file_shown_on_a_page_equals_the_example_file(block: Block) -> None:
    assert block.text == (EXAMPLES / block.option("file")).read_text()


@pytest.mark.parametrize("block", every("sh"), ids=lambda block: block.place)
def test_a_make_target_on_a_page_exists(block: Block) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"^\s*make ([a-z0-9-]+)", block.text, re.MULTILINE)) <= targets


def test_every_code_block_on_a_page_is_of_a_kind_that_is_checked_or_needs_no_check() -> None:
    checked_kinds = {"console", "sh", "text", "mermaid"}
    unknown = [
        block.place
        for page in PAGES
        for block in blocks(page)
        if block.kind not in checked_kinds
        and not (block.kind in {"yaml", "json"} and ({"pools-file", "description"} & set(block.options) or block.option("file")))
    ]

    assert unknown == []


def links(page: Path) -> list[str]:
    """Return the relative links and pictures of a page."""
    prose = re.sub(r"^( *)```.*\n(?:.*\n)*?\1```$", "", page.read_text(), flags=re.MULTILINE)
    return [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose) if not re.match(r"\w+:", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb  \n", True),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("a\n...\nc\n", "a\nc\n", True),
        ("took ... s\n", "took 1.5 s\n", True),
        ("took ... s\n", "took 1.5\nor 2 s\n", False),
        ("a\n", "a\nb\n", False),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_in_expected_output_only_dots_match_any_text(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def test_no_page_or_message_mentions_a_release_that_does_not_exist() -> None:
    """As long as the README states that there is no release, nothing can be installed by name."""
    released = "no release yet" not in (ROOT / "README.md").read_text()
    texts = [*PAGES, *ROOT.glob("src/gpuscaler/**/*.py"), ROOT / "Dockerfile", *ROOT.glob("charts/**/*.md")]
    by_name = re.compile(r"pip install '?gpuscaler|install gpuscaler\[")
    mentions = [str(path.relative_to(ROOT)) for path in texts if by_name.search(path.read_text())]

    assert released or mentions == []
