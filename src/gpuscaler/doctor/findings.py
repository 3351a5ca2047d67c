"""Findings: what is wrong with one object, what that costs, and how it is mended."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import force_setattr

CRITICAL, WARNING, INFO = "critical", "warning", "info"
#: From the most to the least severe.
SEVERITIES = (CRITICAL, WARNING, INFO)
#: A finding is only true if something else really does not exist, or if the object really is in the namespace that it is taken to be in.
ABSENCE, NAMESPACE = "absence", "namespace"


_ODD_NAME = "mend it by hand: no command is shown, because a name in it could be taken for an option or for another object"


class Fix(Struct, frozen=True, gc=False):
    """How a finding is mended: ``commands`` for a shell, each complete, and ``advice`` where a person has to decide or edit a file.

    ``patch`` is a unified diff of the file with the mistake, which ``patch -p0`` applies to the file as it was read. If one of the commands
    is empty, because no safe one can be made, there is none: they belong together.
    """

    commands: tuple[str, ...] = ()
    advice: str = ""
    patch: str = ""

    def __post_init__(self) -> None:
        if not all(self.commands):
            force_setattr(self, "commands", ())
            force_setattr(self, "advice", "; ".join(filter(None, (_ODD_NAME, self.advice))))


class Finding(Struct, frozen=True, gc=False):
    """A mistake in ``field`` of ``object``, which is ``Kind namespace/name``, found by the check with the id ``check``.

    ``seen`` and ``expected`` are the values; ``effect`` is what it breaks or costs, as a clause: "no pod can be evicted". ``place`` is
    ``file:line`` where a file was read. ``note`` is a remark, as a clause: that an exception for it has ended. ``relies_on`` is what the
    finding relies on beside the object itself, since files are only a part of a cluster: :data:`ABSENCE` or :data:`NAMESPACE`.
    """

    check: str
    severity: str
    object: str
    field: str
    seen: str
    expected: str
    effect: str
    fix: Fix = Fix()
    place: str = ""
    note: str = ""
    relies_on: str = ""

    @property
    def file(self) -> str:
        """The file of :attr:`place`; empty if no file was read."""
        return self.place.rpartition(":")[0]

    @property
    def page(self) -> str:
        """The page of the documentation about the check."""
        return f"docs/reference/doctor.md#{self.check.lower()}"


class Unchecked(Struct, frozen=True, gc=False):
    """Something that the check ``check`` could not look at (``subject``), and why.

    ``unread`` are the sources that could not be read, each with the reason, if nothing else is why.
    """

    check: str
    subject: str
    reason: str
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def message(self) -> str:
        return f"could not check {self.subject} because {self.reason}"


class FilePatch(Struct, frozen=True, gc=False):
    """The unified diff of ``file`` that mends all of its findings with a patch, together."""

    file: str
    patch: str


class Report(Struct, frozen=True, gc=False):
    """The result of all checks: findings in order of severity and check, and what could not be checked.

    ``silenced`` is the number of findings that are left out, because a user accepts them. ``patches`` mend files.
    """

    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    silenced: int = 0
    patches: tuple[FilePatch, ...] = ()

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """The findings of ``severity`` or worse."""
        return tuple(finding for finding in self.findings if SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity))


def count_words(counts: Mapping[str, int]) -> str:
    """Numbers of findings by severity: ``1 critical, 2 warnings, 0 info``."""
    plural = {WARNING: "" if counts.get(WARNING) == 1 else "s"}
    return ", ".join(f"{counts.get(severity, 0):,} {severity}{plural.get(severity, '')}" for severity in SEVERITIES)


class Group(Struct, frozen=True, gc=False):
    """The findings of one check with the same mistake, the first of which is shown."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]


def grouped(findings: tuple[Finding, ...]) -> tuple[Group, ...]:
    """``findings`` in groups that differ only in their object, place and commands, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        same = (finding.field, finding.seen, finding.expected, finding.effect, finding.fix.advice, finding.note)
        key = (finding.check, finding.severity, *same)
        groups.setdefault(key, []).append(finding)
    return tuple(Group(tuple(group)) for group in groups.values())
