"""What the API server adds to what a node tells of itself, and who asks it.

Apart from :mod:`gpuscaler.exporter.attribution.cluster`, so that exporters that ask nobody need no client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuscaler.exporter.parts import Owner
from gpuscaler.kube.resources import Resource


@dataclass(frozen=True, slots=True)
class ApiView:
    """What the server said last. ``slices`` has the UUID of each device by (driver, pool, name)."""

    pods: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    containers: Mapping[str, Owner] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    slices: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    trouble: str = ""


class Server(Protocol):
    """Asks the API server; ``view`` is what it said so far."""

    @property
    def view(self) -> ApiView: ...

    def due(self, resource: Resource) -> bool:
        """Whether enough time has passed since it was last asked for."""
        ...

    async def refresh(self, resource: Resource) -> None:
        """Ask. What goes wrong is told in ``view.trouble``, and what was known stays."""
        ...
