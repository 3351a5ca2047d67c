"""The files that are written, before they have text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuscaler.generating.writing.explained import Tree, unexplained
from gpuscaler.generating.writing.yaml_text import render_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedFile:
    """A file at ``path``, relative to the folder that all are written to.

    ``about`` is one sentence on what it contains and ``apply`` the command that applies it, run in that folder; both stand in the README
    of the folder. ``render`` returns the text, with the reasons if asked. ``gaps`` are the paths of values without a reason: none, in
    what is shipped. ``edit`` names what a person must fill in first, if anything.
    """

    path: str
    about: str
    render: Callable[[bool], str]
    gaps: tuple[str, ...] = ()
    apply: str = ""
    edit: str = ""

    def text(self, *, explain: bool) -> str:
        return self.render(explain)


def yaml_file(path: str, about: str, documents: Iterable[Tree], *, apply: str = "", edit: str = "") -> GeneratedFile:
    """Return a YAML file of one or more documents."""
    trees = tuple(documents)
    gaps = tuple(gap for tree in trees for gap in unexplained(tree))
    return GeneratedFile(
        path=path, about=about, apply=apply, edit=edit, gaps=gaps, render=lambda explain: render_yaml(trees, explain=explain)
    )


def text_file(path: str, about: str, text: str, *, apply: str = "") -> GeneratedFile:
    """Return a file whose text is the same with and without reasons."""
    return GeneratedFile(path=path, about=about, apply=apply, render=lambda _explain: text)
