"""Values with the reason why a file has them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: A mapping, a list, a scalar, or one of these :class:`Explained`.
Tree = Any


@dataclass(frozen=True, slots=True)
class Explained:
    """``value`` with the reason for it: one or more whole sentences. The reason covers everything inside the value."""

    value: Tree
    why: str


def because(why: str, value: Tree) -> Explained:
    return Explained(value, why)


def plain(tree: Tree) -> Any:
    """Return the values without their reasons."""
    if isinstance(tree, Explained):
        return plain(tree.value)
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    return tree


def unexplained(tree: Tree, path: str = "") -> Iterator[str]:
    """Yield the paths of scalars and empty containers that no reason covers."""
    if isinstance(tree, Explained):
        return
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from unexplained(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list | tuple) and tree:
        for index, value in enumerate(tree):
            yield from unexplained(value, f"{path}[{index}]")
    else:
        yield path
