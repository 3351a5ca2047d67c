"""What a guard of the invariants raises inside the controller's process.

The controller goes on after any error that it did not foresee. A violation must end it: what a guard finds would otherwise be logged and
forgotten.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class Violation(BaseException):  # it is none of the errors that a program goes on after
    """An invariant does not hold. No Exception, so that nothing that goes on after errors goes on after this one."""


@contextmanager
def judged() -> Iterator[None]:
    """Turn assertions of a guard that is asked within into violations."""
    try:
        yield
    except AssertionError as error:
        raise Violation(str(error)) from error
