"""Assembles the records of ``gpuscaler run``: the recorder, and the tasks that run beside the controller for it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from gpuscaler import __version__
from gpuscaler.clouds.call_errors import CallErrors
from gpuscaler.control.loop.cloud import MessageReceipt
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.process.expander import PrioritiesInForce
from gpuscaler.control.process.running import ProcessContext
from gpuscaler.control.records.cluster_checks import ClusterChecks
from gpuscaler.control.records.events.announcing import Announcer
from gpuscaler.control.records.events.logging import LogLines
from gpuscaler.control.records.events.records import Records
from gpuscaler.control.records.history.history import open_history
from gpuscaler.control.records.history.keeping import HistoryWriter
from gpuscaler.control.records.listening import Listeners
from gpuscaler.control.records.status.metrics import Gauges, Metrics
from gpuscaler.control.records.status.pages import Pages
from gpuscaler.control.records.status.reporting import Reporter
from gpuscaler.control.records.status.status import Process
from gpuscaler.kube.client import Client
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.model.holds import Holds
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.boot_times import Forecast
from gpuscaler.serving import exposition
from gpuscaler.serving.health import Health, log_problems
from gpuscaler.serving.logs import Finding, OutageLog, Words
from gpuscaler.settings.run_settings import PagesSettings, RunSettings

_LOG = structlog.get_logger(__name__)
#: Events and the status must not wait behind the controller's own writes, nor these behind them.
QPS, BURST = 20.0, 100
#: The time-out of one of those writes, in seconds: the next write includes what a failed one lacks.
TELL_SECONDS = 2.0
#: How often the delay of the event loop is measured, in seconds.
LAG_SECONDS = 0.5
#: The log lines about calls of the cloud.
CLOUD_OUTAGE = Words("calls to the cloud fail", "calls to the cloud work again")
#: The pause before a failed part is started again, in seconds.
AGAIN_SECONDS = 10.0
#: How long the last Events may take to be written at the end, in seconds.
FLUSH_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The inputs that the records get from the process. ``pod`` is its pod's name, empty outside a cluster; ``host`` its machine's name.

    ``now`` is the wall clock. ``client`` is fenced by the election and withholds writes on a dry run. ``troubles`` returns problems of
    other parts, ``set_level`` sets the log level, and ``holds`` returns the current holds.
    """

    client: Client
    picture: Picture
    namespace: str
    identity: str
    now: Callable[[], float]
    troubles: Callable[[], tuple[str, ...]]
    pod: str = ""
    host: str = ""
    dry_run: bool = False
    set_level: Callable[[str], None] = lambda _level: None
    holds: Callable[[], Holds] = Holds
    priorities: Callable[[], PrioritiesInForce] = PrioritiesInForce


def make_service(settings: RunSettings, context: ProcessContext, *, pod: str, host: str, set_level: Callable[[str], None]) -> "Service":
    """The records of ``gpuscaler run``. ``pod`` is the name of the process' pod, empty outside a cluster; ``host`` its machine's name.

    ``set_level`` sets the log level.
    """
    service_context = ServiceContext(
        client=context.client,
        picture=context.picture,
        namespace=context.namespace,
        identity=context.identity,
        now=context.now,
        troubles=context.troubles,
        pod=pod,
        host=host,
        dry_run=context.dry_run,
        set_level=set_level,
        holds=lambda: context.hold_watcher.holds,
        priorities=lambda: context.expander.in_force,
    )
    return Service(context=service_context, settings=settings)


def configured_forecast(settings: RunSettings) -> Forecast | None:
    """The time from a grant to a usable machine in the settings of the simulated cloud; None for other clouds."""
    if settings.cloud != "simulated":
        return None
    boot, plugin = settings.simulated.boot, settings.simulated.device_plugin_delay
    return Forecast(
        boot.mode + plugin.mode, boot.high + plugin.high, basis="from simulated.boot and device_plugin_delay; no machine has started yet"
    )


@dataclass(slots=True)
class Service(Records):
    """A recorder with its sinks and servers, which work while :meth:`run` runs."""

    context: ServiceContext = field(kw_only=True)
    settings: RunSettings = field(kw_only=True)
    metrics: Metrics = field(init=False)
    events: EventRecorder = field(init=False)
    history_writer: HistoryWriter = field(init=False)
    reporter: Reporter = field(init=False)
    cluster_checks: ClusterChecks = field(init=False)
    listeners: Listeners = field(default_factory=Listeners, init=False)
    _controller: Controller | None = field(default=None, init=False)
    _led_since: float = field(default=0.0, init=False)
    _pages: PagesSettings = field(init=False)
    _history_trouble: str = field(default="", init=False)
    #: What calls of the cloud that ever failed were about.
    _failed_calls: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        context, history_settings = self.context, self.settings.history
        self._pages = self.settings.pages
        # The settings file's policy until the first plan; then the plan's.
        self.latest.policy = self.settings.policy
        self.latest.simulated = configured_forecast(self.settings)
        self.latest.priorities = context.priorities
        history, self._history_trouble = open_history(
            "" if context.dry_run else history_settings.folder, decisions=history_settings.decisions, most_bytes=history_settings.bytes
        )
        self.metrics, self.history_writer = Metrics(), HistoryWriter(history)
        ours = Reference("Pod", context.pod, context.namespace) if context.pod else None
        own = replace(context.client, limit=RateLimit(qps=QPS, burst=BURST), write_timeout=TELL_SECONDS)
        self.events = EventRecorder(own, now=context.now, instance=context.identity)
        self.reporter = Reporter(
            own,
            self.latest,
            namespace=context.namespace,
            process=self.process,
            troubles=self.troubles,
            leading=self.is_leading,
            now=context.now,
            holds=context.holds,
        )
        self.cluster_checks = ClusterChecks(
            self.latest,
            self.events,
            self._emit,
            settings=lambda: self.settings.doctor,
            policy=self._policy,
            is_leading=self.is_leading,
            now=context.now,
            own=ours,
        )
        self.metrics.registry.register(self._make_gauges())
        self.sinks = (LogLines(), self.metrics, self.history_writer, self.reporter, Announcer(self.events, self.latest, ours))

    # The state of this process

    def process(self) -> Process:
        context = self.context
        port = self.listeners.ports.get("pages", 0)
        return Process(context.identity, __version__, context.pod, context.namespace, port, self._pages.host if port else "", context.host)

    def is_leading(self) -> bool:
        return self._controller is not None

    def _policy(self) -> Policy:
        """The pools and settings as they are stated: plans correct what a pool promises by what its nodes show."""
        found = self.latest.discovered_pools
        return self.settings.policy if found is None else found.policy(self.settings.policy)

    def troubles(self) -> tuple[str, ...]:
        """All current problems, a sentence each."""
        controller = self._controller
        leading = (controller.trouble, controller.cloud.trouble) if controller is not None else ()
        pools = self.latest.discovered_pools.trouble if self.latest.discovered_pools is not None else ""
        own = (*leading, pools, self._history_trouble, self.history_writer.trouble, self.reporter.trouble, *self.listeners.trouble)
        failures = f"{self.failures} records could not be made; the log shows their kinds" if self.failures else ""
        return tuple(trouble for trouble in (*self.context.troubles(), *own, failures) if trouble)

    def call_errors(self) -> tuple[CallErrors, ...]:
        """The failed calls of the cloud while this process leads."""
        controller, pools = self._controller, self.latest.discovered_pools
        if controller is None:
            return ()
        return (controller.cloud.errors, pools.errors) if pools is not None else (controller.cloud.errors,)

    def cloud_outages(self) -> Finding:
        """The calls of the cloud that fail now, and those that failed before and work again."""
        errors = {error.about: error for calls in self.call_errors() for error in calls.failing.values()}
        self._failed_calls |= errors.keys()
        # Before the first list it is not known yet what works for this controller.
        is_known = self._controller is not None and self._controller.cloud.inventory is not None
        return Finding(
            {about: error.text for about, error in errors.items()},
            frozenset(self._failed_calls - errors.keys()) if is_known else frozenset(),
            {about: error.cause for about, error in errors.items()},
        )

    def liveness_problem(self) -> str:
        """The problem of the loop, empty if there is none: a process that leads must observe the cluster regularly, once it can begin."""
        if self._controller is None or self._controller.trouble or not self.context.picture.synced:
            return ""
        last = max(self.latest.observed_at, self._led_since)
        age, most = self.context.now() - last, self.settings.http.alive_within
        return f"the controller has not observed the cluster for {age:.0f} s, expected every {most:g} s" if age > most else ""

    def readiness_problem(self) -> str:
        return "" if self.context.picture.synced else "; ".join(self.context.picture.troubles) or "not every kind has been listed yet"

    # Calls of the process

    def led_by(self, controller: Controller | None, /) -> None:
        """Set the controller that leads in this process, None if none does. Findings of its first observation are not reported as new."""
        self._controller, self._led_since = controller, self.context.now()
        self.forget_observation()
        self.cluster_checks.forget()
        self.latest.inventory = lambda: None if controller is None else controller.cloud.inventory
        self.latest.test_receipt = lambda: MessageReceipt() if controller is None else controller.cloud.test_receipt
        if controller is not None:
            begins = "dry run: takes no Lease; plans show what would be done, and nothing is written"
            _LOG.info(begins if self.context.dry_run else "this process leads", identity=self.context.identity)
        else:
            ends = "dry run: planning has stopped" if self.context.dry_run else "this process does not lead"
            # With its problems: a process that does not lead writes no status.
            _LOG.info(ends, identity=self.context.identity, problems=list(self.context.troubles()))

    def settings_changed(self, settings: RunSettings, /) -> None:
        """Apply settings that can change while it runs; addresses and the history's file change only after a restart."""
        self.settings = settings
        self.latest.simulated = configured_forecast(settings)
        self.context.set_level(settings.log.level)

    # Running

    async def run(self) -> None:
        """Record and serve until cancelled; then write what was not written yet."""
        try:
            await self._serve()
            async with asyncio.TaskGroup() as tasks:
                parts = (self.history_writer.run, self.reporter.run, self.events.run, self._measure_lag, self._log_health)
                for part in (*parts, self._log_cloud_outages, self.cluster_checks.run):
                    tasks.create_task(self._keep_running(part))
                for tls in self.listeners.tls:
                    tasks.create_task(self._keep_running(tls.run))
        finally:
            await self.listeners.close()
            await self._flush_events()
            self.history_writer.history.close()

    async def _keep_running(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``part``, and run it again if it fails: an error in the records must not end the controller."""
        while True:
            try:
                await part()
            except Exception:  # noqa: BLE001  # the controller continues after any error; it is counted and logged
                self.failures += 1
                _LOG.exception("a part of the records failed and is started again", part=part.__qualname__)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _log_health(self) -> None:
        """Log why this process is not alive or ready: probes show the reasons only to this machine."""
        await log_problems({"loop": self.liveness_problem, "synced": self.readiness_problem})

    async def _log_cloud_outages(self) -> None:
        """Log when calls of the cloud begin to fail and when they work again: each of them is repeated every few seconds."""
        await OutageLog(self.cloud_outages, self.context.now, 0.0, CLOUD_OUTAGE).run()

    async def _serve(self) -> None:
        http, settings = self.settings.http, self._pages
        if http.enabled:
            health = Health(alive={"loop": self.liveness_problem}, ready={"synced": self.readiness_problem})
            await self.listeners.serve_metrics(http, [*health.routes(), *exposition.routes(self.metrics.registry)])
        if http.enabled if settings.enabled is None else settings.enabled:
            pages = Pages(self.latest, self.history_writer, self.reporter, leading=self.is_leading, now=self.context.now).routes()
            await self.listeners.serve_pages(settings, pages)
            if settings.authenticated.port is not None:
                await self.listeners.serve_authenticated(settings.authenticated, pages, self.context.client)

    async def _flush_events(self) -> None:
        try:
            # In a separate task: up to CPython 3.11.2, asyncio.timeout raises no TimeoutError in a task that was cancelled before.
            await asyncio.wait_for(self.events.flush(), FLUSH_SECONDS)
        except TimeoutError:
            _LOG.warning("the last Events were not written in time")

    async def _measure_lag(self) -> None:
        """Measure the delay of the event loop: how long a due callback waits for others."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.metrics.lag.observe(max(0.0, loop.time() - due))

    def _turn_failures(self) -> float:
        return float(self._controller.failures.count) if self._controller is not None else 0.0

    def _make_gauges(self) -> Gauges:
        return Gauges(
            # A process that led before must not be counted beside the leader.
            status=lambda: self.reporter.status if self.is_leading() else None,
            requests=self.context.client.metrics,
            leading=self.is_leading,
            synced=lambda: self.context.picture.synced,
            cloud_errors=self.call_errors,
            numbers={
                "gpuscaler_events_written": ("Kubernetes Events written.", lambda: float(self.events.written)),
                "gpuscaler_events_dropped": ("Kubernetes Events that were not written.", lambda: float(self.events.dropped)),
                "gpuscaler_turn_failures": ("Unexpected errors of the control loop.", self._turn_failures),
                "gpuscaler_record_failures": ("Records that could not be made.", lambda: float(self.failures)),
                "gpuscaler_history_lost": (
                    "Events and decisions that are missing in the history.",
                    lambda: float(self.history_writer.lost),
                ),
            },
        )
