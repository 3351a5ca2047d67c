"""boto3 without sockets: its requests go straight to the endpoint, so that a test may hold the clock."""

from typing import Any
from urllib.parse import urlsplit

from gpuscaler.embedded.aws.endpoint import Endpoint
from gpuscaler.embedded.aws.errors import BrokenError
from gpuscaler.embedded.aws.reading import Request


def attach(client: Any, endpoint: Endpoint) -> None:
    """Have a boto3 ``client`` ask ``endpoint``. Answers come at once, however long they say that they take."""

    def send(request: Any, **_: Any) -> Any:
        return _ask(request, endpoint)

    client.meta.events.register("before-send", send)


def _ask(request: Any, endpoint: Endpoint) -> Any:
    from botocore.awsrequest import AWSResponse  # noqa: PLC0415 - an extra
    from botocore.exceptions import ConnectionClosedError  # noqa: PLC0415

    parts = urlsplit(request.url)
    headers = {name.lower(): value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()}
    body = request.body or b""
    asked = Request(request.method, parts.path, headers, body.encode() if isinstance(body, str) else body, parts.query)
    try:
        answer = endpoint.handle(asked)
    except BrokenError as error:
        raise ConnectionClosedError(endpoint_url=request.url) from error
    return AWSResponse(request.url, answer.status, dict(answer.headers), _Body(answer.body))


class _Body:
    """A body as botocore reads it from urllib3."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> list[bytes]:
        """All of it in one piece."""
        return [self._body]
