"""Requests to the endpoint and their answers, and routes to handlers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from gpuscaler.embedded.azure.wire.errors import bad_request, refusal


@dataclass(frozen=True, slots=True)
class Request:
    """An incoming request: header names in lower case, ``path`` without its query, ``origin`` is scheme and host that it was sent to."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    query: str = ""
    origin: str = "http://127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, sent ``after`` seconds."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers. ``content`` is written as JSON; None: no body."""

    content: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that fits a route: ``names`` are the path's variable parts as they were spelled, keys of ``query`` are in lower case."""

    request: Request
    names: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def if_match(self) -> str:
        return self.request.headers.get("if-match", "")

    def json(self) -> dict[str, Any]:
        """The body. Raises :class:`AzureError` if it is not a JSON object."""
        try:
            content = json.loads(self.request.body or b"{}")
        except ValueError as error:
            text = f"The request content was invalid and could not be deserialized: '{error}'."
            raise bad_request(text, code="InvalidRequestContent") from error
        if not isinstance(content, dict):
            raise bad_request("The request content was invalid and could not be deserialized.", code="InvalidRequestContent")
        return content


#: A handler gets what the endpoint serves and the call.
Handler = Callable[[Any, Call], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """``method`` and ``path`` with variable parts in braces; ``bucket`` is the kind of call that throttling counts."""

    method: str
    path: str
    handler: Handler
    bucket: str = ""
    #: ARM's own endpoints need an api-version; token endpoints and prices do not.
    versioned: bool = True

    def match(self, parts: Sequence[str]) -> Mapping[str, str] | None:
        """The variable parts of a path that fits, None if it does not fit. Literal parts are compared without case."""
        pattern = self.path.strip("/").split("/")
        if len(pattern) != len(parts):
            return None
        names: dict[str, str] = {}
        for wanted, part in zip(pattern, parts, strict=True):
            if wanted.startswith("{"):
                names[wanted[1:-1]] = unquote(part)
            elif wanted.lower() != part.lower():
                return None
        return names


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_length: dict[int, list[Route]] = {}
        for route in routes:
            self._by_length.setdefault(route.path.strip("/").count("/"), []).append(route)

    def find(self, request: Request) -> tuple[Route, Call]:
        """The route and the call. Raises :class:`AzureError` if there is none for this path or method."""
        parts = request.path.strip("/").split("/")
        allowed = []
        for route in self._by_length.get(len(parts) - 1, ()):
            names = route.match(parts)
            if names is None:
                continue
            if route.method == request.method:
                return route, Call(request, names, query_of(request))
            allowed.append(route.method)
        if allowed:
            text = f"The requested resource does not support http method '{request.method}'."
            raise refusal("UnsupportedHttpVerb", text, status=405, headers={"allow": ", ".join(allowed)})
        raise refusal("InvalidResourceType", f"The resource type could not be found for the path '{request.path}'.", status=404)


def query_of(request: Request) -> Mapping[str, str]:
    """The query's parameters, keys in lower case."""
    return {key.lower(): value for key, value in parse_qsl(request.query, keep_blank_values=True)}


JSON: Final = "application/json; charset=utf-8"


def encode(reply: Reply, headers: Mapping[str, str], *, after: float = 0.0) -> Answer:
    """A reply as bytes; the reply's own headers win."""
    merged = {**headers, **reply.headers}
    if reply.content is None:
        return Answer(reply.status, merged, b"", after)
    return Answer(reply.status, {"content-type": JSON, **merged}, msgspec.json.encode(reply.content), after)
