"""The page of the checks describes each check."""

import re
from pathlib import Path

from gpuscaler.doctor.checks.all_checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"


def test_the_page_of_the_checks_has_a_section_for_each_check() -> None:
    sections = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)

    assert len(sections) == len(set(sections))
    assert {check.id for check in CHECKS} <= set(sections)
