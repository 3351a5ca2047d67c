"""Words that the program prints are in an English dictionary or on the page of words, and words that were replaced are not used again."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
from tests.debian_packages import packaged
from tests.docs.test_examples import PAGES, ROOT, commands, every

from gpuscaler.cli import main

WORDS = ROOT / "docs" / "explanation" / "words.md"
#: A word of a sentence: no part of a path, a flag, an identifier, an address or a placeholder.
WORD = re.compile(r"(?<![\w./:@<$%\\-])[A-Za-z][a-z]+(?:'[a-z]+)?(?![\w/:@>=(-]|\.\w)")
#: What is quoted is a name.
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'\w[^']*\w'(?!\w)|--[\w-]+")
#: A string with fewer spaces is a name, a format or a key.
SENTENCE = 2
#: Texts in these folders imitate those of other programs, or are code of another language.
NOT_OURS = (
    *("embedded", "simulation/papers", "simulation/results/page", "metrics/rules", "metrics/command/command.py"),
    *("doctor/manifests/groups/eksctl_fields.py", "doctor/manifests/fields/kubernetes.py", "doctor/manifests/fields/programs.py"),
)
#: Parts of code, of SQL, of patterns and of schedules that stand in strings.
CODE = frozenset(("dict", "eq", "fira", "gt", "imum", "monospace", "notin", "rowid", "str", "thu", "tr", "tue"))

#: Words of our old dialect, and what to say instead.
OLD_WORDS = {
    r"anew": "again",
    r"whoever|whomever": "which, whatever",
    r"somebody|nobody|everybody": "something else, nothing; a user, an operator",
    r"(?:pod|pods|machine|machines|node|nodes) (?:who|whom)": "that, which",
    r"(?:is|are|was|were|be) told(?! apart| by)": "is reported, is logged, is shown",
    r"a happening|the happenings?": "event",
    r"gone on with": "continued",
    r"dearer|dearest": "more expensive, most expensive",
    r"hitherto|thereby|therefrom|wherefrom": "so far, so",
    r"the most at p\d+": "p95",
}


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings, with their lines; what is filled in is left out."""
    tree = ast.parse(path.read_text())
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "$" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts and node not in docstrings:
            yield node.lineno, node.value


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """The help of a command and of those below it, by the words that call it."""
    context = click.Context(command, info_name=path)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, f"{path} {name}")


@cache
def dictionary() -> frozenset[str]:
    """Words in lower case: those of a Debian word list, and the words of the field that the page of words lists."""
    installed = Path("/usr/share/dict/american-english")
    file = installed if installed.exists() else packaged("wamerican", "usr/share/dict/american-english")
    listed = WORDS.read_text().partition("## Words that a dictionary lacks")[2]
    assert listed, f"{WORDS.name} lost its list of words that a dictionary lacks"
    return CODE.union(word.lower() for word in (*file.read_text().split(), *re.findall(r"[\w']+", listed)))


def unknown(text: str) -> list[str]:
    """Words of a text that the dictionary does not have."""
    return sorted({word for word in WORD.findall(QUOTED.sub("", text)) if word.lower().removesuffix("'s") not in dictionary()})


def test_every_word_of_the_command_help_is_in_the_dictionary() -> None:
    unknown_words = {path: words for path, text in helps(main, "gpuscaler") if (words := unknown(text))}

    assert not unknown_words, f"words to replace, or to explain in {WORDS.relative_to(ROOT)}"


def test_every_word_of_a_message_is_in_the_dictionary() -> None:
    source = ROOT / "src" / "gpuscaler"
    unknown_words = {
        f"{path.relative_to(ROOT)}:{line}": words
        for path in sorted(source.rglob("*.py"))
        if not path.relative_to(source).as_posix().startswith(NOT_OURS)
        for line, text in sentences(path)
        if text.count(" ") >= SENTENCE and (words := unknown(text))
    }

    assert not unknown_words, f"words to replace, or to explain in {WORDS.relative_to(ROOT)}"


def test_every_word_of_program_output_shown_on_pages_is_in_the_dictionary() -> None:
    unknown_words = {
        block.place: words
        for block in every("console")
        for command, output in commands(block)
        if command.startswith("gpuscaler") and (words := unknown(output))
    }

    assert not unknown_words, f"words to replace, or to explain in {WORDS.relative_to(ROOT)}"


def prose(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Comments, strings and names of a module, or the lines of a page, in lower case; none if ``pattern`` matches nowhere in the file."""
    text = path.read_text()
    # Splitting all modules into tokens takes seconds.
    if pattern.search(text.replace("_", " ").lower()) is None:
        return
    if path.suffix == ".md":
        yield from enumerate(text.lower().split("\n"), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield from enumerate(token.string.lower().split("\n"), token.start[0])
        elif token.type == tokenize.NAME and "_" in token.string:
            yield token.start[0], token.string.replace("_", " ").lower()


def test_replaced_words_are_not_used_again() -> None:
    # Without upper case and with one boundary in front, a search takes a third of the time.
    pattern = re.compile(rf"\b(?:{'|'.join(f'({old})' for old in OLD_WORDS)})\b")
    plain = list(OLD_WORDS.values())
    folders = (ROOT / name for name in ("src", "tests", "tools", "benchmarks"))
    paths = [*(path for folder in folders for path in sorted(folder.rglob("*.py"))), *PAGES]
    # The page of words and this file name the old words.
    exempt = {Path(__file__), WORDS}
    places = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text.strip()!r}; say {plain[(match.lastindex or 1) - 1]}"
        for path in paths
        if path not in exempt
        for line, text in prose(path, pattern)
        if (match := pattern.search(text)) is not None
    ]

    assert not places, "\n".join(places)
