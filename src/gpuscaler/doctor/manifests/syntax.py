"""Files that are not YAML, and keys that a mapping has twice."""

from collections.abc import Iterable

from gpuscaler.doctor.findings import CRITICAL, Finding, Fix
from gpuscaler.doctor.manifests.credentials import shows_credential
from gpuscaler.doctor.manifests.editing import patch_of_lines
from gpuscaler.doctor.manifests.linting import Lint
from gpuscaler.doctor.manifests.reading import Manifests, SourceFile
from gpuscaler.model.reading.document import DUPLICATE
from gpuscaler.model.reading.errors import Problem


def find_bad_yaml(manifests: Manifests) -> Iterable[Finding]:
    """L1: what is wrong with the files as YAML."""
    for file, problem in manifests.problems:
        yield _finding(file, problem)


def _finding(file: SourceFile, problem: Problem) -> Finding:
    duplicate, tabs = problem.message.startswith(DUPLICATE), _tabs(file, problem)
    patch = _without_duplicate(file, problem) if duplicate else _with_spaces(file, problem) if tabs else ""
    seen, _, _ = problem.message.partition(", expected")
    seen = "a tab before the text" if tabs else seen.removeprefix("saw ").partition("; expected")[0]
    if not duplicate and not tabs and _shows_credential(file, problem.line or 1):
        # What is wrong may be a part of the credential.
        seen = "something that is not YAML"
    if duplicate:
        effect = "the API server refuses the object, or only the last of the values counts"
        advice = "remove the one that is wrong, or merge what is below them"
    else:
        effect, advice = "no program can read the file", "correct the indentation, the quotes or the brackets there or just above"
    return Finding(
        "L1",
        CRITICAL,
        f"file {file.name.rpartition('/')[2]}",
        problem.path or "the whole file",
        seen,
        "spaces" if tabs else "it once" if duplicate else "YAML",
        effect,
        Fix(advice="" if patch else advice, patch=patch),
        f"{file.name}:{problem.line or 1}",
    )


def _shows_credential(file: SourceFile, line: int) -> bool:
    beside = file.lines[max(0, line - 2) : line + 1]
    return file.in_secret(line) or any(shows_credential(text, beside) for text in beside)


def _tabs(file: SourceFile, problem: Problem) -> bool:
    line = file.lines[problem.line - 1] if problem.line and problem.line <= len(file.lines) else ""
    return "\t" in line[: len(line) - len(line.lstrip())]


def _with_spaces(file: SourceFile, problem: Problem) -> str:
    """Two spaces for each tab at the beginning of a line, as the lines around them have."""
    changed = {}
    for number, line in enumerate(file.lines, 1):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent and number >= (problem.line or 1):
            changed[number] = (indent.replace("\t", "  ") + line.lstrip(),)
    return patch_of_lines(file, changed)


def _without_duplicate(file: SourceFile, problem: Problem) -> str:
    """Remove the second of two lines that are the same, if nothing is below it."""
    first = int(problem.message.partition("first on line ")[2].partition(")")[0] or 0)
    second = problem.line or 0
    if not first or not second or file.lines[first - 1] != file.lines[second - 1] or file.lines[second - 1].rstrip().endswith(":"):
        return ""
    return patch_of_lines(file, {second: ()})


LINTS = (Lint("L1", "files that are not YAML", find_bad_yaml),)
