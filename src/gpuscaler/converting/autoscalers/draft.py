"""The run file while it is written: what each flag became, and what is said about the flags that became nothing."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuscaler.converting.autoscalers.flags import Flag
from gpuscaler.converting.writing import write_value
from gpuscaler.model.durations import DurationError, parse_positive_duration
from gpuscaler.model.overrides import EVERY_POOL

#: Why a flag has no counterpart.
NOT_NEEDED: Final = "not needed"
OWN: Final = "gpuscaler decides this itself"
UNSUPPORTED: Final = "not supported"
#: gpuscaler does what the flag says without a setting.
SAME: Final = "the same without a setting"

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a flag became nothing, one of the words above, and what happens instead."""

    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.why}: {self.text}"


class Row(NamedTuple):
    """An answer about several flags, which ``names`` lists."""

    why: str
    text: str
    names: str


def answers_by_name(rows: Iterable[Row]) -> dict[str, Answer]:
    """The answers of a table by the names of the flags."""
    return {name: Answer(row.why, row.text) for row in rows for name in row.names.split()}


class UnusableError(ValueError):
    """The value of a flag cannot be used; the text says what was expected."""


@dataclass(slots=True)
class Draft:
    """The values of the chart: ``top`` and what is below are keys of the run file, ``controller`` are settings of its pods."""

    title: str
    cloud: str = ""
    account: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    pace: dict[str, Any] = field(default_factory=dict)
    http: dict[str, Any] = field(default_factory=dict)
    #: Settings of every pool, and of pools by name.
    every: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The groups that pools are named after.
    groups: dict[str, str] = field(default_factory=dict)
    controller: dict[str, Any] = field(default_factory=dict)
    image: str = ""
    #: All that is said, in order; and of that what the file says itself.
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def carried(self, flag: Flag | str, became: str, text: str = "") -> None:
        """Note that a flag became a key."""
        self.notes.append(f"{flag} became {became}{f': {text}' if text else ''}")

    def answered(self, flag: Flag | str, answer: Answer) -> None:
        """Note a flag without a counterpart."""
        self.notes.append(f"{flag} is left out, {answer}")
        if answer.why == UNSUPPORTED:
            self.remarks.append(f"{flag}, {answer}")

    def default(self, name: str, value: str, answer: Answer) -> None:
        """Note that the default of a flag that is not set has no counterpart."""
        self.answered(f"--{name}={value} (the default)", answer)

    def overridden(self, flag: Flag, by: Flag) -> None:
        """Note a flag that does not count."""
        self.notes.append(f"{flag} is left out: {by} comes later, and the last one counts")

    def check(self, text: str) -> None:
        """Note what a person has to look at."""
        self.notes.append(text)
        self.remarks.append(f"check: {text}")

    @property
    def config(self) -> dict[str, Any]:
        """The run file."""
        entries = [{"name": name, **settings} for name, settings in ((EVERY_POOL, self.every), *self.pools.items()) if settings]
        return {
            "cloud": self.cloud,
            self.cloud: self.account,
            **self.top,
            **{key: value for key, value in (("limits", self.limits), ("pace", self.pace), ("http", self.http)) if value},
            **({"pools": entries} if entries else {}),
        }

    @property
    def text(self) -> str:
        """The file: values of the chart, which commands take for the run file in them."""
        head = (
            f"Does what {self.title} did. These are values of the Helm chart with the run file in them. Commands take "
            "them for the run file: `gpuscaler validate` checks it, and `gpuscaler pools` shows what it finds."
        )
        lines = [*_comment(head)]
        for remark in self.remarks:
            lines += _comment(f"- {remark}", indent="  ")
        values: dict[str, Any] = {}
        if self.image:
            values["image"] = _image(self.image)
        values["config"] = self.config
        if self.controller:
            values["controller"] = self.controller
        return "\n".join(lines) + "\n" + write_value(values)


def _comment(text: str, indent: str = "") -> Iterable[str]:
    # A line break in a flag must not end the comment.
    words = " ".join(text.split())
    printable = "".join(letter if letter.isprintable() else "?" for letter in words)
    return textwrap.wrap(printable, _WIDTH, initial_indent="# ", subsequent_indent=f"# {indent}", break_on_hyphens=False)


def _image(image: str) -> dict[str, str]:
    name, at, digest = image.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = name, ""
    return {"repository": repository} | ({"tag": tag} if tag else {}) | ({"digest": digest} if at else {})


def duration(value: str, *, least: float = 0.0) -> str:
    """A duration of Go that the run file takes. Raises :class:`UnusableError`."""
    try:
        seconds = parse_positive_duration(value)
    except DurationError as error:
        raise UnusableError(f"expected {error.expected}") from error
    if seconds < least:
        raise UnusableError(f"expected at least {least:g} s")
    return value.removeprefix("+")


def seconds(value: str, *, least: float = 0.0) -> str:
    """A number of seconds as a duration. Raises :class:`UnusableError`."""
    return duration(f"{whole(value)}s", least=least)


def whole(value: str) -> int:
    """A whole number of 0 or more that fits into 32 bits. Raises :class:`UnusableError`."""
    digits = value.removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise UnusableError("expected a whole number")
    return int(digits)


def is_true(value: str) -> bool:
    """The value of a boolean flag of Go. Raises :class:`UnusableError`."""
    if value.lower() in ("1", "t", "true"):
        return True
    if value.lower() in ("0", "f", "false"):
        return False
    raise UnusableError("expected true or false")
