"""Answers of AWS as plain data by kind, and the reasons why others are missing."""

from collections.abc import Callable
from typing import TypeVar

from gpuscaler.clouds.aws.api.calls import DeniedError
from gpuscaler.clouds.inspected import Inspected
from gpuscaler.clouds.protocol import CloudError

T = TypeVar("T")


class Inspection(Inspected):
    """What was read of an account of AWS."""

    def ask(self, kind: str, call: Callable[[], T]) -> T | None:
        """The answer of ``call``; None, with the reason in ``unread``, if there is none."""
        try:
            return call()
        except CloudError as error:
            self.miss(kind, error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.note(kind, f"saw {type(error).__name__}: {error} in a reply, expected one as AWS documents it")
        return None

    def miss(self, kind: str, error: CloudError) -> None:
        """``kind`` could not be read because of ``error``."""
        if isinstance(error, DeniedError):
            self.note(kind, f"there is no permission for {error.action} in {error.region}; allow it")
        else:
            self.note(kind, error.detail)
