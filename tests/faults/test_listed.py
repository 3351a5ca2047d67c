"""The list of faults is complete: each fault has a test, a mutant that still applies, and a row in the documentation."""

import pytest
from tests.faults.listing import CASES, PAGE, named, rows
from tests.faults.mutants import MUTANTS
from tests.faults.mutating import Mutant


@pytest.mark.parametrize("case", CASES, ids="F{}".format)
def test_each_fault_has_a_test_with_its_number(case: int) -> None:
    assert [name for number, _, name in named() if number == case]


@pytest.mark.parametrize("case", CASES, ids="F{}".format)
def test_each_fault_has_a_mutant(case: int) -> None:
    assert [mutant for mutant in MUTANTS if mutant.case == case]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"F{mutant.case}-{mutant.at}")
def test_each_mutant_changes_exactly_one_place_and_is_valid_python(mutant: Mutant) -> None:
    module, source = mutant.applied()
    compile(source, module, "exec")
    assert mutant.old != mutant.new


def test_the_page_of_faults_has_the_generated_row_of_each_fault() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| F")]

    assert lines == rows(), "python -m tests.faults --table prints the expected rows"
