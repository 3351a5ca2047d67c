"""Findings that are not reported: exceptions in the run file, each with a reason and an end date, and an annotation on the object.

An exception that has ended silences nothing: the finding is back, and says so. A name that no check has silences nothing either, and is a
finding itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix, Report
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.options import IGNORE_FINDINGS, NO_CHECKS, parse_ignored_findings
from gpuscaler.model.quantities import shorten_value

#: Stands for all checks in the annotation.
_ALL = "ALL"
#: The id of findings about names that no check has.
UNKNOWN = "S1"
_KNOWN = frozenset(check.id for check in CHECKS) | {UNKNOWN}


class Exemption(Protocol):
    """An exception: findings of one check about objects that match ``object`` are not reported, up to the day ``until``, inclusive.

    ``object`` is ``Kind namespace/name``, in which ``*`` stands for any characters; ``until`` is a date such as 2027-01-31, in UTC.
    """

    @property
    def check_id(self) -> str: ...
    @property
    def object(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def until(self) -> str: ...


def silence(report: Report, evidence: Evidence, exemptions: Iterable[Exemption] = ()) -> Report:
    """``report`` without the findings that an exception or an annotation silences, with their number.

    With a finding for each name in an exception or an annotation that no check has.
    """
    by_check: dict[str, list[Exemption]] = {}
    for exemption in (listed := tuple(exemptions)):
        by_check.setdefault(exemption.check_id.upper(), []).append(exemption)
    ignored_by = _annotations(evidence)
    kept: list[Finding] = []
    findings = (*report.findings, *_unknown_in_file(listed), *_unknown_in_annotations(evidence))
    for finding in findings:
        if not ignored_by(finding.object).isdisjoint((finding.check, _ALL)):
            continue
        matching = [entry for entry in by_check.get(finding.check, ()) if _pattern(entry.object).fullmatch(finding.object)]
        if any(evidence.now < _end(entry.until) for entry in matching):
            continue
        kept.append(replace(finding, note=_ended(max(matching, key=lambda entry: entry.until))) if matching else finding)
    return replace(report, findings=tuple(kept), silenced=report.silenced + len(findings) - len(kept))


def _unknown_in_file(exemptions: Iterable[Exemption]) -> Iterator[Finding]:
    for number, exemption in enumerate(exemptions):
        if (name := exemption.check_id.upper()) not in _KNOWN:
            advice = f"correct the id in the run file, or remove the exception for {exemption.object}"
            yield _unknown("run file", f"doctor.ignore[{number}].check", name, advice)


def _unknown_in_annotations(evidence: Evidence) -> Iterator[Finding]:
    seen = {**dict(_all_in_model(evidence.cluster)), **dict(_in_documents(evidence))}
    for title, names in sorted(seen.items()):
        for name in sorted(names - _KNOWN - {_ALL}):
            advice = "correct the id in the annotation; for a pod, in the template of what creates it"
            yield _unknown(title, f"metadata.annotations[{IGNORE_FINDINGS}]", name, advice)


def _unknown(title: str, field: str, name: str, advice: str) -> Finding:
    of_files = name.startswith("L")
    # Ids differ in their numbers only, so that another number is no slip of the pen: 34 and D034 are.
    meant = "" if of_files else f"D{re.sub(r'^[^0-9]*0*', '', name)}"
    expected = f"{meant} (did you mean that?)" if meant in _KNOWN else "the id of a check of clusters, D1 to D48"
    effect = f"it silences nothing: {'rules about files have no exceptions' if of_files else 'no check has this id'}"
    return Finding(UNKNOWN, WARNING, title, field, shorten_value(name), expected, effect, Fix(advice=advice))


def _ended(exemption: Exemption) -> str:
    return f'the exception for it ("{exemption.reason}") ended on {exemption.until}'


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", text))), re.DOTALL)


def _end(date: str) -> float:
    """The end of a day, in seconds since the epoch."""
    return (datetime.fromisoformat(date).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()


def _annotations(evidence: Evidence) -> Callable[[str], frozenset[str]]:
    """A function that returns what the annotation of an object says, by the object's title."""
    of_documents = dict(_in_documents(evidence))

    def ignored(title: str) -> frozenset[str]:
        return of_documents.get(title, NO_CHECKS) | _in_model(evidence.cluster, title)

    return ignored


def _in_documents(evidence: Evidence) -> Iterator[tuple[str, frozenset[str]]]:
    for documents in evidence.documents.values():
        for document in documents:
            if text := document.annotations.get(IGNORE_FINDINGS):
                yield document.title, parse_ignored_findings(text)


def _all_in_model(cluster: Cluster) -> Iterator[tuple[str, frozenset[str]]]:
    """The objects that planning reads and that have the annotation, by title."""
    homes: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("Pod ", cluster.pods),
        ("Node ", cluster.nodes),
        ("PodDisruptionBudget ", cluster.budgets),
        ("Namespace ", cluster.namespaces),
        ("", cluster.workloads),
    )
    for kind, home in homes:
        for name, item in home.items():
            if ignored := getattr(item, "ignored_findings", NO_CHECKS):
                yield (f"{kind}{name}" if kind else name.replace("/", " ", 1)), ignored


def _in_model(cluster: Cluster, title: str) -> frozenset[str]:
    """What the annotation says of an object that planning reads."""
    kind, _, name = title.partition(" ")
    homes: Mapping[str, Mapping[str, object]] = {
        "Pod": cluster.pods,
        "Node": cluster.nodes,
        "PodDisruptionBudget": cluster.budgets,
        "Namespace": cluster.namespaces,
    }
    found = homes[kind].get(name) if kind in homes else cluster.workloads.get(f"{kind}/{name}")
    ignored: frozenset[str] = getattr(found, "ignored_findings", NO_CHECKS)
    return ignored
