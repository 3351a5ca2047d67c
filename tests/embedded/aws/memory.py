"""boto3 without sockets: its requests go straight to the endpoint, so that tests and measurements can control the clock."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.errors import BrokenError
from gpuscaler.embedded.aws.wire.models import service_files
from gpuscaler.embedded.aws.wire.reading import Request

T = TypeVar("T")


def attach(client: Any, endpoint: Endpoint, took: Callable[[float], None] | None = None) -> None:
    """Connect a boto3 ``client`` to ``endpoint``. Answers arrive at once; ``took`` gets the duration of each in seconds."""

    def send(request: Any, **_: Any) -> Any:
        return _ask(request, endpoint, took)

    client.meta.events.register("before-send", send)


class Session:
    """A boto3 session all of whose clients call ``endpoint``; ``took`` is as for :func:`attach`. Raises ImportError without boto3."""

    def __init__(self, endpoint: Endpoint, took: Callable[[float], None] | None = None) -> None:
        from boto3.session import Session as Boto
        from botocore.session import Session as Core

        core = Core()
        core.register_component("data_loader", service_files())
        self._boto = Boto(botocore_session=core, **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "any"))
        self._endpoint, self._took = endpoint, took

    def client(self, service: str, **options: Any) -> Any:
        """boto3's client; ``endpoint_url`` is ignored."""
        made = self._boto.client(service, **{**options, "endpoint_url": "http://127.0.0.1:1"})
        attach(made, self._endpoint, self._took)
        return made


class LoopExecutor(Executor):
    """Runs calls in the event loop's own thread, at once, and delivers their results when their answers would arrive, by the loop's clock.

    In virtual time nothing waits for threads: a call in a thread would be overtaken by every timer. Clients report to ``took`` how
    long their answers take; calls that a call makes in threads of its own take no time.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._seconds = 0.0

    def took(self, seconds: float) -> None:
        if threading.get_ident() == self._thread:
            self._seconds += seconds

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn`` now; the future is done after the seconds that were reported during the call."""
        future: Future[T] = Future()
        # Like a call that runs in a thread, this one cannot be cancelled.
        future.set_running_or_notify_cancel()
        self._seconds = 0.0
        try:
            done: Callable[[], None] = partial(future.set_result, fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - any error goes to the task that awaits the call
            done = partial(future.set_exception, error)
        asyncio.get_running_loop().call_later(self._seconds, done)
        return future


def _ask(request: Any, endpoint: Endpoint, took: Callable[[float], None] | None) -> Any:
    from botocore.awsrequest import AWSResponse
    from botocore.exceptions import ConnectionClosedError

    parts = urlsplit(request.url)
    headers = {name.lower(): value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()}
    body = request.body or b""
    asked = Request(request.method, parts.path, headers, body.encode() if isinstance(body, str) else body, parts.query)
    try:
        answer = endpoint.handle(asked)
    except BrokenError as error:
        raise ConnectionClosedError(endpoint_url=request.url) from error
    if took is not None:
        took(answer.after)
    return AWSResponse(request.url, answer.status, dict(answer.headers), _Body(answer.body))


class _Body:
    """A body as botocore reads it from urllib3."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> list[bytes]:
        """All of it in one piece."""
        return [self._body]
