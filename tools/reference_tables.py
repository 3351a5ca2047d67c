"""Makes the tables in the reference of pools files, run files and descriptions from the classes that parse them.

Each table follows a comment that names its class; the text around it is written by hand.

Usage: ``python tools/reference_tables.py``; tests fail if a page's tables are out of date.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscaler.generating.description.settings import DescriptionSettings
from gpuscaler.settings.fields.table import Group, Key, keys_of
from gpuscaler.settings.pools_file import PolicySettings
from gpuscaler.settings.run_settings import RunSettings

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES = tuple(REFERENCE / name for name in ("pools-file.md", "run-file.md", "aws.md", "azure.md", "description.md"))
_TABLE = re.compile(r"^(<!-- table of (\w+): [^>]* -->\n\n)(?:\|.*\n)*", re.MULTILINE)


def groups() -> dict[str, type[Group]]:
    """The classes by their names; each has a table in one of the pages."""
    assert {PolicySettings, RunSettings, DescriptionSettings} <= set(Group.__subclasses__()), "the modules that have groups are loaded"
    return {group.__name__: group for group in Group.__subclasses__()}


def tables(page: str) -> list[str]:
    """The names of the classes whose tables ``page`` has."""
    return [match[2] for match in _TABLE.finditer(page)]


def filled(page: str) -> str:
    """``page`` with current tables."""
    return _TABLE.sub(lambda match: match[1] + "".join(f"{row}\n" for row in _rows(groups()[match[2]])), page)


def _rows(group: type[Group]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, key in keys_of(group).items():
        yield f"| `{name}` | {key.field.type or key.kind.words} | {_default(key)} | {key.field.meaning} |"


def _default(key: Key) -> str:
    return key.default_words or f"`{_yaml(key.default)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def main() -> None:
    for path in PAGES:
        path.write_text(filled(path.read_text()))


if __name__ == "__main__":
    main()
