"""Answers of clouds that need not be read again, in memory and on disk.

A file on disk is validated like any outside input: one that cannot be decoded is ignored.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")

#: How long an empty answer is valid, in seconds, such as a type that the region does not know.
EMPTY_SECONDS = 3_600.0


class DatedAnswer(Struct, Generic[T], frozen=True):
    """A value that was read ``at``, in seconds since the epoch."""

    at: float
    value: T

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Whether the answer is valid for ``seconds``. An empty answer expires sooner, since a cloud may add what was missing any day."""
        # A time in the future comes from another clock and cannot be trusted.
        return 0 <= now - self.at < (seconds if self.value else min(seconds, EMPTY_SECONDS))


def load_answers(file: Path, kind: type[T]) -> T | None:
    """What an earlier process saved in ``file``; None if it cannot be read or is not a ``kind``."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def save_answers(answers: Any, file: Path) -> None:
    """Save ``answers``; a folder that cannot be written only costs calls at the next start."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(msgspec.json.encode(answers))
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
