"""Makes replies of two accounts comparable: values that always differ are normalised."""

import re
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
