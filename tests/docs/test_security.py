"""Each paragraph of SECURITY.md that makes a claim about the program names an existing test."""

import re
from pathlib import Path

from tests.faults.listing import CASES

ROOT = Path(__file__).parents[2]


def paragraphs() -> list[str]:
    (section,) = re.findall(r"## What the program does.*?\n\n(.*)", (ROOT / "SECURITY.md").read_text(), re.DOTALL)
    return [part for part in re.split(r"^- ", section, flags=re.MULTILINE) if part.strip()]


def test_each_paragraph_of_security_md_names_existing_tests() -> None:
    assert len(paragraphs()) >= 9
    for text in paragraphs():
        files = re.findall(r"`(tests/[\w/.]+)`", text)
        cases = [int(number) for number in re.findall(r"\bF(\d+)\b", text)]
        assert files or cases, f"no test is named: {text[:60]}"
        assert all((ROOT / file).exists() for file in files), text
        assert set(cases) <= set(CASES), text
