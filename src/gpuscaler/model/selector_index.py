"""Indexes of selectors by requested labels, and of objects by their labels, to avoid matching all pairs.

A selector is indexed by one of its ``In`` requirements: the most selective one. The order in the selector does not matter: if a common
label came before a unique one, every search would have to go through all objects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuscaler.model.selectors import Labels, LabelSelector, Requirement


class SelectorIndex:
    """Selectors, numbered in the order of addition."""

    def __init__(self, selectors: Iterable[LabelSelector | None] = ()) -> None:
        self._count = 0
        self._by_label: dict[tuple[str, str], list[int]] = {}
        self._others: list[int] = []
        self._shared = False
        for selector in selectors:
            self.add(selector)

    def copy(self) -> "SelectorIndex":
        """Return an independent index of the same selectors."""
        new = SelectorIndex()
        new._count, new._by_label, new._others = self._count, self._by_label, self._others
        # Shared parts are copied on the first addition, which most copies never have.
        new._shared = self._shared = True
        return new

    def add(self, selector: LabelSelector | None) -> int:
        """Add ``selector`` and return its number; None matches nothing, and is never found."""
        number, self._count = self._count, self._count + 1
        if selector is None:
            return number
        if self._shared:
            self._by_label = {label: numbers.copy() for label, numbers in self._by_label.items()}
            self._others, self._shared = self._others.copy(), False
        narrowest = _narrowest(selector, self._by_label)
        if narrowest is None:
            self._others.append(number)
        for value in dict.fromkeys(narrowest.values if narrowest is not None else ()):
            self._by_label.setdefault((narrowest.key, value), []).append(number)  # type: ignore[union-attr]  # no values without one
        return number

    def candidates(self, labels: Labels, since: int = 0) -> list[int]:
        """Return the numbers, from ``since`` on, of selectors that may match ``labels``, in order."""
        lists = [self._others, *(self._by_label.get(label, ()) for label in labels.items())]
        return sorted(number for numbers in lists for number in _from(numbers, since))


class LabelIndex:
    """Objects by namespace and label, numbered in the given order."""

    def __init__(self, objects: Iterable[tuple[str, Labels]]) -> None:
        self._all: dict[str, list[int]] = {}
        self._by_label: dict[str, dict[tuple[str, str], list[int]]] = {}
        for number, (namespace, labels) in enumerate(objects):
            self._all.setdefault(namespace, []).append(number)
            of_namespace = self._by_label.setdefault(namespace, {})
            for label in labels.items():
                of_namespace.setdefault(label, []).append(number)

    def candidates(self, namespace: str, selector: LabelSelector | None) -> Iterator[int]:
        """Yield the numbers of objects in ``namespace`` that ``selector`` may match; all of them if there is no selector."""
        by_label = self._by_label.get(namespace, {})
        narrowest = _narrowest(selector, by_label) if selector is not None else None
        if narrowest is None:
            yield from self._all.get(namespace, ())
        else:
            for value in dict.fromkeys(narrowest.values):
                yield from by_label.get((narrowest.key, value), ())


def _narrowest(selector: LabelSelector, by_label: Mapping[tuple[str, str], Sequence[int]]) -> Requirement | None:
    """Return the most selective ``In`` requirement of ``selector``, the first of several."""
    best, least = None, 0
    for requirement in selector.requirements:
        if requirement.operator != "In":
            continue
        matches = sum(len(by_label.get((requirement.key, value), ())) for value in requirement.values)
        if best is None or (matches, len(requirement.values)) < (least, len(best.values)):
            best, least = requirement, matches
    return best


def _from(numbers: Sequence[int], since: int) -> Iterable[int]:
    """Return the elements of the sorted ``numbers`` that are not below ``since``."""
    if not numbers or numbers[-1] < since:
        return ()
    return numbers if numbers[0] >= since else (number for number in numbers if number >= since)
