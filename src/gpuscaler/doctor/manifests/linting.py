"""A rule about files, and running rules and the checks that need no cluster on files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuscaler.doctor.findings import Finding, Fix
from gpuscaler.doctor.manifests.editing import patch_of
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

#: What each object of a list may have twice.
FindInFiles = Callable[[Manifests], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Lint:
    """The rule ``id`` of ``title``, a noun phrase: "versions of the API that were removed"."""

    id: str
    title: str
    find: FindInFiles


@dataclass(frozen=True, slots=True)
class Mistake:
    """What findings of one rule have in common: the texts of :class:`~gpuscaler.doctor.findings.Finding`."""

    id: str
    severity: str
    effect: str

    def at(self, manifest: Manifest, path: Path, *, seen: str, expected: str, new: Any = None, advice: str = "") -> Finding:
        """The finding at ``path``. ``new`` is the object without the mistake, of which a patch is made."""
        patch = patch_of(manifest, new) if new is not None else ""
        place = f"{manifest.file.name}:{manifest.line(path)}"
        fix = Fix(advice="" if patch else advice or f"write {expected}", patch=patch)
        return Finding(self.id, self.severity, manifest.title, path_text(path), seen, expected, self.effect, fix, place)


def path_text(path: Path) -> str:
    """``path`` as findings name fields: ``spec.containers[0].image``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) or "/" in step else f".{step}"
    return text.removeprefix(".") or "the whole object"
