"""Parses pages of our exporter for the figures of pods: only lines with a pod are parsed, and each label set once.

A compromised node controls what its exporter serves, so all lengths are limited.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

#: Most bytes of a line, and most metrics and figures of a page; everything beyond is ignored.
LONGEST_LINE, MOST_NAMES, MOST_FIGURES = 4096, 100, 20_000
#: A line of the exporter: the name, and the labels with the value after them, which are split by hand. There are no timestamps. Repetitions
#: are possessive (``++``), without backtracking, so that the time to parse a page is linear in its length.
_LINE = re.compile(rb"^((?:nvidia|gpuscaler)_gpu_\w{1,100}+)\{([^\n]{1,%d}+)$" % LONGEST_LINE, re.MULTILINE)
_MEASURED = b"gpuscaler_gpu_last_sample_timestamp_seconds"
_LABEL = re.compile(r'(\w++)="((?:[^"\\]|\\.)*+)"(?:,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPED = re.compile(r"\\.")
#: Metrics that are not for scaling: counters, which only grow, metrics that join figures to containers, and those of single processes.
_NO_FIGURES = re.compile(r"_(total|info|timestamp_seconds|containers)$|_process_")


class Figure(NamedTuple):
    """One figure. ``labels`` are shared by all figures of a device."""

    metric: str
    labels: Mapping[str, str]
    value: float


class Page(NamedTuple):
    """A page. ``measured`` is the oldest measurement time of its devices, in Unix seconds on the node's clock; None without any."""

    figures: tuple[Figure, ...]
    measured: float | None


class PageReader:
    """Parses pages of one exporter; caches label sets, since they hardly ever change."""

    def __init__(self) -> None:
        self._labels: dict[bytes, Mapping[str, str]] = {}

    def read(self, page: bytes) -> Page:
        """Parse ``page``; lines that are not from the exporter, or beyond the limits, are skipped."""
        previous, self._labels = self._labels, {}
        figures: list[Figure] = []
        names: dict[bytes, str] = {}
        times = []
        for name, labels_and_value in _LINE.findall(page):
            text, mark, number = labels_and_value.rpartition(b"} ")
            value = _number(number) if mark else None
            if value is None:
                continue
            if name == _MEASURED:
                times.append(value)
            elif b'pod_name="' in text and len(figures) < MOST_FIGURES and (metric := _name(names, name)):
                labels = previous.get(text)
                self._labels[text] = labels = _labels(text) if labels is None else labels
                figures.append(Figure(metric, labels, value))
        return Page(tuple(figures), min(times) if times else None)


def _name(names: dict[bytes, str], name: bytes) -> str:
    """The name of a metric for scaling; empty for other metrics, and for names beyond the limit."""
    metric_name = names.get(name)
    if metric_name is None:
        if len(names) >= MOST_NAMES:
            return ""
        metric = name.decode()
        metric_name = names[name] = "" if _NO_FIGURES.search(metric) else metric
    return metric_name


def _labels(text: bytes) -> Mapping[str, str]:
    """Parse labels; the result is empty if one of them is invalid."""
    decoded, at, labels = text.decode(errors="replace"), 0, dict[str, str]()
    while at < len(decoded):
        label = _LABEL.match(decoded, at)
        if label is None:
            return {}
        labels[label[1]] = _ESCAPED.sub(lambda mark: _ESCAPES.get(mark[0], mark[0]), label[2])
        at = label.end()
    return labels


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
