"""Reads from AWS: one call at a time, from any thread. Throttled, failed and denied answers become errors with a cause.

boto3's own retries are off everywhere. Reads are repeated here, with a wait that the caller's clock can see; writes are never repeated.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from random import Random
from typing import Any

from gpuscaler import __version__
from gpuscaler.clouds.aws.api.causes import interpret_error
from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, UNKNOWN, CloudError

#: Time limits for connecting and for the answer, in seconds.
CONNECT_SECONDS, READ_SECONDS = 5.0, 10.0
#: Number of tries of a throttled or failed read; the waits between them double, from the first up to the longest, in seconds.
TRIES, FIRST_WAIT, LONGEST_WAIT = 5, 0.25, 4.0
#: Characters of an error that are kept.
_LONGEST = 200
_CREDENTIALS = (
    "expected those of AWS's own chain: AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in a cluster IRSA or Pod Identity "
    "for the controller's ServiceAccount"
)
_MISSING = "saw no package boto3, expected it for cloud: aws; pip install '.[aws]' in a clone of gpuscaler, or an image with EXTRAS=aws"
#: IAM's denial codes. Other codes with the cause ``unauthorised`` mean that the caller's identity was not accepted.
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
#: How IAM's denials name the action.
_ACTION = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z0-9]+)")
#: IAM's prefix of each service's actions equals boto3's name of the service.
Client = Any


class MissingPackageError(Exception):
    """The optional packages that AWS needs are not installed."""


class DeniedError(CloudError):
    """IAM does not allow ``action`` in ``region``."""

    def __init__(self, action: str, region: str) -> None:
        super().__init__(UNAUTHORISED, f"IAM does not allow {action} in {region}; add it to the policy (gpuscaler generate iam prints one)")
        self.action, self.region = action, region


class Calls:
    """Clients of the services in every region, created on first use; safe to use from several threads.

    ``sleep`` and ``random`` make the waits between tries. Credentials come from boto3's default chain, from ``credentials``
    (``aws_access_key_id`` and so on), or from a ``session``. ``denied`` are the actions of reads that IAM refused, with their
    region. Raises :class:`MissingPackageError` if boto3 is not installed.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], None],
        random: Random,
        endpoint_url: str = "",
        session: Any = None,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        try:
            self._session = session or _session(credentials or {})
            config = import_module("botocore.config").Config
            self._errors = import_module("botocore.exceptions")
            #: An answer that is none of the service, such as a page of a proxy. botocore's error for it is not one of botocore.exceptions.
            self._garbled: type[Exception] = import_module("botocore.parsers").ResponseParserError
            self._method_name = import_module("botocore").xform_name
        except ImportError as error:
            raise MissingPackageError(_MISSING) from error
        self._config = config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=16,
            user_agent_extra=f"gpuscaler/{__version__}",
        )
        self._endpoint = endpoint_url or None
        self._sleep, self._random = sleep, random
        self._clients: dict[tuple[str, str], Client] = {}
        self._lock = threading.Lock()
        self.denied: set[tuple[str, str]] = set()

    def client(self, service: str, region: str) -> Client:
        """boto3's client, which may be used from any thread."""
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                # Creating clients is not thread-safe: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/clients.html
                try:
                    client = self._session.client(service, region_name=region, endpoint_url=self._endpoint, config=self._config)
                except (self._errors.BotoCoreError, ValueError) as error:
                    raise CloudError(UNKNOWN, f"{service} in {region}: {error}") from error
                self._clients[(service, region)] = client
            return client

    def endpoint(self, service: str, region: str) -> str:
        """The URL that calls go to, from settings, boto3's own configuration or its default; empty if boto3 has none."""
        try:
            return str(self.client(service, region).meta.endpoint_url)
        except CloudError:
            return ""

    def read(self, service: str, region: str, operation: str, *, tries: int = TRIES, **parameters: Any) -> Mapping[str, Any]:
        """The reply to a read-only operation such as ``DescribeAutoScalingGroups``.

        Raises :class:`DeniedError`, else :class:`~gpuscaler.clouds.protocol.CloudError`.
        """
        call = getattr(self.client(service, region), self._method_name(operation))
        for attempt in range(tries):
            try:
                reply: Mapping[str, Any] = call(**parameters)
            except (self._errors.ClientError, self._errors.BotoCoreError, self._garbled) as error:
                failure = self._error_of(error, service=service, region=region, operation=operation)
                if failure.cause not in (THROTTLED, UNKNOWN) or attempt == tries - 1 or not self._is_transient(error, failure):
                    raise failure from error
                self._sleep(self._wait(attempt, failure.retry_after))
            else:
                return reply
        raise AssertionError("the last try returns or raises")

    def pages(self, service: str, region: str, operation: str, key: str, *, more: str = "NextToken", **parameters: Any) -> Iterator[Any]:
        """The items under ``key`` of all pages; ``more`` is what the service calls the start of the next one."""
        next_page: dict[str, Any] = {}
        while True:
            reply = self.read(service, region, operation, **parameters, **next_page)
            yield from reply.get(key) or ()
            if not reply.get(more):
                return
            next_page = {more: reply[more]}

    def _wait(self, attempt: int, minimum: float) -> float:
        wait = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)
        return max(self._random.uniform(wait / 2, wait), min(minimum, LONGEST_WAIT))

    def _is_transient(self, error: Exception, failure: CloudError) -> bool:
        """Whether a retry may succeed: after throttling, connection errors and errors of the service itself."""
        if failure.cause == THROTTLED:
            return True
        if isinstance(error, self._errors.ClientError):
            return int(_http_status(error)) >= 500
        return isinstance(error, self._errors.HTTPClientError | self._errors.ConnectionError | self._garbled)

    def _error_of(self, error: Any, *, service: str, region: str, operation: str) -> CloudError:
        if not isinstance(error, self._errors.ClientError):
            if isinstance(error, self._errors.NoCredentialsError | self._errors.PartialCredentialsError):
                return CloudError(UNAUTHORISED, f"{service} in {region}: {error}; {_CREDENTIALS}")
            if isinstance(error, self._garbled):
                text = "saw an answer that is none of AWS, expected one of this service; is there a proxy, or is endpoint_url wrong?"
                return CloudError(UNKNOWN, f"{service} in {region}: {operation}: {text}")
            return CloudError(UNKNOWN, f"{service} in {region}: {' '.join(str(error).split())[:_LONGEST]}")
        code = error.response.get("Error", {}).get("Code", "")
        message = error.response.get("Error", {}).get("Message", "")
        if code in _DENIED:
            denial = DeniedError(action_of(service, operation, message), region)
            self.denied.add((denial.action, region))
            return denial
        text = f"{service} in {region}: {operation} answered {code}: {message[:_LONGEST]}"
        cause = THROTTLED if _http_status(error) == 429 else interpret_error(code, "").cause
        return CloudError(cause, text, retry_after=_retry_after(error))


def action_of(service: str, operation: str, message: str) -> str:
    """The missing IAM action: the one that AWS names, else the operation's own. Batch operations share the action of the single call.

    LaunchInstances is also denied for calls it makes on behalf of the caller, such as ``ec2:CreateFleet``.
    """
    denied = _ACTION.search(message)
    return (denied[1] if denied is not None else f"{service}:{operation}").removesuffix("Batch")


def _session(credentials: Mapping[str, str]) -> Any:
    """A boto3 session that parses timestamps with ``fromisoformat``: with botocore's dateutil they take a third of reading many groups."""
    core = import_module("botocore.session").get_session()
    parse_timestamp = import_module("botocore.utils").parse_timestamp

    def parse_iso(text: Any) -> datetime:
        if isinstance(text, str) and text.endswith("Z"):
            with suppress(ValueError):
                return datetime.fromisoformat(text)
        parsed = parse_timestamp(text)
        assert isinstance(parsed, datetime)
        return parsed

    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_iso)
    return import_module("boto3").session.Session(botocore_session=core, **credentials)


def _http_status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _retry_after(error: Any) -> float:
    text = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else 0.0
