"""Data from the API server that complements what the node itself shows, and the protocol for asking it.

Separate from :mod:`gpuscaler.exporter.attribution.cluster`, so that exporters that do not ask the API server need no client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuscaler.exporter.parts import Owner
from gpuscaler.kube.resources import Resource


@dataclass(frozen=True, slots=True)
class ApiView:
    """The last answers of the API server. ``slices`` has the UUID of each device by (driver, pool, name)."""

    pods: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    containers: Mapping[str, Owner] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    slices: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    trouble: str = ""


class Server(Protocol):
    """Asks the API server; ``view`` has its answers so far."""

    @property
    def view(self) -> ApiView: ...

    def due(self, resource: Resource) -> bool:
        """Whether enough time has passed since the last request for ``resource``."""
        ...

    async def refresh(self, resource: Resource) -> None:
        """Ask for ``resource``. Errors are reported in ``view.trouble``, and earlier answers stay."""
        ...
