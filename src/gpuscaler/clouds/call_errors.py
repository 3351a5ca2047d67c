"""Calls of a cloud that fail: those that fail now, for the status and the log, and how many have failed, for the metrics."""

from collections import Counter

from msgspec import Struct

from gpuscaler.clouds.protocol import UNKNOWN, CloudError

#: What calls are for: the list of machines, the cloud's notices, following orders, withdrawing orders, reading the account.
MACHINES, NOTICES, ORDERS, WITHDRAWALS, ACCOUNT = "machines", "notices", "orders", "withdrawals", "account"


class CallError(Struct, frozen=True, gc=False):
    """A call that fails: what it is for (``part``), the ``cause`` in a word, and ``text`` for people.

    ``object`` is the part of the account that cannot be read, such as a subscription; empty for other calls.
    """

    part: str
    cause: str
    text: str
    object: str = ""

    @property
    def about(self) -> str:
        return f"{self.part}: {self.object}" if self.object else self.part


class CallErrors:
    """The calls that fail now: ``failing``, by a name of the call. ``counts`` are the failed calls so far, by part and cause."""

    def __init__(self) -> None:
        self.failing: dict[str, CallError] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    def fail(self, name: str, error: CallError) -> None:
        """A call has failed."""
        self.failing[name] = error
        self.counts[error.part, error.cause] += 1

    def succeed(self, name: str) -> None:
        """A call has succeeded, or is no longer made."""
        self.failing.pop(name, None)

    @property
    def text(self) -> str:
        """What fails now, for people; empty if nothing does."""
        return "; ".join(dict.fromkeys(error.text for error in self.failing.values()))


def cause_of(error: BaseException) -> str:
    """The cause of an error of a call in a word; an answer that never came or cannot be understood has none."""
    return error.cause if isinstance(error, CloudError) else UNKNOWN
