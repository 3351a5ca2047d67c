"""Checks that run inside the controller find the same on what it watches as with all documents, and nothing else."""

import pytest
from tests.doctor.corpus import NOW, CorpusFile, broken_files, clean_files, objects_of

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.running import run_checks

#: A kind that the controller does not watch, and a pod that the API server refuses: its resource has a name without a domain.
NOT_WATCHED = ("CronJob ", "Pod default/alone")
CONTINUOUS = [check for check in CHECKS if check.continuous]


def found(path_objects: list[dict[str, object]], *, documents: bool) -> set[tuple[str, str, str]]:
    evidence = evidence_of_objects(path_objects, now=NOW)
    if not documents:
        evidence = Evidence(NOW, cluster=evidence.cluster)
    report = run_checks(evidence, CONTINUOUS)
    assert not report.unchecked
    return {(finding.check, finding.severity, finding.object) for finding in report.findings}


@pytest.mark.parametrize("file", broken_files(), ids=lambda file: file.path.stem)
def test_the_same_is_found_without_documents(file: CorpusFile) -> None:
    objects = objects_of(file.path)

    without, everything = found(objects, documents=False), found(objects, documents=True)

    assert without == {finding for finding in everything if not finding[2].startswith(NOT_WATCHED)}


@pytest.mark.parametrize("file", clean_files(), ids=lambda file: file.path.stem)
def test_nothing_else_is_found_in_clean_clusters_without_documents(file: CorpusFile) -> None:
    objects = objects_of(file.path)

    assert found(objects, documents=False) == found(objects, documents=True)
