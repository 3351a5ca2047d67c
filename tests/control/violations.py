"""The exception that a guard of the invariants raises inside the controller's process.

The controller continues after any unexpected error. A violation must end it: otherwise the findings of a guard would only be logged.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class Violation(BaseException):  # no error after which a program continues
    """An invariant does not hold. It is no Exception, so that handlers of errors do not catch it."""


@contextmanager
def stop_on_violation() -> Iterator[None]:
    """Turn failed assertions of a guard inside the context into violations."""
    try:
        yield
    except AssertionError as error:
        raise Violation(str(error)) from error
