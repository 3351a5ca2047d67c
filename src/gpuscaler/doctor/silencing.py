"""Findings that are not reported: exceptions in the run file, each with a reason and an end date, and an annotation on the object.

An exception that has ended silences nothing: the finding is back, and says so.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import Finding, Report
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.options import IGNORE_FINDINGS, NO_CHECKS, parse_ignored_findings

#: Stands for all checks in the annotation.
_ALL = "ALL"


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
    """``report`` without the findings that an exception or an annotation silences, with their number."""
    by_check: dict[str, list[Exemption]] = {}
    for exemption in exemptions:
        by_check.setdefault(exemption.check_id.upper(), []).append(exemption)
    ignored_by = _annotations(evidence)
    kept: list[Finding] = []
    for finding in report.findings:
        if not ignored_by(finding.object).isdisjoint((finding.check, _ALL)):
            continue
        matching = [entry for entry in by_check.get(finding.check, ()) if _pattern(entry.object).fullmatch(finding.object)]
        if any(evidence.now < _end(entry.until) for entry in matching):
            continue
        kept.append(replace(finding, note=_ended(max(matching, key=lambda entry: entry.until))) if matching else finding)
    return replace(report, findings=tuple(kept), silenced=report.silenced + len(report.findings) - len(kept))


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
