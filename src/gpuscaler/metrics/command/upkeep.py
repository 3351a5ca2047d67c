"""Checks for problems that an operator should fix, even while everything works: the certificate, and rights wider than needed."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from gpuscaler.kube.client import Client
from gpuscaler.metrics.command.rights import excessive_autoscaler_rights, excessive_server_rights, has_right
from gpuscaler.model.certificates import certificate_problems
from gpuscaler.serving.tls import LiveTls

_LOG = structlog.get_logger(__name__)
#: Seconds between checks.
CHECK_SECONDS = 60.0


@dataclass(slots=True)
class SelfCheck:
    """Checks the certificate of ``tls``, which should be for ``host``, and rights to ``groups``, while :meth:`run` runs.

    ``findings`` are keyed by subject. ``own_client`` checks its own account; it is None for the kubeconfig of a person, who may have any
    rights. ``client`` checks other accounts. ``wall`` is Unix time.
    """

    tls: LiveTls
    host: str
    own_client: Client | None
    client: Client
    groups: Collection[str]
    wall: Callable[[], float]
    findings: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Run until cancelled. Each finding is logged once, and again when it is resolved."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        findings = {**self._certificate(), **await self._rights()}
        for about, problem in findings.items():
            if self.findings.get(about) != problem:
                _LOG.warning("needs to be fixed", about=about, problem=problem)
        for about in self.findings.keys() - findings.keys():
            _LOG.info("fixed", about=about)
        self.findings = findings

    def _certificate(self) -> dict[str, str]:
        try:
            pem = self.tls.certificate.read_bytes()
        except OSError as error:
            return {"certificate": f"{error.filename}: saw {error.strerror}, expected a PEM file"}
        problems = [*filter(None, [self.tls.trouble]), *certificate_problems(pem, host=self.host, now=self.wall())]
        return {"certificate": f"{self.tls.certificate}: {'; '.join(problems)}"} if problems else {}

    async def _rights(self) -> dict[str, str]:
        checks = [(self.client, right) for right in excessive_autoscaler_rights(self.groups)]
        checks += [(self.own_client, right) for right in excessive_server_rights()] if self.own_client is not None else []
        findings = {}
        for client, right in checks:
            is_held = await has_right(client, right)
            # A right that could not be checked now keeps its last finding.
            if is_held or (is_held is None and right.about in self.findings):
                findings[right.about] = right.problem
        return findings
