"""boto3's clients for an endpoint in the same process, made once for all tests, which encode and decode what is repeated only once.

Making a client takes boto3 10 ms, and a call takes it half a millisecond, three times as long as the endpoint takes. A simulated hour has
thousands of calls, nearly all of them reads with the same parameters and the same answer.
"""

import pickle
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.errors import BrokenError
from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.embedded.aws.wire.writing import Answer

#: Where clients send their requests: nowhere.
URL: Final = "http://127.0.0.1:1"
#: How the names of operations begin whose requests and answers are remembered.
_READS: Final = ("Describe", "Get", "List", "Receive")


class Exchange:
    """One request to ``endpoint`` and its answer. ``took`` gets the seconds that the answer takes."""

    def __init__(self, endpoint: Endpoint, took: Callable[[float], None] | None = None, sent: Callable[[], None] | None = None) -> None:
        self._endpoint, self._took, self._sent = endpoint, took, sent
        self.request: Request | None = None
        self.answer: Answer | None = None

    def ask(self, request: Request) -> Answer:
        """The answer to ``request``. Raises botocore's error if the connection breaks."""
        from botocore.exceptions import ConnectionClosedError

        if self._sent is not None:
            self._sent()
        try:
            answer = self._endpoint.handle(request)
        except BrokenError as error:
            raise ConnectionClosedError(endpoint_url=URL + request.path) from error
        self.request, self.answer = request, answer
        if self._took is not None:
            self._took(answer.after)
        return answer

    def send(self, request: Any, **_: Any) -> Any:
        """botocore's answer to ``request``, botocore's own; the endpoint is not asked again if it has answered already."""
        from botocore.awsrequest import AWSResponse

        answer = self.answer or self.ask(_plain(request))
        return AWSResponse(request.url, answer.status, dict(answer.headers), _Body(answer.body))


#: The exchange of the call that is being made.
_EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")


class Client:
    """boto3's client for ``endpoint``; ``sent`` is called with the name of each operation that is sent.

    ``shared`` is a client of :func:`shared_client`. A read whose parameters it has encoded before is not encoded again, and an answer that
    it has decoded before is not decoded again; every call goes to the endpoint.
    """

    def __init__(
        self,
        shared: Any,
        endpoint: Endpoint,
        *,
        took: Callable[[float], None] | None = None,
        sent: Callable[[str], None] | None = None,
    ) -> None:
        self._shared, self._endpoint, self._took, self._sent = shared, endpoint, took, sent
        self._requests: dict[tuple[str, str], Request] = {}
        self._replies: dict[tuple[str, bytes], bytes] = {}

    def __getattr__(self, name: str) -> Any:
        operation = self._shared.meta.method_to_api_mapping.get(name)
        if operation is None:
            return getattr(self._shared, name)
        return lambda **parameters: self._make_api_call(operation, parameters)

    def get_paginator(self, name: str) -> Any:
        """botocore's paginator, which makes its calls through this client."""
        return type(self._shared).get_paginator(self, name)

    def _make_api_call(self, operation: str, parameters: dict[str, Any]) -> Any:
        sent = self._sent
        exchange = Exchange(self._endpoint, self._took, None if sent is None else lambda: sent(operation))
        asked = (operation, repr(parameters))
        if (request := self._requests.get(asked)) is not None:
            answer = exchange.ask(request)
            if answer.status == 200 and (reply := self._replies.get((operation, _without_id(answer)))) is not None:
                return _dated(pickle.loads(reply), answer)
        token = _EXCHANGE.set(exchange)
        try:
            made = self._shared._make_api_call(operation, parameters)
        finally:
            _EXCHANGE.reset(token)
        if operation.startswith(_READS) and exchange.request is not None and exchange.answer is not None:
            self._requests[asked] = exchange.request
            self._replies[operation, _without_id(exchange.answer)] = pickle.dumps(made)
        return made


@cache
def shared_client(create: Callable[..., Any], service: str, region: str, config: "Options") -> Any:
    """The client of ``create``, boto3's ``Session.client``, that :class:`Client` uses. Clients may be used from any thread."""
    client = create(service, region_name=region, endpoint_url=URL, **config.given)
    client.meta.events.register("before-send", lambda request, **more: _EXCHANGE.get().send(request, **more))
    return client


class Options:
    """Further options of a client, equal to others that say the same."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self._text = repr([(name, vars(value) if hasattr(value, "__dict__") else value) for name, value in sorted(given.items())])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _plain(request: Any) -> Request:
    parts = urlsplit(request.url)
    headers = {name.lower(): value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()}
    body = request.body or b""
    return Request(request.method, parts.path, headers, body.encode() if isinstance(body, str) else body, parts.query)


def _without_id(answer: Answer) -> bytes:
    """The body without the id that every request has of its own."""
    return answer.body.replace(answer.headers.get("x-amzn-requestid", "").encode(), b"")


def _dated(reply: Any, answer: Answer) -> Any:
    """``reply``, decoded from an earlier answer with the same body, with the headers and the id of this one."""
    reply["ResponseMetadata"] |= {"RequestId": answer.headers["x-amzn-requestid"], "HTTPHeaders": dict(answer.headers)}
    return reply


class _Body:
    """A body as botocore reads it from urllib3."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> list[bytes]:
        """All of it in one piece."""
        return [self._body]
