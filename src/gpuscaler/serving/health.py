"""Whether a process is alive and ready, as Kubernetes' probes ask."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from gpuscaler.serving.listening import peer_of

_LOG = structlog.get_logger(__name__)
#: How often it is looked at what a process lacks, in seconds.
LOOK = 5.0
#: A check says what is wrong, or nothing.
Check = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Health:
    """Checks by their names: a process with a failing one of ``alive`` is to be started anew, of ``ready`` to be left alone for now."""

    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        """``/healthz`` and ``/readyz``."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _healthz(self, request: web.Request) -> web.Response:
        return answer(self.alive, reasons=_is_here(request))

    async def _readyz(self, request: web.Request) -> web.Response:
        return answer({**self.alive, **self.ready}, reasons=_is_here(request))


def answer(checks: Mapping[str, Check], *, reasons: bool) -> web.Response:
    """200 where all is well, else 503; a line for each check either way, as the API server's own probes answer.

    ``reasons`` are errors of other servers, which are not for everybody who reaches the port; :func:`tell` logs them.
    """
    found = {name: said(check) for name, check in checks.items()}
    told = {name: wrong if reasons else "reason withheld" for name, wrong in found.items() if wrong}
    lines = [f"[{'-' if wrong else '+'}]{name} {told.get(name, 'ok')}" for name, wrong in found.items()]
    bad = any(found.values())
    return web.Response(status=503 if bad else 200, text="\n".join([*lines, "failed" if bad else "ok", ""]))


def said(check: Check) -> str:
    """What a check says; one that breaks is a check that fails."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  # whatever breaks in a check, the probe is to be answered
        return f"{type(error).__name__}: {error}"


def _is_here(request: web.Request) -> bool:
    """Whether it comes from this machine: in a pod from a forwarded port, which only those get who may forward it."""
    return peer_of((request.remote or "",)).startswith(("127.", f"{peer_of(('::1',))}"))


async def tell(checks: Mapping[str, Check]) -> None:
    """Log what each of ``checks`` finds wrong, when that changes, until cancelled: whoever reads logs does not see what probes are told."""
    told: dict[str, str] = {}
    while True:
        await asyncio.sleep(LOOK)
        for name, check in checks.items():
            before, told[name] = told.get(name, ""), said(check)
            if told[name] and told[name] != before:
                _LOG.warning("not ready", part=name, problem=told[name])
            elif before and not told[name]:
                _LOG.info("ready again", part=name)
