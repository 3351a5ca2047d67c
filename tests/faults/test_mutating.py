"""A mutant finds its place by name and pattern in any layout of the source, and reports what is wrong if it does not."""

import ast
import re
from pathlib import Path

import pytest
from tests.faults.mutating import Mutant

ORDERS = """
LIMIT, PAUSE = 3, 1.0


class Orders:
    patience: float = 90.0

    @property
    def most(self):
        return LIMIT

    def buy(self, count, left):
        if count <= self.most and left:
            self.send(count, wait=PAUSE)
        return count


def buy(count):
    leftover = count - 10 * 1.0
    return leftover < LIMIT or "count # LIMIT"
"""

#: The same method in another layout.
LAID_OUT = """
class Orders:
    def buy(self, count, left):
        if count <= \\
                self.most and left:  # and no more

            self.send(
                count,
                wait=PAUSE,
            )
        return count
"""


def package(folder: Path, **modules: str) -> Path:
    sources = folder / "pack"
    sources.mkdir(parents=True)
    for name, text in modules.items():
        (sources / f"{name}.py").write_text(text)
    return sources


def mutant(at: str, old: str, new: str = "None") -> Mutant:
    return Mutant(case=7, at=at, old=old, new=new, removes="nothing")


@pytest.mark.parametrize(
    ("at", "old", "line"),
    [
        ("Orders.buy", "and left", "if count <= self.most NEW:"),
        ("Orders.buy", "count <= self.most", "if NEW and left:"),
        ("Orders.most", "@property", "NEW"),
        ("Orders.patience", "90.0", "patience: float = NEW"),
        ("Orders", "LIMIT", "return NEW"),
        ("orders.buy", "(count)", "def buyNEW:"),
        ("orders.buy", "LIMIT", 'return leftover < NEW or "count # LIMIT"'),
        ("PAUSE", "3, 1.0", "LIMIT, PAUSE = NEW"),
        ("pack.orders.LIMIT", "3", "LIMIT, PAUSE = NEW, 1.0"),
    ],
)
def test_a_mutant_changes_its_pattern_in_the_named_definition(tmp_path: Path, at: str, old: str, line: str) -> None:
    module, changed = mutant(at, old, "NEW").applied(package(tmp_path, orders=ORDERS))

    pairs = zip(ORDERS.splitlines(), changed.splitlines(), strict=True)
    assert (module, [after.strip() for before, after in pairs if before != after]) == ("pack.orders", [line])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("count <= self.most and left", "False"),
        ("self.send(count, wait=PAUSE)", "pass"),
        (", wait=PAUSE", ""),
        ("if count <= self.most and left: self.send(count, wait=PAUSE)", ""),
        ("(\n  count,  # how many\n  wait = PAUSE,\n)", "()"),
    ],
)
def test_a_mutant_applies_whatever_the_layout_of_source_and_pattern(tmp_path: Path, old: str, new: str) -> None:
    changed = mutant("Orders.buy", old, new).applied(package(tmp_path / "plain", orders=ORDERS))
    otherwise = mutant("Orders.buy", old, new).applied(package(tmp_path / "other", orders=LAID_OUT))

    assert purchase(changed[1]) == purchase(otherwise[1]) != purchase(ORDERS)


def purchase(source: str) -> str:
    """Return the method of `Orders`, laid out in one way."""
    orders = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return ast.unparse(orders.body[-1])


def test_a_mutant_applies_after_its_definition_moved_to_another_module(tmp_path: Path) -> None:
    sources = package(tmp_path, orders="", others=ORDERS)

    module, changed = mutant("Orders.buy", "and left", "").applied(sources)

    assert (module, changed) == ("pack.others", ORDERS.replace("and left", ""))


@pytest.mark.parametrize(
    ("at", "old", "saw"),
    [
        ("Orders.buy", "count", "'count' 4 times in pack.orders.Orders.buy (line 12), expected it once; make it longer"),
        ("Orders.buy", "sent", "'sent' 0 times in pack.orders.Orders.buy (line 12), expected it once; 'sent' is nowhere in pack"),
        (
            "Orders.most",
            "left",
            "'left' 0 times in pack.orders.Orders.most (line 8), expected it once; saw 'left' in pack.orders.Orders.buy (line 12)",
        ),
        ("Orders.buy", "", "'' 0 times in pack.orders.Orders.buy (line 12), expected it once"),
        ("Orders.buy", "ount <= self.most", "'ount <= self.most' 0 times"),
        ("Orders.buy", "count < = self.most", "'count < = self.most' 0 times"),
        ("orders.buy", "0 * 1.0", "'0 * 1.0' 0 times"),
        (
            "Orders.sell",
            "and left",
            "0 functions, classes and constants called Orders.sell, expected one; saw 'and left' in pack.orders.Orders.buy (line 12)",
        ),
        ("most", "LIMIT", "0 functions, classes and constants called most, expected one"),
        ("leftover", "count", "0 functions, classes and constants called leftover, expected one"),
        ("rders.buy", "count", "0 functions, classes and constants called rders.buy, expected one"),
        (
            "buy",
            "count",
            "2 functions, classes and constants called buy, expected one; name one of pack.orders.buy (line 18), pack.others.buy (line 1)",
        ),
    ],
)
def test_a_mutant_that_matches_no_or_several_places_reports_what_it_found(tmp_path: Path, at: str, old: str, saw: str) -> None:
    sources = package(tmp_path, orders=ORDERS, others="def buy(count): ...\n")

    with pytest.raises(ValueError, match=re.escape(f"the mutant of F7 at {at}: saw {saw}")):
        mutant(at, old).applied(sources)
