"""Base of all structures that are decoded: base class, metadata, and the error with a place in an object."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta, Struct

from gpuscaler.model.quantities import shorten_value

#: Whole numbers in the range that Go decodes; an object with a larger one is skipped.
Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Wire(Struct, gc=False, rename="camel", omit_defaults=True):
    """Base of structures that mirror Kubernetes JSON: camelCase names, unknown fields ignored, every field optional and nullable.

    ``gc=False`` is safe because JSON has no cycles; ``omit_defaults`` makes the encoding canonical.
    """


class UnreadableError(ValueError):
    """A field of an object cannot be parsed: ``path`` in the object, what was ``seen`` there and what was ``expected``."""

    def __init__(self, path: str, seen: str, expected: str) -> None:
        super().__init__(f"{path}: saw {seen}, expected {expected}")
        self.path = path
        self.seen = seen
        self.expected = expected


class OwnerReference(Wire):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Metadata(Wire):
    """Metadata without ``annotations``: each kind declares the few that it reads, so that huge ones are skipped."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str | None] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


def parse_timestamp(text: str | None, path: str) -> float:
    """Parse an RFC 3339 time to seconds since the epoch, 0 if there is none."""
    if not text:
        return 0.0
    moment = _moment(text)
    if moment is None:
        raise UnreadableError(path, shorten_value(text), "a time such as 2026-01-31T12:00:00Z")
    return moment


@lru_cache(maxsize=1 << 14)
def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


M = TypeVar("M", bound=Metadata)


def require_name(metadata: M | None) -> tuple[str, M]:
    """Return the name of an object and its metadata. Raises :class:`UnreadableError` without a name, which identifies the object."""
    if metadata is None or not metadata.name:
        raise UnreadableError("metadata.name", "nothing", "the object's name")
    return metadata.name, metadata


class WireObject(Wire):
    """Base of all objects; each kind adds the fields that it reads."""

    kind: str | None = None
    api_version: str | None = None
