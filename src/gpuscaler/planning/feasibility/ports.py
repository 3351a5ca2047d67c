"""NodePorts: no host port twice on a node.

The wildcard address 0.0.0.0 conflicts with every address; other addresses conflict only if they are equal.
"""

from collections.abc import Iterator

import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.planning.feasibility.tallies import Tallies

WILDCARD = "0.0.0.0"


class PortUse:
    """The host ports that are taken on each row."""

    def __init__(self, table: NodeTable) -> None:
        self._tallies = Tallies(table)
        self._numbers: dict[tuple[str, int], dict[str, int]] = {}

    def add(self, spec: PodSpec, row: int, count: int) -> None:
        for protocol, port, ip in _ports_of(spec):
            self._tallies.add(self._number(protocol, port, ip), row, count)

    def fill(self, spec: PodSpec, rows: Array, counts: Array) -> None:
        for protocol, port, ip in _ports_of(spec):
            self._tallies.fill(self._number(protocol, port, ip), rows, counts)

    def _number(self, protocol: str, port: int, ip: str) -> int:
        numbers = self._numbers.setdefault((protocol, port), {})
        if ip not in numbers:
            numbers[ip] = self._tallies.empty()
        return numbers[ip]

    def passes(self, spec: PodSpec) -> Mask:
        """Rows where none of the pod's host ports is taken."""
        mask = np.ones(len(self._tallies.table), dtype=np.bool_)
        for protocol, port, ip in _ports_of(spec):
            for number in self._meeting(protocol, port, ip):
                mask &= self._tallies.rows(number) <= 0
        return mask

    def _meeting(self, protocol: str, port: int, ip: str) -> Iterator[int]:
        for other, number in self._numbers.get((protocol, port), {}).items():
            if ip == WILDCARD or other in (WILDCARD, ip):
                yield number

    def explain(self, spec: PodSpec, row: int) -> str:
        for protocol, port, ip in _ports_of(spec):
            if any(self._tallies.rows(number)[row] for number in self._meeting(protocol, port, ip)):
                return f"host port {port}/{protocol} is taken"
        return "host ports are free"

    def copy(self) -> "PortUse":
        return self._with(self._tallies.copy())

    def extended(self, table: NodeTable) -> "PortUse":
        return self._with(self._tallies.extended(table))

    def _with(self, tallies: Tallies) -> "PortUse":
        new = PortUse(tallies.table)
        new._tallies = tallies
        new._numbers = {port: dict(numbers) for port, numbers in self._numbers.items()}
        return new


def _ports_of(spec: PodSpec) -> Iterator[tuple[str, int, str]]:
    for wanted in spec.host_ports:
        if wanted.port > 0:
            yield wanted.protocol or "TCP", wanted.port, wanted.ip or WILDCARD
