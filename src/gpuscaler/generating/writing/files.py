"""The files that are written, before they have text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuscaler.generating.writing.explained import Tree, unexplained
from gpuscaler.generating.writing.yaml_text import render_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that a person does: ``say`` is whole sentences on what it is for, ``commands`` what is run, if anything."""

    say: str
    commands: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An example that a person creates to try the cluster: what it asks for, as whole sentences, and the command that removes it."""

    asks: str
    remove: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedFile:
    """A file at ``path``, relative to the folder that all are written to.

    ``about`` is one sentence on what it contains and ``apply`` the command that applies it, run in that folder; both stand in the README
    of the folder. ``render`` returns the text, with the reasons if asked. ``gaps`` are the paths of values without a reason: none, in
    what is shipped. ``edit`` names what a person must fill in or decide first, if anything, ``checks`` are commands whose output he
    reads before he applies the file, and ``then`` what follows. ``trial`` makes the file an example, which is no part of the set-up.
    """

    path: str
    about: str
    render: Callable[[bool], str]
    gaps: tuple[str, ...] = ()
    apply: str = ""
    edit: str = ""
    checks: tuple[Step, ...] = ()
    then: tuple[Step, ...] = ()
    trial: Trial | None = None

    def text(self, *, explain: bool) -> str:
        return self.render(explain)


def yaml_file(
    path: str,
    about: str,
    documents: Iterable[Tree],
    *,
    apply: str = "",
    edit: str = "",
    checks: tuple[Step, ...] = (),
    then: tuple[Step, ...] = (),
    trial: Trial | None = None,
) -> GeneratedFile:
    """Return a YAML file of one or more documents."""
    trees = tuple(documents)
    return GeneratedFile(
        path=path,
        about=about,
        apply=apply,
        edit=edit,
        checks=checks,
        then=then,
        trial=trial,
        gaps=tuple(gap for tree in trees for gap in unexplained(tree)),
        render=lambda explain: render_yaml(trees, explain=explain),
    )


def objects_file(
    path: str,
    about: str,
    objects: Iterable[Tree],
    *,
    edit: str = "",
    checks: tuple[Step, ...] = (),
    trial: Trial | None = None,
) -> GeneratedFile:
    """Return a file of Kubernetes objects, which ``kubectl apply`` creates."""
    return yaml_file(path, about, objects, apply=f"kubectl apply --server-side --filename {path}", edit=edit, checks=checks, trial=trial)


def text_file(path: str, about: str, text: str) -> GeneratedFile:
    """Return a file whose text is the same with and without reasons."""
    return GeneratedFile(path=path, about=about, render=lambda _explain: text)
