"""What an operator should mend although everything works, or nothing does: the certificate, and rights that are wider than needed."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from gpuscaler.kube.client import Client
from gpuscaler.metrics.command.certificates import mistakes
from gpuscaler.metrics.command.rights import holds, of_autoscalers, of_server
from gpuscaler.serving.tls import LiveTls

_LOG = structlog.get_logger(__name__)
#: Seconds between looks.
LOOK = 60.0


@dataclass(slots=True)
class Upkeep:
    """Looks at the certificate of ``tls``, which is to be for ``host``, and at rights to ``groups``, while :meth:`run` runs.

    ``findings`` are by what they are about. ``own`` asks about its own account, and is None where that is a person's, whose kubeconfig may
    say anything; ``others`` asks about those of others. ``wall`` is Unix time.
    """

    tls: LiveTls
    host: str
    own: Client | None
    others: Client
    groups: Collection[str]
    wall: Callable[[], float]
    findings: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Until cancelled; what is found is logged once, and again when it is over."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        found = {**self._certificate(), **await self._rights()}
        for about, problem in found.items():
            if self.findings.get(about) != problem:
                _LOG.warning("to be mended", about=about, problem=problem)
        for about in self.findings.keys() - found.keys():
            _LOG.info("mended", about=about)
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
            # What could not be asked now is as it was.
            if held or (held is None and right.about in self.findings):
                found[right.about] = right.problem
        return found
