"""One patch for each file, which mends all of its mistakes that a patch can mend."""

from collections.abc import Callable

from msgspec.structs import replace

from gpuscaler.doctor.findings import FilePatch, Finding, Fix, Report
from gpuscaler.doctor.manifests.diffs import Apart, Draft, changes_of
from gpuscaler.doctor.manifests.reading import Manifests, read_manifests

#: Patches that touch each other are made one after the other, each after another look at the files. Two that undo each other have no end.
_ROUNDS = 10


def with_combined_patches(manifests: Manifests, report: Report, look: Callable[[Manifests], Report]) -> Report:
    """``report`` with the patches of files, and with no patch of a finding that these do not contain.

    ``look`` finds what is wrong with changed files.
    """
    drafts = {file.name: Draft(file) for file in manifests.files}
    now = report
    for _ in range(_ROUNDS):
        together: dict[str, Apart] = {}
        is_complete = True
        for finding in now.findings:
            if finding.fix.patch:
                is_complete &= together.setdefault(finding.file, Apart()).add(changes_of(finding.fix.patch))
        for name, part in together.items():
            drafts[name].apply(part.changes)
        if is_complete:
            break
        texts = ((name, draft.file.text) for name, draft in drafts.items())
        now = look(read_manifests(texts, now=manifests.now, machines=manifests.machines, read_rules=manifests.read_rules))
    patches = {name: patch for name, draft in drafts.items() if (patch := draft.diff())}
    left = {_mistake(finding) for finding in now.findings if not finding.fix.patch}
    left -= {_mistake(finding) for finding in report.findings if not finding.fix.patch}
    findings = (_by_hand(item) if _mistake(item) in left or item.file not in patches else item for item in report.findings)
    return replace(report, findings=tuple(findings), patches=tuple(FilePatch(*item) for item in patches.items()))


def _mistake(finding: Finding) -> tuple[str, ...]:
    return finding.check, finding.object, finding.seen


def _by_hand(finding: Finding) -> Finding:
    return replace(finding, fix=Fix(advice=finding.fix.advice or f"write {finding.expected}")) if finding.fix.patch else finding
