"""AWS calls from the event loop: reads as :mod:`~gpuscaler.clouds.aws.api.calls` makes them, and writes, which are never repeated."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from gpuscaler.clouds.aws.api.calls import READ_SECONDS, Calls, DeniedError, action_of
from gpuscaler.clouds.aws.api.causes import interpret_error
from gpuscaler.clouds.aws.api.groups import Group, Reply, group_of
from gpuscaler.clouds.protocol import CONFIGURATION, THROTTLED, UNAUTHORISED, UNKNOWN, CloudError, LostAnswerError

_DENIED: Final = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
#: Errors that botocore raises before it sends anything.
_UNSENT: Final = ("EndpointConnectionError", "ConnectTimeoutError", "NoCredentialsError", "PartialCredentialsError", "ParamValidationError")
_UNKNOWN_CALLER: Final = ("NoCredentialsError", "PartialCredentialsError")


T = TypeVar("T")


class Sleep(Protocol):
    """Sleeps for that many seconds."""

    async def __call__(self, seconds: float, /) -> None: ...


class RefusedError(CloudError):
    """AWS refused a write with ``code``; nothing was changed."""

    def __init__(self, cause: str, detail: str, *, code: str, text: str, retry_after: float = 0.0) -> None:
        super().__init__(cause, detail, retry_after=retry_after)
        self.code = code
        self.text = text


class AsyncCalls:
    """Makes ``calls`` in threads of ``executor``.

    ``fence`` is called right before each write with the seconds that the write may take, and raises to stop it. ``last_writes`` holds the
    last desired capacity that was set, by region and group: the time, the old number and the new one.
    """

    def __init__(self, calls: Calls, executor: Executor, *, fence: Callable[[float], None], now: Callable[[], float], sleep: Sleep) -> None:
        self._calls, self._executor, self._fence = calls, executor, fence
        self.now, self.sleep = now, sleep
        self.last_writes: dict[tuple[str, str], tuple[float, int, int]] = {}
        #: EC2 ids of machines that were protected from scale-in while their group was lowered.
        self.protected: set[str] = set()
        errors = import_module("botocore.exceptions")
        self._refused: type[Exception] = errors.ClientError
        self._broken: tuple[type[Exception], ...] = (errors.BotoCoreError, import_module("botocore.parsers").ResponseParserError)

    async def read(self, service: str, region: str, operation: str, **parameters: Any) -> Reply:
        """The reply to a read-only call. Raises CloudError."""
        return await self._run(partial(self._calls.read, service, region, operation, **parameters))

    async def pages(self, service: str, region: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """The items of all pages."""

        def every() -> list[Any]:
            items: Iterator[Any] = self._calls.pages(service, region, operation, key, **parameters)
            return list(items)

        return await self._run(every)

    async def write(self, service: str, region: str, operation: str, **parameters: Any) -> Reply:
        """The reply to a call that changes something; the call is made once.

        Raises :class:`RefusedError`, :class:`DeniedError` or CloudError if nothing was changed,
        :class:`~gpuscaler.clouds.protocol.LostAnswerError` if the effect is unknown.
        """
        self._fence(READ_SECONDS)
        return await self._run(partial(self._write, service, region, operation, parameters))

    async def group(self, region: str, name: str) -> Group:
        """The group as it is now. Raises CloudError, also if there is no such group."""
        reply = await self.read("autoscaling", region, "DescribeAutoScalingGroups", AutoScalingGroupNames=[name])
        entries = reply.get("AutoScalingGroups") or ()
        if not entries:
            raise CloudError(CONFIGURATION, f"saw no Auto Scaling group {name} in {region}, expected one; was it deleted?")
        try:
            return group_of(entries[0], region)
        except ValueError as error:
            raise CloudError(CONFIGURATION, f"group {name} in {region}: {error}") from error

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _write(self, service: str, region: str, operation: str, parameters: Mapping[str, Any]) -> Reply:
        client = self._calls.client(service, region)
        try:
            reply: Reply = client._make_api_call(operation, parameters)  # noqa: SLF001  # by its name, as botocore's paginators do
        except self._refused as error:
            raise write_error(getattr(error, "response", {}), service=service, region=region, operation=operation) from error
        except self._broken as error:
            name = type(error).__name__
            if name in _UNSENT:
                raise CloudError(UNAUTHORISED if name in _UNKNOWN_CALLER else UNKNOWN, f"{service} in {region}: {error}") from error
            raise LostAnswerError(f"{service} in {region}: {operation}: {error}") from error
        return reply


def write_error(response: Mapping[str, Any], *, service: str, region: str, operation: str) -> CloudError | LostAnswerError:
    """CloudError if ``response`` refuses the write; LostAnswerError if the service failed and the effect is unknown."""
    error, meta = response.get("Error") or {}, response.get("ResponseMetadata") or {}
    code, text = str(error.get("Code") or ""), str(error.get("Message") or "")
    if code in _DENIED:
        return DeniedError(action_of(service, operation, text), region)
    meaning = interpret_error(code, text[:300])
    message = f"{service} in {region}: {operation} answered {meaning.detail}"
    status = int(meta.get("HTTPStatusCode") or 0)
    cause = THROTTLED if status == 429 else meaning.cause
    if status >= 500 and cause == UNKNOWN:
        return LostAnswerError(message)
    retry_after = str((meta.get("HTTPHeaders") or {}).get("retry-after") or "")
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
    return RefusedError(cause, message, code=code, text=text, retry_after=seconds)


def server_time(reply: Reply, now: float) -> float:
    """The time of AWS's answer by its own clock, in whole seconds; ``now`` if the reply has no date."""
    date = ((reply.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}).get("date", "")
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return now
