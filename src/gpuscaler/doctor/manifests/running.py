"""Runs the rules about files, and those checks of clusters that files alone answer."""

import copy
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.documents import TEMPLATES, Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import ABSENCE, NAMESPACE, WARNING, Finding, Fix, Report
from gpuscaler.doctor.manifests.all_lints import LINTS
from gpuscaler.doctor.manifests.combining import with_combined_patches
from gpuscaler.doctor.manifests.command_patches import patched
from gpuscaler.doctor.manifests.credentials import without_credentials
from gpuscaler.doctor.manifests.editing import patch_of, renamed
from gpuscaler.doctor.manifests.linting import Lint
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.doctor.manifests.recognising import not_recognised
from gpuscaler.doctor.running import run_checks

#: Checks of clusters that files answer, by what they look for.
_CLUSTER_CHECKS: tuple[Check, ...] = tuple(check for check in CHECKS if check.on_files)
#: A line within a text, as checks write it.
_LINE = re.compile(r"\(line (\d{1,6})\)")


def check_titles() -> tuple[Check, ...]:
    """All that is looked at, for lists of rules."""
    return (*(Check(lint.id, lint.title, (), lambda _: ()) for lint in LINTS), *_CLUSTER_CHECKS)


def lint_manifests(manifests: Manifests) -> Report:
    """What is wrong with the files, and the patches that mend it."""
    report = _looked_at(manifests)
    report = with_combined_patches(manifests, report, _looked_at)
    return replace(report, unchecked=(*not_recognised(manifests), *report.unchecked))


def _looked_at(manifests: Manifests) -> Report:
    checks = [Check(lint.id, lint.title, (), partial(_found, lint, manifests)) for lint in LINTS]
    report = run_checks(_evidence(manifests), [*checks, *(_in_files(check, manifests) for check in _CLUSTER_CHECKS)])
    return Report(tuple(map(_without_credentials, report.findings)), (*manifests.unread, *report.unchecked))


def _without_credentials(finding: Finding) -> Finding:
    texts = {name: without_credentials(getattr(finding, name)) for name in ("object", "field", "seen", "expected", "effect")}
    return replace(finding, **texts, fix=replace(finding.fix, advice=without_credentials(finding.fix.advice)))


def _found(lint: Lint, manifests: Manifests, _: Evidence) -> Iterable[Finding]:
    return lint.find(manifests)


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
            if isinstance(result, Finding) and result.relies_on != ABSENCE:
                yield _placed(result, by_title.get(result.object, []))

    return Check(check.id, check.title, (), find)


def _placed(finding: Finding, manifests: Iterable[Manifest]) -> Finding:
    owners = [item for item in manifests if not finding.place or item.document.place == finding.place] or list(manifests)
    if not owners:
        return finding
    manifest = owners[0]
    # What a check says about limits may be true of a request.
    path = max((manifest.path_of(field) for field in (finding.field, finding.field.replace("limits[", "requests["))), key=len)
    entry, inside = manifest.entry(path), _LINE.search(finding.seen)
    line = manifest.line(path)
    if entry is not None and isinstance(entry.value, str) and "\n" in entry.value and inside is not None:
        line += int(inside[1])  # The text of a block begins on the line after its key.
    if finding.field.startswith("--"):  # A flag, wherever the object has it.
        lines = range(manifest.first, manifest.last + 1)
        line = next((number for number in lines if f"{finding.field}=" in manifest.file.lines[number - 1]), line)
    new = patched(manifest.data, finding.fix.commands) if finding.fix.commands else _edited(manifest, finding, path)
    patch = patch_of(manifest, new) if new is not None else ""
    advice = finding.fix.advice
    if not patch and (finding.fix.commands or not advice):
        advice = "; ".join(filter(None, (f"write {finding.expected}", advice)))
    elif patch and not finding.fix.commands:
        advice = ""
    # Who applies an object without a namespace may name one.
    unsure = not manifest.document.namespace and finding.relies_on == NAMESPACE
    return Finding(
        finding.check,
        WARNING if unsure else finding.severity,
        finding.object,
        finding.field,
        finding.seen,
        finding.expected,
        finding.effect,
        Fix(advice=advice, patch=patch),
        f"{manifest.file.name}:{line}",
    )


def _edited(manifest: Manifest, finding: Finding, path: Path) -> Any:
    """The object without a mistake that no command mends because the object's pods cannot be changed: a file can. None if unknown."""
    if finding.check == "D39" and path and path[-1] == finding.seen:
        return renamed(manifest.data, path, finding.expected.partition(" ")[0])
    if finding.check == "D41" and manifest.document.kind in TEMPLATES:
        return _without_host_paths(manifest, finding)
    return None


def _without_host_paths(manifest: Manifest, finding: Finding) -> Any:
    """The object without the volumes of the host that ``finding`` names, and without their mounts."""
    paths = finding.seen.removeprefix("hostPath ").split(", ")
    new = copy.deepcopy(manifest.data)
    spec: Any = new
    for name in (*TEMPLATES[manifest.document.kind], "spec"):
        spec = spec[name]
    volumes = Document(spec).parts("volumes")
    gone = {item.text("name") for item in volumes if item.text("hostPath", "path").rstrip("/") in paths}
    containers = [item for kind in ("containers", "initContainers") for item in spec.get(kind) or [] if isinstance(item, dict)]
    for holder, field in ((spec, "volumes"), *((item, "volumeMounts") for item in containers)):
        kept = [item for item in holder.get(field) or [] if not (isinstance(item, dict) and item.get("name") in gone)]
        if kept:
            holder[field] = kept
        else:
            holder.pop(field, None)
    return new
