"""boto3 without sockets: its requests go straight to the endpoint, so that tests and measurements can control the clock."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cache, partial
from typing import Any, TypeVar

from tests.embedded.aws.clients import Client, Exchange, Options, shared_client

from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.models import service_files

T = TypeVar("T")


def attach(client: Any, endpoint: Endpoint, took: Callable[[float], None] | None = None) -> None:
    """Connect a boto3 ``client`` to ``endpoint``. Answers arrive at once; ``took`` gets the duration of each in seconds."""
    client.meta.events.register("before-send", lambda request, **more: Exchange(endpoint, took).send(request, **more))


class Session:
    """A boto3 session all of whose clients call ``endpoint``; ``took`` is as for :func:`attach`. Raises ImportError without boto3."""

    def __init__(self, endpoint: Endpoint, took: Callable[[float], None] | None = None) -> None:
        self._boto = _boto()
        self._endpoint, self._took = endpoint, took

    def client(self, service: str, *, region_name: str, endpoint_url: str | None = None, **options: Any) -> Any:  # noqa: ARG002
        """boto3's client; ``endpoint_url`` is ignored."""
        return Client(shared_client(self._boto.client, service, region_name, Options(options)), self._endpoint, took=self._took)


@cache
def _boto() -> Any:
    from boto3.session import Session as Boto
    from botocore.session import Session as Core

    core = Core()
    core.register_component("data_loader", service_files())
    return Boto(botocore_session=core, **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "any"))


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
