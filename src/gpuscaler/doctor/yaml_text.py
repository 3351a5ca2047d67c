"""YAML in fields of objects, which anyone may have written: no depth, size or alias of it costs more than its length."""

from functools import lru_cache
from typing import Any

from gpuscaler.model.reading.document import Entry, read_document

#: Aliases may let a text grow without limit.
MOST_VALUES = 1_000_000
#: The longest text that is read, in characters: a ConfigMap holds a million.
LONGEST = 200_000


def data_of(entry: Entry) -> Any:
    """The plain value of ``entry``."""
    if isinstance(entry.value, dict):
        return {key: data_of(item) for key, item in entry.value.items()}
    return [data_of(item) for item in entry.value] if isinstance(entry.value, list) else entry.value


def size_of(entry: Entry) -> float:
    """The number of values in ``entry`` with its aliases expanded."""
    sizes: dict[int, float] = {}

    def measure(value: Any) -> float:
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in sizes:
            sizes[id(value)] = 1 + sum(measure(item.value) for item in (value.values() if isinstance(value, dict) else value))
        return sizes[id(value)]

    return measure(entry.value)


@lru_cache(maxsize=64)
def read_text(text: str) -> tuple[Any, str]:
    """The value of a text of at most :data:`LONGEST` characters, and what is wrong with it as YAML. Callers do not change it."""
    root, problems = read_document(text, expected="YAML", needs="it is not read", numbers=True)
    if root is None:
        if not problems:
            return None, ""
        what = problems[0].message.removeprefix("not YAML: ").partition("; expected")[0]
        return None, f"{what} in line {problems[0].line}" if problems[0].line else what
    if size_of(root) > MOST_VALUES:
        return None, f"aliases that expand to more than {MOST_VALUES:,} values"
    return data_of(root), ""
