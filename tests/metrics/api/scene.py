"""The API over real sockets: a source with given values, certificates of real authorities, and an API server for reviews."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.reviews import Reviews
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.api.answering import Responder
from gpuscaler.metrics.api.server import Api, listen
from gpuscaler.metrics.api.trust import parse_trust
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, SourceError, UnknownMetric, Value
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.serving.certificates import CertificateAuthority, CertificatePair
from gpuscaler.serving.connections import Bounds
from gpuscaler.serving.server import BOUNDS
from gpuscaler.serving.tls import LiveTls

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"


@dataclass
class FixedSource:
    """A source with the values of the test. ``labels`` are those of objects by namespace and name."""

    values: list[Value] = field(default_factory=list)
    labels: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    infos: list[MetricInfo] = field(default_factory=lambda: [MetricInfo("pods", True, "duty_cycle_current")])
    outside: list[str] = field(default_factory=list)
    error: SourceError | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def for_object(
        self, *, group_resource: str, namespace: str, name: str, metric: str, metric_selector: LabelSelector = EVERYTHING
    ) -> Value:
        values = self._found(group_resource=group_resource, namespace=namespace, name=name, metric=metric, selector=metric_selector)
        for value in values:
            if value.name == name:
                return value
        raise UnknownMetric

    async def for_selector(
        self,
        *,
        group_resource: str,
        namespace: str,
        label_selector: LabelSelector = EVERYTHING,
        metric: str,
        metric_selector: LabelSelector = EVERYTHING,
    ) -> Sequence[Value]:
        values = self._found(
            group_resource=group_resource, namespace=namespace, labels=label_selector, metric=metric, selector=metric_selector
        )
        return tuple(value for value in values if label_selector.matches(self.labels.get((value.namespace, value.name), {})))

    async def external(self, *, namespace: str, metric: str, metric_selector: LabelSelector = EVERYTHING) -> Sequence[Value]:
        if metric not in self.outside:
            raise UnknownMetric
        values = self._found(metric=metric, namespace=namespace, selector=metric_selector)
        return [value for value in values if metric_selector.matches(value.labels)]

    def custom_metrics(self) -> Sequence[MetricInfo]:
        return self.infos

    def external_metrics(self) -> Sequence[str]:
        return self.outside

    def _found(self, *, metric: str, namespace: str = "", **asked: Any) -> list[Value]:
        self.asked.append({"metric": metric, "namespace": namespace, **asked})
        if self.error is not None:
            raise self.error
        if "group_resource" in asked and not any(metric_info.metric == metric for metric_info in self.infos):
            raise UnknownMetric
        return [value for value in self.values if value.metric == metric and (not namespace or value.namespace in {namespace, ""})]


def pod(name: str, text: str, namespace: str = "default", **more: Any) -> Value:
    return Value("duty_cycle_current", text, NOW, "pods", namespace, name, **more)


@dataclass
class ReviewServer:
    """A transport to an API server that knows ``tokens`` and decides reviews by calling ``allows`` with their spec."""

    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    allows: Callable[[dict[str, Any]], bool] = lambda _: True
    reason: str = ""
    away: bool = False
    specs: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("the API server is away")
        spec = msgspec.json.decode(request.body)["spec"]
        self.specs.append(spec)
        if request.path.endswith("tokenreviews"):
            user = self.tokens.get(spec["token"])
            status: dict[str, Any] = {"authenticated": user is not None, "user": user or {}}
        else:
            status = {"allowed": self.allows(spec), "reason": self.reason}
        yield Answer(201, {"content-type": "application/json"}, _once(msgspec.json.encode({"status": status})))

    async def close(self) -> None:
        pass


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


@dataclass
class HttpReply:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Scene:
    """The served API; ``get`` sends requests as a front proxy, or as the given user."""

    api: Api
    source: FixedSource
    reviewing: ReviewServer
    tls: LiveTls
    url: str
    proxies: CertificateAuthority
    clients: CertificateAuthority
    serving: CertificateAuthority

    def configured(self, *, names: str = '["front-proxy-client"]', proxies: CertificateAuthority | None = None) -> None:
        """Use the trust of a cluster's ConfigMap."""
        trust = parse_trust(
            {
                "client-ca-file": self.clients.certificate.decode(),
                "requestheader-client-ca-file": (proxies or self.proxies).certificate.decode(),
                "requestheader-allowed-names": names,
                "requestheader-username-headers": '["X-Remote-User"]',
                "requestheader-uid-headers": '["X-Remote-Uid"]',
                "requestheader-group-headers": '["X-Remote-Group"]',
                "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            }
        )
        self.tls.accept_authorities(trust.pem)
        self.api.trust = trust

    def context(self, pair: CertificatePair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.serving.certificate.decode())
        if pair is not None:
            pair.load_into(context)
        return context

    async def get(
        self,
        path: str,
        *,
        pair: CertificatePair | None = None,
        user: str = HPA,
        headers: Sequence[tuple[str, str]] = (),
        method: str = "GET",
    ) -> HttpReply:
        """Send a request with the certificate ``pair``; without one, as the front proxy on behalf of ``user``."""
        if pair is None:
            pair, headers = self.proxies.issue("front-proxy-client"), [("X-Remote-User", user), *headers]
        return await self.ask(path, pair, headers, method)

    async def ask(self, path: str, pair: CertificatePair | None, headers: Sequence[tuple[str, str]] = (), method: str = "GET") -> HttpReply:
        connector = aiohttp.TCPConnector(ssl=self.context(pair), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, URL(self.url + path, encoded=True), headers=list(headers), allow_redirects=False) as answer,
        ):
            return HttpReply(answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()})


@asynccontextmanager
async def scene(folder: Path, *, bounds: Bounds = BOUNDS, **more: Any) -> AsyncIterator[Scene]:
    proxies, clients, serving = (CertificateAuthority(name, now=time.time()) for name in ("front-proxy-ca", "kubernetes-ca", "serving-ca"))
    serving.issue("server", hosts=("127.0.0.1", "localhost")).write(folder, "server")
    tls = LiveTls(folder / "server.crt", folder / "server.key", ask_clients=True)
    source, reviewing = FixedSource(), ReviewServer()
    reviews = Reviews(Client(reviewing), Client(reviewing), clock=time.monotonic)
    api = Api(Responder(source, **more), reviews, time.time, lambda *_: None)
    server = await listen(api, host="127.0.0.1", port=0, tls=tls.context, bounds=bounds)
    made = Scene(api, source, reviewing, tls, f"https://127.0.0.1:{server.port}", proxies, clients, serving)
    made.configured()
    try:
        yield made
    finally:
        await server.close()
