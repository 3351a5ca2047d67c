"""Checks for problems that an operator should fix, even while everything works: the certificate, and rights wider than needed."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from gpuscaler.kube.client import Client
from gpuscaler.metrics.command.certificates import mistakes
from gpuscaler.metrics.command.rights import holds, of_autoscalers, of_server
from gpuscaler.serving.tls import LiveTls

_LOG = structlog.get_logger(__name__)
#: Seconds between checks.
LOOK = 60.0


@dataclass(slots=True)
class Upkeep:
    """Checks the certificate of ``tls``, which should be for ``host``, and rights to ``groups``, while :meth:`run` runs.

    ``findings`` are keyed by subject. ``own`` checks its own account; it is None for the kubeconfig of a person, who may have any rights.
    ``others`` checks other accounts. ``wall`` is Unix time.
    """

    tls: LiveTls
    host: str
    own: Client | None
    others: Client
    groups: Collection[str]
    wall: Callable[[], float]
    findings: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Run until cancelled. Each finding is logged once, and again when it is resolved."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        found = {**self._certificate(), **await self._rights()}
        for about, problem in found.items():
            if self.findings.get(about) != problem:
                _LOG.warning("needs to be fixed", about=about, problem=problem)
        for about in self.findings.keys() - found.keys():
            _LOG.info("fixed", about=about)
        self.findings = found

    def _certificate(self) -> dict[str, str]:
        try:
            pem = self.tls.certificate.read_bytes()
        except OSError as error:
            return {"certificate": f"{error.filename}: saw {error.strerror}, expected a PEM file"}
        found = [*filter(None, [self.tls.trouble]), *mistakes(pem, host=self.host, now=self.wall())]
        return {"certificate": f"{self.tls.certificate}: {'; '.join(found)}"} if found else {}

    async def _rights(self) -> dict[str, str]:
        asked = [(self.others, right) for right in of_autoscalers(self.groups)]
        asked += [(self.own, right) for right in of_server()] if self.own is not None else []
        found = {}
        for client, right in asked:
            held = await holds(client, right)
            # A right that could not be checked now keeps its last finding.
            if held or (held is None and right.about in self.findings):
                found[right.about] = right.problem
        return found
