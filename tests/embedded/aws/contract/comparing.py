"""Compares replies of two accounts: values that always differ are normalised, every other difference is reported."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_ID = re.compile(r"\b(i|lt|subnet|vpc|sg|eni|ami|vol|cr|fleet)-[0-9a-z]+\b")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?")
_ZONE = re.compile(r"REGION[a-z]\b|\b[a-z]{3,4}\d-az\d\b")
_HOST = re.compile(r"https?://[^/\s]+")


class Normalizer:
    """Makes texts of an ``account`` in a ``region`` comparable: ids are numbered in the order of their appearance."""

    def __init__(self, account: str, region: str) -> None:
        self._known = {account: "ACCOUNT", region: "REGION"}
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def value(self, value: Any) -> Any:
        """``value`` without values that always differ; metadata of replies is left out."""
        match value:
            case dict():
                return {key: self.value(value[key]) for key in sorted(value) if key != "ResponseMetadata"}
            case list() | tuple():
                return [self.value(item) for item in value]
            case datetime():
                return "TIME"
            case str():
                return self._text(value)
        return value

    def _text(self, text: str) -> str:
        text = _UUID.sub("UUID", _TIME.sub("TIME", _HOST.sub("HOST", _ID.sub(self._numbered, text))))
        for known, name in self._known.items():
            text = text.replace(known, name)
        return _ZONE.sub("ZONE", text)

    def _numbered(self, match: re.Match[str]) -> str:
        if match.group() not in self._ids:
            kind = match[1]
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._ids[match.group()] = f"{kind}-#{self._counts[kind]}"
        return self._ids[match.group()]


def differences(account: Any, emulated: Any, path: str = "") -> Iterator[str]:
    """A sentence for each place in which ``emulated`` differs from ``account``."""
    if isinstance(account, Mapping) and isinstance(emulated, Mapping):
        for key in sorted({*account, *emulated}):
            place = f"{path}.{key}" if path else str(key)
            if key not in emulated:
                yield f"{place}: only the account has it: {account[key]!r}"
            elif key not in account:
                yield f"{place}: only ours has it: {emulated[key]!r}"
            else:
                yield from differences(account[key], emulated[key], place)
    elif isinstance(account, list) and isinstance(emulated, list) and len(account) == len(emulated):
        for number, (left, right) in enumerate(zip(account, emulated, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif account != emulated:
        yield f"{path}: the account says {account!r}, ours says {emulated!r}"
