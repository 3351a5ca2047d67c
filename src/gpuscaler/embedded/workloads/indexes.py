"""Sets of indexes as a Job's status writes them: ``1,3-5,7``."""

from collections.abc import Iterable


def indexes_of(text: str) -> set[int]:
    """Parse ``text`` into its indexes."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes


def text_of(indexes: Iterable[int]) -> str:
    """Format indexes, runs of three or more as a range."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}" for first, last in runs)
