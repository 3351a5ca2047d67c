"""Runs checks on evidence. A check that fails is reported as unchecked, and the others go on."""

from collections.abc import Callable, Iterable

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import SEVERITIES, Finding, Report, Unchecked


def run_checks(evidence: Evidence, checks: Iterable[Check], *, is_over: Callable[[], bool] = lambda: False) -> Report:
    """What ``checks`` find in ``evidence``. Each ends after the first result at which the time for it ``is_over``."""
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    for check in checks:
        if missing := tuple(in_part(check.id, check.title, evidence, *check.needs)):
            unchecked += missing
            continue
        results: list[Finding | Unchecked] = []
        try:
            for result in check.find(evidence):
                results.append(result)
                if is_over():
                    results.append(Unchecked(check.id, check.title, "it took too long; what it found until then is shown"))
                    break
        except Exception as error:  # noqa: BLE001 - one odd object must not end the other checks
            # Messages of errors may contain what was read, which no report shows of a Secret.
            text = type(error).__name__ if "Secret" in check.needs else f"{type(error).__name__}: {error}"
            unchecked.append(Unchecked(check.id, check.title, f"the check failed with {text}; please report it"))
            continue
        unchecked += in_part(check.id, check.title, evidence, *check.reads)
        findings += [result for result in results if isinstance(result, Finding)]
        unchecked += [result for result in results if isinstance(result, Unchecked)]
    return merged([Report(tuple(findings), tuple(unchecked))])


def merged(reports: Iterable[Report]) -> Report:
    """Several reports as one, with findings in order of severity and check."""
    everything = tuple(reports)
    findings = [finding for report in everything for finding in report.findings]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), number_of(finding.check), finding.object, finding.field))
    unchecked = tuple(entry for report in everything for entry in report.unchecked)
    patches = tuple(patch for report in everything for patch in report.patches)
    return Report(tuple(findings), unchecked, sum(report.silenced for report in everything), patches)


def number_of(check: str) -> tuple[str, int]:
    """The order of check ids: D9 before D10."""
    letters = check.rstrip("0123456789")
    return letters, int(check[len(letters) :] or 0)
