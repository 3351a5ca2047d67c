"""Pages of our exporter, read for what they say of pods: only lines with a pod are looked at, and each label set once."""

import re
from collections.abc import Mapping
from typing import NamedTuple

#: A line of the exporter: name, labels without braces, value. It writes no timestamps.
_LINE = re.compile(rb'^(nvidia_gpu_\w+|gpuscaler_gpu_\w+)\{([^\n]*pod_name="[^\n]*)\} (\S+)$', re.MULTILINE)
_MEASURED = re.compile(rb"^gpuscaler_gpu_last_sample_timestamp_seconds\{[^\n]*\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPED = re.compile(r"\\.")
#: What is no figure to scale by: counters, which only grow, what joins figures to containers, and what is of single processes.
_NO_FIGURES = re.compile(r"_(total|info|timestamp_seconds|containers)$|_process_")


class Figure(NamedTuple):
    """``labels`` are shared by all figures of a device."""

    metric: str
    labels: Mapping[str, str]
    value: float


class Page(NamedTuple):
    """``measured`` is when the device that was measured longest ago was, Unix seconds on the node's clock; None where nothing was."""

    figures: tuple[Figure, ...]
    measured: float | None


class PageReader:
    """Reads pages of one exporter, whose label sets hardly ever change."""

    def __init__(self) -> None:
        self._labels: dict[bytes, Mapping[str, str]] = {}

    def read(self, page: bytes) -> Page:
        """What ``page`` says; a line that is none of the exporter's is passed over."""
        known, self._labels = self._labels, {}
        figures = []
        for name, text, number in _LINE.findall(page):
            labels = known.get(text)
            self._labels[text] = labels = _labels(text) if labels is None else labels
            metric = name.decode()
            value = _number(number)
            if value is not None and not _NO_FIGURES.search(metric):
                figures.append(Figure(metric, labels, value))
        times = [stamp for text in _MEASURED.findall(page) if (stamp := _number(text)) is not None]
        return Page(tuple(figures), min(times) if times else None)


def _labels(text: bytes) -> Mapping[str, str]:
    found = _LABEL.findall(text.decode(errors="replace"))
    return {label: _ESCAPED.sub(lambda mark: _ESCAPES.get(mark[0], mark[0]), value) for label, value in found}


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
