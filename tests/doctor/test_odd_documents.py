"""Objects are written by anyone: no value in any field breaks a check."""

from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

from tests.doctor.corpus import broken_files, clean_files, look_at, objects_of

NUMBERS = (5, -1, 1e300, float("nan"), float("inf"))
ODD: tuple[Any, ...] = (*NUMBERS, None, True, [], {}, "x", "", ["a", None, 3], {"a": None, "b": [1]}, [[]], [{}])
TRIALS = 600


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def test_a_value_of_another_type_in_any_field_breaks_no_check() -> None:
    random = Random(1)
    files = [objects_of(path) for path in (*(file.path for file in broken_files()), *(path for path, _ in clean_files()))]
    fields = [(objects, index, path) for objects in files for index, item in enumerate(objects) for path in places(item)]
    for objects, index, path in random.sample(fields, TRIALS):
        changed = deepcopy(objects)
        put(changed[index], path, odd := random.choice(ODD))

        assert not [entry.message for entry in look_at(changed).unchecked if "please report it" in entry.reason], (path, odd)
