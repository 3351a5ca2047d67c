"""The cases, their tests and their mutants, for `docs/reference/faults.md`."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.faults.mutants import MUTANTS

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "reference" / "faults.md"
NAME = re.compile(r"^(?:async )?def (test_f(\d{2,3})_\w+)\(", re.MULTILINE)


def named() -> Iterator[tuple[int, str, str]]:
    """Yield case, file and name of each test."""
    for path in sorted(FOLDER.glob("test_*.py")):
        for match in NAME.finditer(path.read_text()):
            yield int(match[2]), path.name, match[1]


#: Every case with a test or a mutant; test_listed.py rejects a case that lacks one of them.
CASES = tuple(sorted({case for case, _, _ in named()} | {mutant.case for mutant in MUTANTS}))


def files_of(case: int) -> list[str]:
    return sorted({file for number, file, _ in named() if number == case})


def rows() -> list[str]:
    """Return a row of the table for each case, from the names of its tests and the texts of its mutants."""
    tests = sorted(named())
    return [
        f"| F{case} | {'; '.join(sentence(name) for number, _, name in tests if number == case)} | "
        f"{'; '.join(f'`{file}`' for file in files_of(case))} | "
        f"{'; '.join(f'{mutant.removes} (`{mutant.at}`)' for mutant in MUTANTS if mutant.case == case)} |"
        for case in CASES
    ]


def sentence(name: str) -> str:
    return name.split("_", 2)[2].replace("_", " ")
