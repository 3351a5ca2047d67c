"""A check: which sources it needs, and what it finds in them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpuscaler.doctor.documents import TEMPLATES
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import Finding, Unchecked

#: The kinds of the workloads that most checks look at.
WORKLOADS = tuple(TEMPLATES)

Find = Callable[[Evidence], Iterable[Finding | Unchecked]]


@dataclass(frozen=True, slots=True)
class Check:
    """The check ``id`` of ``title``, a noun phrase: "budgets that never allow an eviction".

    Without one of the sources ``needs`` nothing can be said. Of ``reads`` it looks at what could be read. ``find`` may also yield what it
    could not check in part. ``continuous`` checks also run inside the controller: they are cheap, and need what it watches anyway.
    ``on_files`` checks also run on files that people write, in which objects have no status.
    """

    id: str
    title: str
    needs: tuple[str, ...]
    find: Find
    reads: tuple[str, ...] = ()
    continuous: bool = False
    on_files: bool = False


def in_part(check: str, subject: str, evidence: Evidence, *kinds: str) -> Iterator[Unchecked]:
    """What a check that goes on without some kinds could not look at."""
    unread = tuple((kind, evidence.unread[kind]) for kind in dict.fromkeys(kinds) if kind in evidence.unread)
    if unread:
        yield Unchecked(check, subject, "; ".join(f"{kind} could not be read: {reason}" for kind, reason in unread), unread)
