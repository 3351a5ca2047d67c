"""Liveness and readiness of a process, for Kubernetes' probes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from gpuscaler.serving.listening import peer_of

_LOG = structlog.get_logger(__name__)
#: How often checks are evaluated for the log, in seconds.
LOOK = 5.0
#: A check returns its problem, or an empty text.
Check = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Health:
    """Checks by name. A process with a failing ``alive`` check should be restarted; with a failing ``ready`` check it gets no traffic."""

    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        """``/healthz`` and ``/readyz``."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _healthz(self, request: web.Request) -> web.Response:
        return answer(self.alive, reasons=_is_local(request))

    async def _readyz(self, request: web.Request) -> web.Response:
        return answer({**self.alive, **self.ready}, reasons=_is_local(request))


def answer(checks: Mapping[str, Check], *, reasons: bool) -> web.Response:
    """Answer 200 if all checks pass, else 503, with a line for each check, in the format of the API server's probes.

    ``reasons`` shows the problems. They can contain errors of other servers, which not every client of the port may see;
    :func:`log_problems` logs them.
    """
    failures = {name: find_problem(check) for name, check in checks.items()}
    shown = {name: wrong if reasons else "reason withheld" for name, wrong in failures.items() if wrong}
    lines = [f"[{'-' if wrong else '+'}]{name} {shown.get(name, 'ok')}" for name, wrong in failures.items()]
    failed = any(failures.values())
    return web.Response(status=503 if failed else 200, text="\n".join([*lines, "failed" if failed else "ok", ""]))


def find_problem(check: Check) -> str:
    """Return the problem that a check reports; an exception counts as a problem."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  # the probe must be answered even if a check raises
        return f"{type(error).__name__}: {error}"


def _is_local(request: web.Request) -> bool:
    """Whether a request comes from this machine: in a pod from a forwarded port, which requires permission."""
    return peer_of((request.remote or "",)).startswith(("127.", f"{peer_of(('::1',))}"))


async def log_problems(checks: Mapping[str, Check]) -> None:
    """Log the problem of each of ``checks`` when it changes, until cancelled: answers to probes do not appear in the log."""
    reported: dict[str, str] = {}
    while True:
        await asyncio.sleep(LOOK)
        for name, check in checks.items():
            before, reported[name] = reported.get(name, ""), find_problem(check)
            if reported[name] and reported[name] != before:
                _LOG.warning("not ready", part=name, problem=reported[name])
            elif before and not reported[name]:
                _LOG.info("ready again", part=name)
