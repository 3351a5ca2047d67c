"""Pages of our exporter, read for what they say of pods: only lines with a pod are looked at, and each label set once.

Whoever has the node writes what its exporter serves, so that every length is bounded.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

#: Bytes of a line, and metrics and figures of a page, beyond which nothing is read of it.
LONGEST_LINE, MOST_NAMES, MOST_FIGURES = 4096, 100, 20_000
#: A line of the exporter: its name, and labels with the value behind them, which are taken apart by hand. It writes no timestamps. What
#: repeats here takes all it can get and gives nothing back (``++``), so that the time to read a page grows with its length alone.
_LINE = re.compile(rb"^((?:nvidia|gpuscaler)_gpu_\w{1,100}+)\{([^\n]{1,%d}+)$" % LONGEST_LINE, re.MULTILINE)
_MEASURED = b"gpuscaler_gpu_last_sample_timestamp_seconds"
_LABEL = re.compile(r'(\w++)="((?:[^"\\]|\\.)*+)"(?:,|$)')
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
        """What ``page`` says; a line that is none of the exporter's, or beyond the bounds, is passed over."""
        known, self._labels = self._labels, {}
        figures: list[Figure] = []
        names: dict[bytes, str] = {}
        times = []
        for name, rest in _LINE.findall(page):
            text, mark, number = rest.rpartition(b"} ")
            value = _number(number) if mark else None
            if value is None:
                continue
            if name == _MEASURED:
                times.append(value)
            elif b'pod_name="' in text and len(figures) < MOST_FIGURES and (metric := _name(names, name)):
                labels = known.get(text)
                self._labels[text] = labels = _labels(text) if labels is None else labels
                figures.append(Figure(metric, labels, value))
        return Page(tuple(figures), min(times) if times else None)


def _name(names: dict[bytes, str], name: bytes) -> str:
    """Of a figure to scale by; empty for what is none, and for names beyond the bound."""
    found = names.get(name)
    if found is None:
        if len(names) >= MOST_NAMES:
            return ""
        metric = name.decode()
        found = names[name] = "" if _NO_FIGURES.search(metric) else metric
    return found


def _labels(text: bytes) -> Mapping[str, str]:
    """None at all where one of them is no label."""
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
