"""Least, desired and greatest numbers that are not in this order."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.fields.programs import ORDERS
from gpuscaler.doctor.manifests.fields.shapes import Part, parts_of, refusal
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifests


def find_sizes_out_of_order(manifests: Manifests) -> Iterable[Finding]:
    """L26: a minimum above a maximum, or a desired number outside of both."""
    for manifest in manifests.items:
        for part in parts_of(manifest):
            yield from _out_of_order(part, ORDERS.get(part.name, ()))


def _out_of_order(part: Part, names: tuple[str, ...]) -> Iterator[Finding]:
    numbers = {name: part.data.get(name) for name in names}
    given = [(name, value) for name, value in numbers.items() if isinstance(value, int) and not isinstance(value, bool)]
    for (low, less), (high, more) in pairwise(given):
        if less > more:
            mistake = Mistake("L26", CRITICAL, refusal(part.manifest))
            yield mistake.at(
                part.manifest,
                (*part.path, high),
                seen=f"{low} {less} and {high} {more}",
                expected=f"a {high} that is not below {low}",
                advice=f"raise {high}, or lower {low}",
            )


LINTS = (Lint("L26", "sizes that are out of order", find_sizes_out_of_order),)
