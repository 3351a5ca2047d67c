"""The metrics API as a whole: source, trust, certificate and server, each with its own task."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from gpuscaler.kube.access import Access, from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import in_cluster
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.reviews import Reviews
from gpuscaler.metrics.api.answering import Responder
from gpuscaler.metrics.api.figures import RequestFigures, metrics_page
from gpuscaler.metrics.api.publishing import OwnCertificate, Publisher, ServiceName
from gpuscaler.metrics.api.server import Api, listen
from gpuscaler.metrics.api.trust import Trust, TrustError, WatchedTrust
from gpuscaler.metrics.autoscale.controller import AutoscaleController
from gpuscaler.metrics.command.autoscale import ReadySource, make_autoscale_controller
from gpuscaler.metrics.command.command import FlagError, Options
from gpuscaler.metrics.command.figures import SourceFigures
from gpuscaler.metrics.command.rules import RulesFile
from gpuscaler.metrics.command.upkeep import SelfCheck
from gpuscaler.metrics.sources.direct import ExporterSource
from gpuscaler.metrics.sources.discovering import Discoverer, RelistTimes
from gpuscaler.metrics.sources.evaluating import Evaluator, Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.outages import EXPORTER, RULE, outage_log
from gpuscaler.metrics.sources.prometheus import Prometheus, Server, access_of, server_of
from gpuscaler.metrics.sources.source import PrometheusSource
from gpuscaler.serving.health import log_problems
from gpuscaler.serving.logs import OutageLog
from gpuscaler.serving.tls import CertificateError, LiveTls

_LOG = structlog.get_logger(__name__)
#: Reviews of tokens and rights: requests per second, burst, and time-out in seconds, as in delegating API servers.
_REVIEWS, _REVIEWS_AT_ONCE, _REVIEW_TIMEOUT = 200.0, 400, 10.0
#: Seconds that a pod continues to answer after it was asked to end and is no longer ready.
LINGER = 3.0


class ApiAccess(NamedTuple):
    """Access to the API server: for objects, for tokens and the ConfigMap, and for rights. They may be the same."""

    objects: Access
    authentication: Access
    authorization: Access


class Clocks(NamedTuple):
    """The clocks ``monotonic`` and ``wall`` (Unix time), both in seconds."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


@dataclass(slots=True)
class MetricsService:
    """The metrics API. ``listening`` is called with the port once requests are accepted.

    Creating it raises :class:`~gpuscaler.metrics.command.command.FlagError` for invalid flags,
    :class:`~gpuscaler.kube.errors.AccessError` for invalid access to Prometheus, and
    :class:`~gpuscaler.serving.tls.CertificateError` and OSError for certificates and folders.
    """

    options: Options
    accesses: ApiAccess
    rules: RulesFile
    environ: Mapping[str, str]
    clocks: Clocks
    random: Random
    listening: Callable[[int], None] = lambda _port: None
    figures: RequestFigures = field(default_factory=RequestFigures, init=False)
    servers: tuple[Server, ...] = field(init=False)
    service: ServiceName = field(init=False)
    own_certificate: OwnCertificate | None = field(init=False)
    tls: LiveTls = field(init=False)
    #: The folder of its own certificate, unless a folder is given; it is deleted with the key when the service ends.
    _temporary_folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        options, settings = self.options, self.options.settings
        options.check()
        self.servers = prometheus_servers(options, self.environ)
        options.trust.as_config_map()
        self.service = ServiceName(settings.service, settings.service_namespace or self.accesses.objects.namespace)
        if options.certificate is not None and options.key is not None:
            self.own_certificate, files = None, (options.certificate, options.key)
        else:
            folder = options.certificate_folder
            if folder is None:
                self._temporary_folder = tempfile.TemporaryDirectory(prefix="gpuscaler-metrics-", ignore_cleanup_errors=True)
                folder = Path(self._temporary_folder.name)
            self.own_certificate = OwnCertificate(folder, self.service, self.clocks.wall)
            files = self.own_certificate.files
        self.tls = LiveTls(*files, ask_clients=True)

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError if the address cannot be bound."""
        with self._temporary_folder or nullcontext():
            await self._run()

    async def _run(self) -> None:
        for text in self.options.warnings():
            _LOG.warning("others can read a secret", problem=text)
        async with AsyncExitStack() as stack:
            clients = [Client(await stack.enter_async_context(HttpTransport(access))) for access in self.accesses]
            objects = replace(clients[0], limit=RateLimit(self.options.qps, self.options.burst))
            limit = RateLimit(_REVIEWS, _REVIEWS_AT_ONCE)
            tokens, access = (replace(client, limit=limit, write_timeout=_REVIEW_TIMEOUT) for client in clients[1:])
            rights = Reviews(
                tokens, access, clock=self.clocks.monotonic, ttl=self.options.ttl, always=frozenset(self.options.always_allowed)
            )
            registry = CollectorRegistry()
            registry.register(self.figures)
            source: PrometheusSource | ExporterSource
            if self.servers:
                prometheus = self._prometheus()
                stack.push_async_callback(prometheus.close)
                source = self._prometheus_source(prometheus, objects, registry)
            else:
                source = self._exporter_source(objects, registry)

            def accept_trust(trust: Trust) -> None:
                try:
                    self.tls.accept_authorities(trust.pem)
                except CertificateError as error:
                    raise TrustError(str(error)) from error
                api.trust = trust

            trust = WatchedTrust(tokens, self._trust_flags, accept_trust)
            api = Api(self._responder(source, trust, registry), rights, self.clocks.wall, self.figures.count)
            server = await listen(api, host=self.options.address, port=self.options.port, tls=self.tls.context)
            stack.push_async_callback(server.close)
            self.listening(server.port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(trust.run(), name="watch trusted authorities")
                    tasks.create_task(self.tls.run(), name="watch certificates")
                    if isinstance(source, PrometheusSource):
                        tasks.create_task(self.rules.run(source.discoverer.use_rules), name="watch rules")
                    tasks.create_task(self._outage_log(source).run(), name="log outages")
                    groups = self.options.settings.apis
                    tasks.create_task(Publisher(objects, self.service, self.own_certificate, groups).run(), name="maintain APIServices")
                    own_account = tokens if self.accesses.objects.in_pod else None
                    self_check = SelfCheck(self.tls, self.service.hosts()[1], own_account, access, groups, self.clocks.wall)
                    tasks.create_task(self_check.run(), name="check certificate and rights")
                    tasks.create_task(source.run(), name="keep values current")
                    tasks.create_task(log_problems(api.responder.ready), name="log failed health checks")
                    if self.options.settings.autoscale:
                        tasks.create_task(self._autoscale_controller(objects, source).run(), name="autoscale by annotations")
            finally:
                self._stopping = True
                if self.accesses.objects.in_pod:
                    # Clients that have not noticed yet that this pod ends still send requests.
                    await asyncio.sleep(LINGER)

    def _outage_log(self, source: PrometheusSource | ExporterSource) -> OutageLog:
        words = RULE if isinstance(source, PrometheusSource) else EXPORTER
        return outage_log(source.outages, self.clocks.monotonic, self._timing.period, words)

    def _autoscale_controller(self, client: Client, source: ReadySource) -> AutoscaleController:
        identity = f"{self.environ.get('HOSTNAME', 'gpuscaler-metrics')}-{self.random.getrandbits(64):016x}"
        clock, wall = self.clocks
        namespace = self.accesses.objects.namespace
        return make_autoscale_controller(client, source, namespace=namespace, identity=identity, clock=clock, wall=wall, random=self.random)

    def _trust_flags(self) -> dict[str, str]:
        try:
            return self.options.trust.as_config_map()
        except FlagError as error:
            raise TrustError(str(error)) from error

    def _prometheus(self) -> Prometheus:
        return Prometheus(
            self.servers,
            self.clocks.monotonic,
            timeout=self.options.settings.timeout,
            post=self.options.prometheus_verb == "POST",
            warn=lambda text: _LOG.warning("Prometheus warns", text=text),
        )

    def _prometheus_source(self, prometheus: Prometheus, client: Client, registry: CollectorRegistry) -> PrometheusSource:
        options, clock = self.options, self.clocks.monotonic
        looks = RelistTimes(interval=options.relist, max_age=options.max_age)
        discoverer = Discoverer(prometheus, self.rules.rules, wall=self.clocks.wall, looks=looks)
        evaluator = Evaluator(prometheus, clock=clock, timing=self._timing)
        objects = Objects(client, clock=clock, random=self.random)
        source = PrometheusSource(discoverer, evaluator, objects, clock=clock)
        prometheus_metrics = prometheus.metrics
        figures = SourceFigures(
            source.answers, evaluator.counts, discoverer=discoverer, prometheus=prometheus_metrics, objects=lambda: objects.lists
        )
        registry.register(figures)
        return source

    def _exporter_source(self, client: Client, registry: CollectorRegistry) -> ExporterSource:
        clock = self.clocks.monotonic
        objects = Objects(client, clock=clock, random=self.random)
        scraping = self.options.settings.exporters
        source = ExporterSource(objects, scraping=scraping, timing=self._timing, clock=clock, wall=self.clocks.wall)
        registry.register(SourceFigures(source.answers, source.counts, objects=lambda: objects.lists))
        return source

    @property
    def _timing(self) -> Timing:
        settings = self.options.settings
        # A request that is sent immediately fails by its own time-out; requests queued behind others wait a bit longer.
        return Timing(period=settings.period, stale=settings.stale, hold=settings.hold, patience=1.2 * settings.timeout)

    def _responder(self, source: PrometheusSource | ExporterSource, trust: WatchedTrust, registry: CollectorRegistry) -> Responder:
        return Responder(
            source,
            ready={
                "shutdown": lambda: "stopping" if self._stopping else "",
                "trust": lambda: "" if trust.is_loaded else trust.trouble,
                "source": lambda: source.trouble,
            },
            pages={"/metrics": metrics_page(registry)},
            groups=self.options.settings.apis,
        )


def prometheus_servers(options: Options, environ: Mapping[str, str]) -> tuple[Server, ...]:
    """The Prometheus servers, none with --source exporters. Raises :class:`~gpuscaler.kube.errors.AccessError` for invalid options."""
    cluster_access = None
    if options.prometheus_kubeconfig is not None:
        cluster_access = from_kubeconfig([options.prometheus_kubeconfig], environ=environ)
    elif options.prometheus_in_cluster:
        cluster_access = in_cluster(environ)
    servers = []
    for url in options.prometheus_urls:
        access = access_of(
            url,
            ca_file=options.prometheus_ca,
            certificate_file=options.prometheus_certificate,
            key_file=options.prometheus_key,
            token_file=options.prometheus_token,
            headers=options.prometheus_headers,
            header_files=options.prometheus_header_files,
        )
        if cluster_access is not None:
            # Credentials are sent only to the server in the URL, and only over TLS; TLS flags take precedence.
            secure = access.server.startswith("https:")
            tls = cluster_access.tls if secure and options.prometheus_ca is None else access.tls
            credentials = cluster_access.credentials if secure and options.prometheus_token is None else access.credentials
            access = replace(access, tls=tls, credentials=credentials)
        servers.append(server_of(access))
    return tuple(servers)
