"""Makes answers of two subscriptions comparable: values that always differ are normalised.

Within one step, ETags are numbered in the order of their appearance, so two sides are equal if their ETags change at the same moments.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

#: Headers that are compared in every answer, and the beginning of those that are compared where limits are.
HEADERS: Final = ("azure-asyncoperation", "location", "retry-after", "etag", "content-type")
LIMITS: Final = "x-ms-ratelimit-remaining-"
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_URL: Final = re.compile(r"https?://[^\s'\"<>]+")
_HEX: Final = re.compile(r"(?<![A-Za-z0-9])(?=[0-9a-f]*\d)[0-9a-f]{12,}(?![A-Za-z0-9])", re.IGNORECASE)
#: The end of a name that Azure gives a machine of a Flexible scale set, and of its computer.
_MACHINE: Final = re.compile(r"(?<=RUN-flexible_)[0-9a-f]{8}(?![A-Za-z0-9])")
#: The number in names of machines of AKS.
_HASH: Final = re.compile(r"(?<=-)\d{8}(?=-vm)")
#: Parts of an operation's URL that sign it or choose a server.
_SIGNATURE: Final = frozenset({"p", "t", "c", "s", "h"})
_COUNT: Final = re.compile(r"(?<=;)\d+")


class Normalizer:
    """Makes values of a side comparable. ``known`` are its own names, such as that of the run, and what they are called in both."""

    def __init__(self, known: Mapping[str, str]) -> None:
        # The longest first: one name may be a part of another.
        names = sorted(((name, shown) for name, shown in known.items() if name), key=lambda pair: -len(pair[0]))
        # Lists spell groups in capitals.
        capitals = [(name.upper(), f"{shown} in capitals") for name, shown in names if name.upper() != name]
        self._known = [(re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), shown) for name, shown in (*names, *capitals)]
        self._numbers: dict[str, dict[str, int]] = {}

    def step(self, value: Any) -> Any:
        """The result of a step; numbers begin again at 1."""
        self._numbers.clear()
        return self.value(value)

    def value(self, value: Any, key: str = "") -> Any:
        """``value`` without what always differs; ``key`` is its name."""
        match value:
            case dict():
                return {self._text(name): self.value(inner, name) for name, inner in value.items()}
            case list() | tuple():
                return [self.value(item, key) for item in value]
            case str() if key.lower() == "etag":
                bare = value.removeprefix("W/").strip('"')
                return value.replace(bare, self._number("ETAG", bare)) if bare else value
            case str() if key.lower().startswith(LIMITS):
                return "N" if value.isdigit() else _COUNT.sub("N", value)
            case str():
                return self._text(value)
        return value

    def _text(self, text: str) -> str:
        text = _TIME.sub("TIME", _URL.sub(self._url, text))
        for name, shown in self._known:
            text = name.sub(shown, text)
        text = _HASH.sub("HASH", _HEX.sub("HEX", _UUID.sub("UUID", text)))
        return _MACHINE.sub(lambda match: self._number("VM", match.group()), text)

    def _url(self, match: re.Match[str]) -> str:
        parts = urlsplit(match.group())
        names = [f"{name}={value}" for name, value in parse_qsl(parts.query) if name not in _SIGNATURE]
        return f"HOST{parts.path}{'?' if names else ''}{'&'.join(sorted(names))}"

    def _number(self, kind: str, value: str) -> str:
        numbers = self._numbers.setdefault(kind, {})
        return f"{kind}-#{numbers.setdefault(value, len(numbers) + 1)}"
