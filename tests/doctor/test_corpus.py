"""Everything in the broken files is found, and mended by the commands that are printed; clean files have only those that they name."""

import pytest
from tests.doctor.applying import apply_command
from tests.doctor.corpus import FOLDER, CorpusFile, broken_files, clean_files, look_at, objects_of

from gpuscaler.doctor.findings import CRITICAL


@pytest.mark.parametrize("file", broken_files(), ids=lambda file: file.path.stem)
def test_a_broken_file_has_exactly_its_findings_and_the_commands_mend_them(file: CorpusFile) -> None:
    objects = objects_of(file.path)
    report = look_at(objects)

    assert {(finding.check, finding.object) for finding in report.findings} == file.expected
    assert not [entry.message for entry in report.unchecked if "please report it" in entry.reason]
    for finding in report.findings:
        assert finding.fix.commands or finding.fix.advice
        for command in finding.fix.commands:
            objects = apply_command(objects, command)
    assert {(finding.check, finding.object) for finding in look_at(objects).findings} == file.by_hand


@pytest.mark.parametrize("file", clean_files(), ids=lambda file: file.path.stem)
def test_a_clean_file_has_no_critical_finding_and_only_those_that_it_names(file: CorpusFile) -> None:
    report = look_at(objects_of(file.path))

    assert not [finding for finding in report.findings if finding.severity == CRITICAL]
    assert {(finding.check, finding.object) for finding in report.findings} == file.expected
    assert not [entry.message for entry in report.unchecked if "please report it" in entry.reason]


def test_what_this_project_installs_has_no_finding() -> None:
    manifest = FOLDER.parent.parent / "deploy" / "gpuscaler.yaml"

    assert not look_at(objects_of(manifest)).findings
