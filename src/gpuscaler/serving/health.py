"""Whether a process is alive and ready, as Kubernetes' probes ask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

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

    async def _healthz(self, _request: web.Request) -> web.Response:
        return answer(self.alive)

    async def _readyz(self, _request: web.Request) -> web.Response:
        return answer({**self.alive, **self.ready})


def answer(checks: Mapping[str, Check]) -> web.Response:
    """200 where all is well, else 503; a line for each check either way, as the API server's own probes answer."""
    found = {name: said(check) for name, check in checks.items()}
    lines = [f"[{'-' if wrong else '+'}]{name} {wrong or 'ok'}" for name, wrong in found.items()]
    bad = any(found.values())
    return web.Response(status=503 if bad else 200, text="\n".join([*lines, "failed" if bad else "ok", ""]))


def said(check: Check) -> str:
    """What a check says; one that breaks is a check that fails."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  # whatever breaks in a check, the probe is to be answered
        return f"{type(error).__name__}: {error}"
