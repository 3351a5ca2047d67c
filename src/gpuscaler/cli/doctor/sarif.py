"""The report of ``gpuscaler doctor`` as SARIF 2.1.0, which code hosts and editors show beside the lines of files.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from gpuscaler import __version__
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Report

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final[Mapping[str, str]] = {CRITICAL: "error", WARNING: "warning"}


def report_sarif(report: Report, checks: Sequence[Check]) -> dict[str, Any]:
    """``report`` as one run. What could not be checked is a notification of the run, which then was not successful."""
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpuscaler doctor",
                        "semanticVersion": __version__,
                        "rules": [
                            {"id": check, "shortDescription": {"text": "; ".join(titles)}} for check, titles in _titles(checks).items()
                        ],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not report.unchecked,
                        "toolExecutionNotifications": [
                            {"level": "warning", "message": {"text": entry.message}, "associatedRule": {"id": entry.check}}
                            for entry in report.unchecked
                        ],
                    }
                ],
                "results": [_result(finding) for finding in report.findings],
            }
        ],
    }


def _titles(checks: Sequence[Check]) -> dict[str, list[str]]:
    """The titles of each check id: several functions may look for parts of one mistake."""
    titles: dict[str, list[str]] = {}
    for check in checks:
        titles.setdefault(check.id, []).append(check.title)
    return titles


def _result(finding: Finding) -> dict[str, Any]:
    mends = "; ".join(filter(None, (*finding.fix.commands, finding.fix.advice)))
    text = f"{finding.object}: {finding.field}: saw {finding.seen}, expected {finding.expected}; effect: {finding.effect}; fix: {mends}"
    if finding.note:
        text += f"; note: {finding.note}"
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": f"{finding.object}: {finding.field}", "kind": "resource"}]}
    line = finding.place.rpartition(":")[2]
    if finding.file and line.isdigit():
        # As bytes: names of files may be no UTF-8.
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(os.fsencode(finding.file))},
            "region": {"startLine": int(line)},
        }
    return {
        "ruleId": finding.check,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": text},
        "locations": [location],
    }
