"""Answers of AWS as plain data by kind, and the reasons why others are missing."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from gpuscaler.clouds.aws.api.calls import Calls, DeniedError
from gpuscaler.clouds.inspected import Inspected
from gpuscaler.clouds.protocol import CloudError

T = TypeVar("T")
#: Concurrent calls per region.
AT_ONCE = 8


class Inspection(Inspected):
    """What was read of an account of AWS."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

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
        return self.ask(kind, partial(self.calls.read, service, region, operation, **parameters))

    def pages(
        self, kind: str, service: str, region: str, operation: str, key: str, *, most: int | None = None, **parameters: Any
    ) -> list[Mapping[str, Any]] | None:
        """The items of all pages of a reply, or the first ``most``, as :meth:`ask` gives them."""
        return self.ask(kind, lambda: list(islice(self.calls.pages(service, region, operation, key, **parameters), most)))

    def read_each(self, items: Iterable[T], read: Callable[[T, "Inspection"], None]) -> None:
        """Call ``read`` for each of ``items``, several at a time, with an inspection of its own, and add what it read."""

        def read_one(item: T) -> Inspection:
            part = Inspection(self.calls)
            read(item, part)
            return part

        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="aws-each") as workers:
            for part in workers.map(read_one, items):
                self.merge(part)

    def miss(self, kind: str, error: CloudError) -> None:
        """``kind`` could not be read because of ``error``."""
        if isinstance(error, DeniedError):
            self.note(kind, f"there is no permission for {error.action} in {error.region}; allow it")
        else:
            self.note(kind, error.detail)
