"""Answers requests: finds the route, checks caller, version, faults and budgets, carries the call out."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from gpuscaler.embedded.azure.account import Account
from gpuscaler.embedded.azure.aks import clusters
from gpuscaler.embedded.azure.compute import catalogue, governing, machines, operating, reservations, scale_sets
from gpuscaler.embedded.azure.serving import control, metadata, prices, tokens
from gpuscaler.embedded.azure.serving.faults import Fault, Faults
from gpuscaler.embedded.azure.serving.throttling import Throttling
from gpuscaler.embedded.azure.wire.errors import AzureError, BrokenError, Failure, refusal
from gpuscaler.embedded.azure.wire.requests import Answer, Call, Reply, Request, Route, Router, encode

ROUTES: Final = (
    *tokens.ROUTES,
    *scale_sets.ROUTES,
    *machines.ROUTES,
    *catalogue.ROUTES,
    *operating.ROUTES,
    *clusters.ROUTES,
    *reservations.ROUTES,
    *governing.ROUTES,
    *prices.ROUTES,
    *metadata.ROUTES,
)


class Endpoint:
    """Answers requests to ``account``. It never waits: an answer says how long it takes.

    ``calls`` are counted by method, route and code ("" for success).
    """

    def __init__(self, account: Account, *, seed: int = 0) -> None:
        self.account = account
        self.faults = Faults(seed)
        self.calls: dict[tuple[str, str, str], int] = {}
        self.throttling = Throttling(account)
        self._control = control.Service(account, self.faults, self.throttling)
        self._router = Router(ROUTES)

    def handle(self, request: Request) -> Answer:
        """The answer to one request. Raises :class:`BrokenError` if the connection breaks."""
        if request.path.startswith(control.PATH):
            return self._control.handle(request)
        account = self.account
        account.advance()
        fault = self.faults.pick(request)
        headers = self._headers()
        route: Route | None = None
        try:
            route, call = self._router.find(request)
            if route.versioned:
                tokens.check(account, request)
                _check_version(call)
            if fault is not None:
                _refuse(fault)
            headers |= self.throttling.count(route, call)
            reply, code = route.handler(account, call), ""
        except AzureError as error:
            code = error.failure.code
            reply = Reply(_error(route, error.failure), status=error.status, headers=error.headers)
        # Immediate effects must have happened before the answer is read.
        account.advance()
        self._count(request, route, code)
        if fault is not None and fault.sever == "after":
            raise BrokenError
        return encode(reply, headers, after=fault.delay if fault is not None else 0.0)

    def _headers(self) -> dict[str, str]:
        ident = self.account.uuid()
        date = format_datetime(datetime.fromtimestamp(self.account.time, UTC), usegmt=True)
        return {"x-ms-request-id": ident, "x-ms-correlation-request-id": ident, "date": date}

    def _count(self, request: Request, route: Route | None, code: str) -> None:
        key = (request.method, route.path if route is not None else request.path, code)
        self.calls[key] = self.calls.get(key, 0) + 1

    def count(self, method: str, path: str) -> int:
        """How many calls with ``method`` whose route ends with ``path`` were answered."""
        return sum(number for (verb, route, _), number in self.calls.items() if verb == method and route.endswith(path))


def _check_version(call: Call) -> None:
    if not call.query.get("api-version"):
        text = "The api-version query parameter (?api-version=) is required for all requests."
        raise refusal("MissingApiVersionParameter", text)


def _refuse(fault: Fault) -> None:
    if fault.sever == "before":
        raise BrokenError
    if fault.code:
        text = fault.message or f"The operation failed with {fault.code}."
        raise refusal(fault.code, text, status=fault.status, headers=fault.headers)


def _error(route: Route | None, failure: Failure) -> Mapping[str, Any]:
    """The body of a refusal: AKS writes the error without a wrapper, all others inside of ``error``."""
    if route is not None and route.bucket.startswith("aks") and not failure.code.startswith(("Resource", "Subscription", "Missing")):
        return {"code": failure.code, "details": None, "message": failure.message, "subcode": "", "target": failure.target or None}
    return {"error": failure.as_json()}
