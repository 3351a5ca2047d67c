"""Runs the rules about files, and those checks of clusters that files alone answer."""

import re
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.identity import bindings, references, roles, secrets, static_keys
from gpuscaler.doctor.checks.pods import resource_names, runtimes
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import Finding, Fix, Report
from gpuscaler.doctor.manifests.all_lints import LINTS
from gpuscaler.doctor.manifests.command_patches import patched
from gpuscaler.doctor.manifests.editing import patch_of
from gpuscaler.doctor.manifests.reading import Manifest, Manifests
from gpuscaler.doctor.running import run_checks

#: Checks of clusters that need nothing but the objects of files.
_CLUSTER_CHECKS: tuple[Check, ...] = (
    *secrets.CHECKS,
    *references.CHECKS,
    *(check for check in static_keys.CHECKS if check.title != "keys of clouds that do not expire"),
    *(check for check in bindings.CHECKS if check.title != "roles of bindings"),
    *(check for check in roles.CHECKS if check.title == "rights that are too wide"),
    *resource_names.CHECKS,
    *(check for check in runtimes.CHECKS if not check.needs),
)
#: Files are a part of a cluster: what is not in them may exist.
_MAY_EXIST = re.compile(r"does not exist$|do not exist$|there is no ")


def check_titles() -> tuple[Check, ...]:
    """All that is looked at, for lists of rules."""
    return (*(Check(lint.id, lint.title, (), lambda _: ()) for lint in LINTS), *_CLUSTER_CHECKS)


def lint_manifests(manifests: Manifests) -> Report:
    """What is wrong with the files."""


    checks = [Check(lint.id, lint.title, (), lambda _, find=lint.find: find(manifests)) for lint in LINTS]
    report = run_checks(_evidence(manifests), [*checks, *(_in_files(check, manifests) for check in _CLUSTER_CHECKS)])
    return Report(report.findings, (*manifests.unread, *report.unchecked))


def _evidence(manifests: Manifests) -> Evidence:
    documents: dict[str, list[Document]] = {}
    for manifest in manifests.items:
        documents.setdefault(manifest.document.kind, []).append(manifest.document)
    return Evidence(manifests.now, {kind: tuple(items) for kind, items in documents.items()})


def _in_files(check: Check, manifests: Manifests) -> Check:
    """``check`` without what may exist outside of the files, with lines, and with patches instead of commands."""
    by_title: dict[str, list[Manifest]] = {}
    for manifest in manifests.items:
        by_title.setdefault(manifest.title, []).append(manifest)

    def find(evidence: Evidence) -> Iterator[Finding]:
        for result in check.find(evidence):
            if isinstance(result, Finding) and not _MAY_EXIST.search(result.seen):
                yield _placed(result, by_title.get(result.object, []))

    return Check(check.id, check.title, (), find)


def _placed(finding: Finding, manifests: Iterable[Manifest]) -> Finding:
    owners = [item for item in manifests if not finding.place or item.document.place == finding.place] or list(manifests)
    if not owners:
        return finding
    manifest = owners[0]
    place = f"{manifest.file.name}:{manifest.line(manifest.path_of(finding.field))}"
    new = patched(manifest.data, finding.fix.commands)
    patch = patch_of(manifest, new) if new is not None else ""
    advice = finding.fix.advice or (f"write {finding.expected}" if not patch else "")
    return Finding(
        finding.check,
        finding.severity,
        finding.object,
        finding.field,
        finding.seen,
        finding.expected,
        finding.effect,
        Fix(advice=advice, patch=patch),
        place,
    )
