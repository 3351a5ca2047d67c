"""Maximum and mean over trailing windows, so that every scraper sees a burst between two scrapes, and the same one."""

from collections import deque
from typing import NamedTuple


class Figures(NamedTuple):
    maximum: float
    mean: float


class SampleWindow:
    """The samples of one field, as far back as the longest window. Reading does not change it."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._samples: deque[tuple[float, float, float]] = deque()

    def add(self, at: float, value: float, peak: float | None = None) -> None:
        """Add a sample. ``peak`` is the highest value since the previous sample, if known. Times are seconds and only grow."""
        self._samples.append((at, value, value if peak is None else max(peak, value)))
        while self._samples[0][0] <= at - self._longest:
            self._samples.popleft()

    def over(self, seconds: float, *, now: float) -> Figures | None:
        """Figures over the ``seconds`` before ``now``; None without a sample. All samples have equal weight: the interval is constant."""
        since = now - seconds
        inside = [sample for sample in self._samples if sample[0] > since]
        if not inside:
            return None
        _, values, peaks = zip(*inside, strict=True)
        return Figures(max(peaks), sum(values) / len(values))
