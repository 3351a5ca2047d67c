import ast

import pytest
from tests.conformance.mutants import TARGETS, drawn, every_mutant
from tests.conformance.mutating import difference, mutated, mutations

SOURCE = '''
"""Words."""
LIMIT = 3

class Judge:
    """More words."""
    __slots__ = ("seen",)

    def passes(self, amount: int, names: list[str]) -> bool:
        """Whether it passes."""
        if amount > LIMIT and not names:
            return False
        mask = amount
        mask &= 1
        return mask == 1 or "x" in names

    def explain(self) -> str:
        return "because" if LIMIT > 3 else "so"
'''


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("flip", "amount > LIMIT", "if amount >= LIMIT and (not names):"),
        ("swap", "amount > LIMIT and (not names)", "if amount > LIMIT or not names:"),
        ("drop the first condition", "amount > LIMIT and (not names)", "if not names:"),
        ("drop the negation", "not names", "if amount > LIMIT and names:"),
        ("drop", "mask &= 1", "pass"),
        ("one more", "3", "LIMIT = 4"),
        ("not", "False", "return True"),
        ("never", "if amount > LIMIT and (not names):", "if False:"),
        ("another text", "'x'", "return mask == 1 or 'xx' in names"),
    ],
)
def test_a_mutation_changes_one_line(kind: str, before: str, after: str) -> None:
    (mutation,) = [mutation for mutation in mutations(SOURCE) if (mutation.kind, mutation.source) == (kind, before)]
    assert after in [line.strip() for line in mutated(SOURCE, mutation.index).splitlines()]
    shown = difference(SOURCE, mutation.index).splitlines()
    assert [line[1:].strip() for line in shown if line.startswith("+")] == [after]


def test_docstrings_and_explanations_are_not_mutated() -> None:
    assert {mutation.function for mutation in mutations(SOURCE)} == {"", "Judge.passes"}
    assert not [mutation for mutation in mutations(SOURCE) if "seen" in mutation.source or "ords" in mutation.source]


def test_every_mutation_of_a_real_module_changes_it_and_compiles() -> None:
    source = TARGETS[0].read_text()
    original = ast.unparse(ast.parse(source))
    for mutation in mutations(source):
        changed = mutated(source, mutation.index)
        assert changed != original, mutation
        compile(changed, "mutant", "exec")


def test_a_seed_draws_the_same_mutants_every_time() -> None:
    assert drawn(5, 1) == drawn(5, 1)
    assert drawn(5, 1) != drawn(5, 2)
    assert len(set(drawn(30, 1))) == 30


def test_an_edit_of_a_filter_does_not_change_which_other_mutants_are_drawn() -> None:
    every = every_mutant()
    first, *others = drawn(30, 1, every)
    kept = [mutant for mutant in others if mutant.change != first.change]
    assert drawn(len(kept), 1, (mutant for mutant in every if mutant.change != first.change)) == kept
