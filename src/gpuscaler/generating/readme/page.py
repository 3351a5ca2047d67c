"""The README: its sections, and how files and steps are laid out in them."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.existing import exists
from gpuscaler.generating.readme.adopting import adoption_warning
from gpuscaler.generating.readme.ending import removal, works
from gpuscaler.generating.readme.layout import paragraph
from gpuscaler.generating.readme.placeholders import fill_in_first
from gpuscaler.generating.writing.files import GeneratedFile, Step

#: As far as the text of an item with a number of two digits.
_INDENT = "    "


def readme(description: Description, files: Sequence[GeneratedFile], notes: Sequence[str]) -> str:
    """Return the README of ``files``, which are in the order in which they are applied."""
    lines = [f"# Set-up of {description.cluster.name}", ""]
    lines += ["Written by `gpuscaler generate cluster`. Nothing was applied. All commands run in this folder.", ""]
    if exists(description):
        lines += ["## Read this first", "", *adoption_warning(description)]
    if notes:
        lines += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    lines += ["## Fill in first", "", *fill_in_first(description, files)]
    lines += ["## Apply the files in this order", "", *paragraph(_CONTEXT), ""]
    for number, file in enumerate((file for file in files if file.trial is None), 1):
        lines += _entry(f"{number}.", file)
    lines += ["## See that it works", "", *(line for step in works(description) for line in _step(step))]
    trials = [file for file in files if file.trial is not None]
    if trials:
        lines += ["## Try one of these", "", *paragraph(_TRIALS + (_ACTING if exists(description) else "")), ""]
        lines += [line for file in trials for line in _entry("-", file)]
    lines += ["## Remove all of it", "", *_numbered(removal(description, files))]
    return "\n".join(lines).rstrip("\n") + "\n"


_CONTEXT = (
    "kubectl and helm change the cluster of the current context: from the first step of `kubernetes/` on, `kubectl config current-context` "
    "must print the context of this cluster."
)
_TRIALS = (
    "They are examples, and no part of the set-up: gpuscaler buys machines for each. Create one, look at it, and remove it before the "
    "next: their namespace need not have room for all of them at the same time. Ten minutes after the pods are gone, gpuscaler gives the "
    "machine back."
)
_ACTING = " As long as `controller.dryRun` is true, it buys none."


def _entry(head: str, file: GeneratedFile) -> Iterator[str]:
    yield f"{head} `{file.path}`: {file.about}."
    if file.trial is not None:
        yield f"{_INDENT}{file.trial.asks}"
    if file.edit:
        yield f"{_INDENT}Before: {file.edit}."
    yield ""
    for step in _steps(file):
        yield from _indented(_step(step))


def _steps(file: GeneratedFile) -> Iterator[Step]:
    yield from file.checks
    if file.apply:
        yield Step(say="Then apply it:" if file.checks else "", commands=file.apply)
    yield from file.then
    if file.trial is not None:
        yield Step(say="Remove it:", commands=file.trial.remove)


def _numbered(steps: Iterable[Step]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        yield from _step(step, f"{number}. ")


def _step(step: Step, head: str = "") -> Iterator[str]:
    if step.say:
        yield from (*paragraph(step.say, head), "")
    if step.commands:
        lines = ("```sh", *step.commands.splitlines(), "```", "")
        yield from (textwrap.indent(line, " " * len(head)) for line in lines)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (textwrap.indent(line, _INDENT) for line in lines)
