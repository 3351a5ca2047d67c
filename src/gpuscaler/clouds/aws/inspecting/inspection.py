"""Collects answers of AWS as plain data by kind, and the reasons why others are missing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from gpuscaler.clouds.aws.api.calls import Calls, DeniedError
from gpuscaler.clouds.protocol import CloudError

T = TypeVar("T")


class Inspection:
    """What was read: ``documents`` by kind such as ``aws/Subnet``, and in ``unread`` why a kind, or a part of it, could not be read."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.documents: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.unread: dict[str, str] = {}

    def add(self, kind: str, entries: Iterable[Mapping[str, Any]], **more: Any) -> None:
        """Add the entries of an answer, each with the fields ``more``."""
        self.documents[kind] += [{**plain(entry), **more} for entry in entries]

    def ask(self, kind: str, call: Callable[[], T]) -> T | None:
        """The answer of ``call``; None, with the reason in ``unread``, if there is none."""
        try:
            return call()
        except CloudError as error:
            self.miss(kind, error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.note(kind, f"saw {type(error).__name__}: {error} in a reply, expected one as AWS documents it")
        return None

    def read(self, kind: str, service: str, region: str, operation: str, **parameters: Any) -> Mapping[str, Any] | None:
        """The reply to a read-only operation, as :meth:`ask` gives it."""
        return self.ask(kind, partial(self._calls.read, service, region, operation, **parameters))

    def pages(self, kind: str, service: str, region: str, operation: str, key: str, **parameters: Any) -> list[Mapping[str, Any]] | None:
        """The items of all pages of a reply, as :meth:`ask` gives them."""
        return self.ask(kind, lambda: list(self._calls.pages(service, region, operation, key, **parameters)))

    def miss(self, kind: str, error: CloudError) -> None:
        """``kind`` could not be read because of ``error``."""
        if isinstance(error, DeniedError):
            self.note(kind, f"there is no permission for {error.action} in {error.region}; allow it")
        else:
            self.note(kind, error.detail)

    def note(self, kind: str, reason: str) -> None:
        """``kind`` could not be read because of ``reason``."""
        if reason not in self.unread.get(kind, ""):
            self.unread[kind] = f"{self.unread[kind]}; {reason}" if kind in self.unread else reason

    def merge(self, other: "Inspection") -> None:
        """Add what ``other`` read, of another region."""
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
