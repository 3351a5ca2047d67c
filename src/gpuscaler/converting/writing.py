"""Writes objects as YAML or JSON."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

from gpuscaler.converting.objects import Float, Integer, Json

#: Text that is a number or a boolean in kubectl's YAML, but not in PyYAML's.
_DOUBTFUL: Final = re.compile(r"[yYnN]|[-+.]?[0-9].*", re.DOTALL)

_BREAKS: Final = re.compile("[\r\x85\u2028\u2029]")


def write(objects: Iterable[Json]) -> str:
    """Write ``objects`` as YAML, one document for each."""
    return "---\n".join(write_value(manifest) for manifest in objects)


def write_value(value: Any) -> str:
    """Write one value as YAML."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write_json(value: Any) -> str:
    """Write one value as JSON, which has no octal numbers."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as blocks, numbers as they were written, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # Other line breaks, such as U+0085, would be read as a space or end the line.
        style = '"' if _BREAKS.search(data) else "|" if "\n" in data else "'" if _DOUBTFUL.fullmatch(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def represent_number(self, data: Float | Integer) -> yaml.ScalarNode:
        # With the tag that PyYAML itself would read here, it writes none: it takes 1e3 for text.
        tag = self.resolve(yaml.ScalarNode, data.written, (True, False))  # type: ignore[no-untyped-call]  # PyYAML has no types for it
        return yaml.ScalarNode(tag, data.written)


_Dumper.add_representer(str, _Dumper.represent_str)
_Dumper.add_representer(Float, _Dumper.represent_number)
_Dumper.add_representer(Integer, _Dumper.represent_number)
