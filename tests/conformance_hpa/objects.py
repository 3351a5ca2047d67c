"""Objects to read: those of the random cases, most of them damaged."""

import random
from typing import Any

from .cases import Json, draw_case

_JUNK: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 60, 1800, 1801, 3600, 3601, 2**31 - 1, 2**31, 1.5, "", "x", "a/b", "..", "0", "-5", "1500m", "1Ki", "1e3", "ten"),
    *(
        None,
        [],
        {},
        ["a"],
        {"a": 1},
        True,
        "Pods",
        "Percent",
        "Max",
        "Value",
        "AverageValue",
        "Utilization",
        "Object",
        "External",
        "v1",
        "apps/v1",
    ),
)


def draw_object(seed: int, number: int) -> Json:
    """Object ``number`` of ``seed``, the same every time."""
    rng = random.Random(f"{seed}/object/{number}")
    drawn: Json = draw_case(seed, number)["autoscaler"]
    spec = drawn["spec"]
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        spec = _damaged(spec, rng, depth=rng.randrange(1, 8))
    return {**drawn, "metadata": {"name": "serving", "namespace": "default"}, "spec": spec}


def _damaged(tree: Any, rng: random.Random, *, depth: int) -> Any:
    """A copy of ``tree`` with one element, at most ``depth`` levels deep, replaced or removed."""
    if not isinstance(tree, dict | list) or not tree or depth == 0:
        return rng.choice(_JUNK)
    copy: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    place = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
    if rng.random() < 0.15:
        del copy[place]
    else:
        copy[place] = _damaged(copy[place], rng, depth=depth - 1)
    return copy
