"""Makes a JSON value as small as possible while a condition on it holds."""

import copy
from collections.abc import Callable, Container
from typing import Any

from .asking import Json


def shrink(value: Json, holds: Callable[[Json], bool], kept: Container[str] = ()) -> Json:
    """A copy of ``value`` from which no list element and no key can be left out without ``holds`` becoming false.

    Keys in ``kept`` stay with their parent. ``value`` is returned unchanged if ``holds`` is false from the start.
    """
    root = copy.deepcopy(value)
    if not holds(root):
        return root
    while _left_out(root, holds=lambda: holds(root), kept=kept):
        pass
    return root


def _left_out(here: Any, *, holds: Callable[[], bool], kept: Container[str]) -> bool:
    """Remove from ``here`` whatever can be removed; returns whether anything was."""
    changed = False
    for key in list(here) if isinstance(here, dict) else reversed(range(len(here))):
        if key not in kept:
            value = here.pop(key)
            if holds():
                changed = True
                continue
            if isinstance(here, dict):
                here[key] = value
            else:
                here.insert(key, value)
        if isinstance(here[key], dict | list):
            changed |= _left_out(here[key], holds=holds, kept=kept)
    return changed
