"""Collects answers of a cloud as plain data by kind, and the reasons why others are missing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any


class Inspected:
    """What was read: ``documents`` by kind such as ``aws/Subnet``, and in ``unread`` why a kind, or a part of it, could not be read."""

    def __init__(self) -> None:
        self.documents: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.unread: dict[str, str] = {}

    def add(self, kind: str, entries: Iterable[Mapping[str, Any]], **more: Any) -> None:
        """Add the entries of an answer, each with the fields ``more``."""
        self.documents[kind] += [{**plain(entry), **more} for entry in entries]

    def note(self, kind: str, reason: str) -> None:
        """``kind`` could not be read because of ``reason``."""
        if reason not in self.unread.get(kind, ""):
            self.unread[kind] = f"{self.unread[kind]}; {reason}" if kind in self.unread else reason

    def merge(self, other: "Inspected") -> None:
        """Add what ``other`` read, of another part of the account."""
        for kind, entries in other.documents.items():
            self.documents[kind] += entries
        for kind, reason in other.unread.items():
            self.note(kind, reason)


def plain(value: Any) -> Any:
    """A value of an answer with times as seconds since the epoch, and lists for all sequences."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.timestamp()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
