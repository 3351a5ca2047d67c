"""The findings of the doctor's checks as a part of the status: in groups, as ``gpuscaler doctor`` prints them, and bounded in size."""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from gpuscaler.doctor.findings import Finding, Group, Report, count_words, grouped
from gpuscaler.kube.events import cut_to_bytes

#: The maximum number of groups, of objects named in one, of bytes of a sentence, and of a command, which is left out if it is longer.
MOST, NAMED, SENTENCE, COMMAND = 20, 3, 400, 800


class FindingGroup(Struct, frozen=True, omit_defaults=True):
    """Findings of one check with the same mistake: their number, some of their ``objects``, what is wrong, and how the first is mended."""

    check: str
    severity: str
    count: int
    objects: tuple[str, ...]
    text: str
    fix: str = ""
    page: str = ""


class FindingCount(Struct, frozen=True):
    """The number of findings of one check with one severity."""

    check: str
    severity: str
    count: int


class DoctorStatus(Struct, frozen=True, omit_defaults=True):
    """The result of the last checks, made at ``at`` (seconds since the epoch, 0 if none were made).

    ``more`` is the number of groups that are left out, ``silenced`` that of silenced findings.
    """

    at: float = 0.0
    groups: tuple[FindingGroup, ...] = ()
    more: int = 0
    counts: tuple[FindingCount, ...] = ()
    silenced: int = 0
    unchecked: tuple[str, ...] = ()


def doctor_status(report: Report, at: float) -> DoctorStatus:
    """The status after checks at ``at`` with the result ``report``."""
    groups = grouped(report.findings)
    counts = Counter((finding.check, finding.severity) for finding in report.findings)
    return DoctorStatus(
        at=at,
        groups=tuple(map(_group, groups[:MOST])),
        more=max(0, len(groups) - MOST),
        counts=tuple(FindingCount(check, severity, count) for (check, severity), count in counts.items()),
        silenced=report.silenced,
        unchecked=tuple(cut_to_bytes(f"{entry.check}: {entry.message}", SENTENCE) for entry in report.unchecked[:MOST]),
    )


def _group(group: Group) -> FindingGroup:
    first, objects = group.first, tuple(cut_to_bytes(finding.object, SENTENCE) for finding in group.findings[:NAMED])
    text = cut_to_bytes(describe_mistake(first), SENTENCE)
    return FindingGroup(first.check, first.severity, len(group.findings), objects, text, first_fix(first), first.page)


def describe_mistake(finding: Finding) -> str:
    """What is wrong, without the object."""
    note = f" ({finding.note})" if finding.note else ""
    return f"{finding.field}: saw {finding.seen}, expected {finding.expected}; {finding.effect}{note}"


def first_fix(finding: Finding) -> str:
    """The first command that mends it, else advice. A command that is too long to be shown whole is not shown."""
    command = next(iter(finding.fix.commands), "")
    if command and len(command.encode()) <= COMMAND:
        return command
    return cut_to_bytes(finding.fix.advice, SENTENCE) or ("gpuscaler doctor prints the commands" if command else "")


def describe_group(group: FindingGroup) -> str:
    """``CRITICAL D34 PodDisruptionBudget default/web and 2 more: spec.maxUnavailable: saw 0, …``."""
    more = f" and {group.count - len(group.objects)} more" if group.count > len(group.objects) else ""
    return f"{group.severity.upper()} {group.check} {', '.join(group.objects)}{more}: {group.text}"


def summarize(status: DoctorStatus) -> str:
    """``1 critical, 2 warnings, 0 info, 3 silenced``."""
    counts: Counter[str] = Counter()
    for entry in status.counts:
        counts[entry.severity] += entry.count
    return count_words(counts) + (f", {status.silenced} silenced" if status.silenced else "")


def doctor_lines(status: DoctorStatus) -> Iterator[str]:
    """The lines of ``gpuscaler status``: each group with its first fix, and what could not be checked."""
    for group in status.groups:
        yield describe_group(group)
        if group.fix:
            yield f"  fix: {group.fix}"
    if status.more:
        yield f"{status.more} more; gpuscaler doctor prints all"
    yield from status.unchecked
