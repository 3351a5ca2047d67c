"""A client of Prometheus, or of another server with its HTTP API: instant queries, and lists of series.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

import msgspec

from gpuscaler.kube.access import Access
from gpuscaler.kube.credentials import Credentials, FixedCredentials, HeaderFiles, RequestCredentials, TokenFile
from gpuscaler.kube.errors import AccessError, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.tls import Tls
from gpuscaler.kube.transport import Request, Transport

#: Upper bounds of the histogram of answers, in seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MOST_QUOTED: Final = 300
#: From this size on, in bytes, answers are read one at a time: a decoded answer takes several times as much memory.
_LARGE: Final = 2 * 2**20
T = TypeVar("T")


class PrometheusError(Exception):
    """There is no usable answer. The text names the server, the request, and what came instead.

    PrometheusError
     ├ PrometheusAway    no server answered in time, or each had an error: a later attempt may help
     ├ QueryRefused      the server rejects this query: another attempt does not help
     └ BadAnswer         the answer is not from Prometheus, or larger than allowed
    """


class PrometheusAway(PrometheusError):  # noqa: N818 - it names the state
    pass


class QueryRefused(PrometheusError):  # noqa: N818
    pass


class BadAnswer(PrometheusError):  # noqa: N818
    pass


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One element of an instant vector: its labels, and (Unix time of the evaluation, value as text)."""

    metric: dict[str, str]
    value: tuple[float, str]

    @property
    def number(self) -> float:
        """The value as a number, including Go's ``+Inf``, ``-Inf`` and ``NaN``. NaN for text that is not a number."""
        try:
            return float(self.value[1])
        except ValueError:
            return float("nan")


class _Data(msgspec.Struct, gc=False):
    result_type: str = msgspec.field(default="", name="resultType")
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Answer(msgspec.Struct, gc=False):
    status: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    error_type: str | None = msgspec.field(default=None, name="errorType")
    warnings: list[str] | None = None


class _Head(NamedTuple):
    status: int
    body: bytes
    server: str


_answer = msgspec.json.Decoder(_Answer).decode
_data = msgspec.json.Decoder(_Data).decode
_samples = msgspec.json.Decoder(list[Sample]).decode
_names = msgspec.json.Decoder(list[str]).decode
_series = msgspec.json.Decoder(list[dict[str, str]]).decode


@dataclass(slots=True)
class PrometheusMetrics:
    """Counts of answers by (path, server, outcome), and in ``buckets`` by duration for each (path, server)."""

    outcomes: dict[tuple[str, str, str], int] = field(default_factory=dict)
    buckets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    warnings: int = 0

    def add(self, path: str, server: str, outcome: str, seconds: float) -> None:
        self.outcomes[path, server, outcome] = self.outcomes.get((path, server, outcome), 0) + 1
        counts = self.buckets.setdefault((path, server), [0] * (len(BUCKETS) + 1))
        counts[next((place for place, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1
        self.seconds[path, server] = self.seconds.get((path, server), 0.0) + seconds

    def request_count(self, path: str) -> int:
        """Number of requests for ``path``."""
        return sum(count for (counted_path, _, _), count in self.outcomes.items() if counted_path == path)


class Server(NamedTuple):
    """One Prometheus: its name in messages and metrics, the path prefix of its API, and its transport."""

    name: str
    prefix: str
    transport: Transport


def access_of(
    url: str,
    *,
    ca_file: Path | None = None,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    token_file: Path | None = None,
    headers: Sequence[tuple[str, str]] = (),
    header_files: Sequence[tuple[str, Path]] = (),
    insecure: bool = False,
) -> Access:
    """The access to the Prometheus at ``url``, ``http(s)://[USER:PASSWORD@]HOST[:PORT][/PATH]``; files are read again when they change.

    Raises :class:`~gpuscaler.kube.errors.AccessError` for an invalid URL and for unusable files.
    """
    owner = "Prometheus"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        # The URL is not quoted: it may contain a password.
        raise AccessError(f"{owner}: saw an invalid URL, expected http(s)://HOST:PORT[/PATH]; correct it")
    place = parts.netloc.rpartition("@")[2]
    tls = Tls(
        owner,
        owner,
        authority_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
        insecure=insecure,
        remedy="see --prometheus-ca-file, --prometheus-client-tls-cert-file and --prometheus-client-tls-key-file",
    )
    if parts.scheme == "https":
        tls.context()
    credentials: Credentials
    if token_file is not None:
        credentials = TokenFile(token_file, owner)
    elif parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = FixedCredentials(RequestCredentials({"authorization": f"Basic {b64encode(pair.encode()).decode()}"}))
    else:
        credentials = FixedCredentials()
    if header_files:
        credentials = HeaderFiles(credentials, tuple((name.lower(), path) for name, path in header_files), owner)
    return Access(
        server=f"{parts.scheme}://{place}{parts.path.rstrip('/')}",
        source=owner,
        tls=tls,
        credentials=credentials,
        headers=tuple((name.lower(), value) for name, value in headers),
    )


def server_of(access: Access) -> Server:
    """The server at ``access``, over HTTP."""
    return Server(urlsplit(access.server).netloc, "", HttpTransport(access))


@dataclass(slots=True)
class Prometheus:
    """Asks ``servers``, starting with the one that answered last; if it is unavailable or has an error, the next one.

    ``timeout`` limits a request to all servers together, in seconds; ``most_bytes`` limits an answer. ``post`` sends queries as forms,
    which have no length limit. ``clock`` is monotonic, in seconds. ``warn`` receives Prometheus' own warnings.
    """

    servers: Sequence[Server]
    clock: Callable[[], float]
    timeout: float = 10.0
    most_bytes: int = 16 * 2**20
    post: bool = True
    warn: Callable[[str], None] = lambda _text: None
    metrics: PrometheusMetrics = field(default_factory=PrometheusMetrics)
    _first: int = field(default=0, init=False)
    _large: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def close(self) -> None:
        for server in self.servers:
            await server.transport.close()

    async def query(self, promql: str) -> list[Sample]:
        """Evaluate ``promql`` now, at the server's own time, to an instant vector. Raises :class:`PrometheusError`."""
        path = "/api/v1/query"
        # With a time-out the server also gives up, and frees its memory.
        form = [("query", promql), ("timeout", f"{self.timeout:g}s")]
        async with self._answer_data(path, form, post=self.post) as raw:
            data = self._read(_data, raw, path)
            if data.result_type != "vector":
                raise BadAnswer(
                    f"Prometheus: query {_short(promql)}: saw a {data.result_type or 'result without a type'}, expected a vector"
                )
            return self._read(_samples, data.result, path)

    async def series(self, match: str, *, start: float, end: float) -> list[dict[str, str]]:
        """The label sets, including ``__name__``, of all series that ``match`` selects between two Unix times."""
        path = "/api/v1/series"
        async with self._answer_data(path, [("match[]", match), *_span(start, end)], post=self.post) as raw:
            return self._read(_series, raw, path)

    async def metric_names(self, match: str, *, start: float, end: float) -> list[str]:
        """The names of the metrics with series that ``match`` selects."""
        path = "/api/v1/label/__name__/values"
        # Prometheus only accepts GET for this path.
        async with self._answer_data(path, [("match[]", match), *_span(start, end)], post=False) as raw:
            return self._read(_names, raw, path)

    async def label_names(self, match: str, *, start: float, end: float) -> list[str]:
        """The names of all labels of the series that ``match`` selects."""
        path = "/api/v1/labels"
        async with self._answer_data(path, [("match[]", match), *_span(start, end)], post=self.post) as raw:
            return self._read(_names, raw, path)

    @asynccontextmanager
    async def _answer_data(self, path: str, form: Sequence[tuple[str, str]], *, post: bool) -> AsyncIterator[msgspec.Raw]:
        """``data`` of an answer, to be decoded within the block, so that only one large answer at a time is in memory."""
        async with AsyncExitStack() as stack:
            yield await self._ask(path, form, post=post, stack=stack)

    def _read(self, decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw, path: str) -> T:
        try:
            return decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadAnswer(f"Prometheus: {path}: saw data in another format ({error}), expected that of its HTTP API") from error

    async def _ask(self, path: str, form: Sequence[tuple[str, str]], *, post: bool, stack: AsyncExitStack) -> msgspec.Raw:
        """``data`` of the first usable answer."""
        troubles: list[str] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + self.timeout
        order = [(self._first + step) % len(self.servers) for step in range(len(self.servers))]
        for remaining, place in zip(range(len(order), 0, -1), order, strict=True):
            server = self.servers[place]
            # Each server gets an equal part of the remaining time, so that one that hangs does not use up all of it.
            share = max(0.001, (until - loop.time()) / remaining)
            try:
                data = await self._timed(server, path, form, patience=share, post=post, stack=stack)
            except PrometheusAway as error:
                troubles.append(str(error))
            else:
                self._first = place
                return data
        raise PrometheusAway("; ".join(troubles) or "Prometheus: saw no server, expected at least one; set --prometheus-url")

    async def _timed(
        self, server: Server, path: str, form: Sequence[tuple[str, str]], *, patience: float, post: bool, stack: AsyncExitStack
    ) -> msgspec.Raw:
        began, outcome = self.clock(), "cancelled"
        try:
            async with asyncio.timeout(patience):
                data = self._check_answer(await self._exchange(server, path, form, patience=patience, post=post, stack=stack), path)
        except TimeoutError:
            outcome = "timeout"
            raise PrometheusAway(f"{server.name}: {path}: no answer within {patience:.3g} s") from None
        except Unreachable as error:
            outcome = "unreachable"
            raise PrometheusAway(str(error)) from error
        except PrometheusError as error:
            outcome = {PrometheusAway: "fault", QueryRefused: "refused"}.get(type(error), "bad answer")
            raise
        else:
            outcome = "ok"
            return data
        finally:
            self.metrics.add(path, server.name, outcome, self.clock() - began)

    async def _exchange(
        self, server: Server, path: str, form: Sequence[tuple[str, str]], *, patience: float, post: bool, stack: AsyncExitStack
    ) -> _Head:
        head = {"accept": "application/json"}
        text = urlencode(form)
        if post:
            head["content-type"] = "application/x-www-form-urlencoded"
            request = Request("POST", server.prefix + path, headers=head, body=text.encode(), timeout=patience)
        else:
            request = Request("GET", server.prefix + path, dict(form), head, timeout=patience)
        async with server.transport.exchange(request) as answer:
            if post and answer.status == 405:
                return await self._exchange(server, path, form, patience=patience, post=False, stack=stack)
            body, is_small = bytearray(), True
            async for piece in answer.pieces:
                body += piece
                if is_small and len(body) > _LARGE:
                    # If several servers are asked in turn, the answer of the previous one is no longer needed.
                    await stack.aclose()
                    await stack.enter_async_context(self._large)
                    is_small = False
                if len(body) > self.most_bytes:
                    raise BadAnswer(
                        f"{server.name}: {path}: saw an answer of more than {self.most_bytes / 2**20:.0f} MiB, expected less; "
                        "narrow the rule's seriesQuery or metricsQuery"
                    )
            return _Head(answer.status, bytes(body), server.name)

    def _check_answer(self, head: _Head, path: str) -> msgspec.Raw:
        """``data`` of a successful answer; raises the matching error for any other answer."""
        try:
            answer = _answer(head.body)
        except (msgspec.MsgspecError, RecursionError):
            answer = _Answer()
        if head.status == 200 and answer.status == "success":
            for warning in answer.warnings or ():
                self.metrics.warnings += 1
                self.warn(f"{head.server}: {path}: Prometheus warns: {_short(warning)}")
            return answer.data
        reason = answer.error or _short(head.body[: 4 * _MOST_QUOTED].decode(errors="replace")) or "nothing"
        kind = f" {answer.error_type}" if answer.error_type else ""
        text = f"{head.server}: {path}: saw status {head.status}{kind}: {_short(reason)}"
        if head.status in {400, 413, 414, 422} and answer.error_type not in {"timeout", "canceled"}:
            raise QueryRefused(f"{text}; correct the rule")
        if head.status == 200:
            raise BadAnswer(f"{text}, expected Prometheus' JSON; is this the URL of Prometheus?")
        if 300 <= head.status < 400:
            raise PrometheusAway(f"{text}: redirects are not followed; set --prometheus-url to the target of the redirect")
        raise PrometheusAway(text)


def _span(start: float, end: float) -> list[tuple[str, str]]:
    return [("start", f"{start:.3f}"), ("end", f"{end:.3f}")]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"
