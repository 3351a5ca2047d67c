"""Assembles `gpuscaler run`: from a settings file and a connection to the API server to a controller that leads."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import structlog

from gpuscaler.clouds.protocol import Provider
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.exporter_pages import ExporterPages
from gpuscaler.control.loop.holding import HoldWatcher
from gpuscaler.control.loop.recorder import Recorder
from gpuscaler.control.loop.store import MemoryStore, OvertakenError, StoreError
from gpuscaler.control.process.expander import PriorityExpander
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.process.settings_file import SettingsFile, changed_keys, restart_keys
from gpuscaler.control.process.steady import SteadyClock
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Forbidden, NotFound, Unreachable
from gpuscaler.kube.leases import LeaderElection, LeaseTimes, NotLeaderError
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, NODES, PODS
from gpuscaler.kube.transport import Transport
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.pools import Policy, boundless_warning, with_default_limit
from gpuscaler.settings.run_settings import ExportersSettings, PaceSettings, RunSettings

_LOG = structlog.get_logger(__name__)

#: The pause before the controller starts again, in seconds, after leadership was lost or the API server was unreachable.
AGAIN_SECONDS = 2.0
#: A coroutine that runs beside the controller until it is cancelled.
Part = Callable[[], Coroutine[Any, Any, None]]


class Clocks(Protocol):
    """The clocks: ``wall`` in seconds since the epoch; ``monotonic`` for leases, preferably one that runs while the machine sleeps."""

    def wall(self) -> float: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """The objects that the parts of one process share.

    ``client`` is fenced by the election, and withholds writes on a ``dry_run``. ``namespace`` holds the objects of gpuscaler itself,
    ``identity`` identifies this process. ``election`` is None if there is none, ``expander`` knows the priorities of Cluster Autoscaler's
    ConfigMap, ``attempts`` the scheduler's failed attempts, ``hold_watcher`` the holds, and ``troubles`` says what is wrong now.
    """

    client: Client
    picture: Picture
    namespace: str
    identity: str
    dry_run: bool
    now: Callable[[], float]
    election: LeaderElection | None
    file: SettingsFile
    expander: PriorityExpander
    attempts: Attempts
    hold_watcher: HoldWatcher
    exporter_pages: ExporterPages | None = None

    def troubles(self) -> tuple[str, ...]:
        """What is wrong now, a sentence each."""
        election = self.election.trouble if self.election else ""
        clock = self.now.trouble if isinstance(self.now, SteadyClock) else ""
        pages = self.exporter_pages.trouble if self.exporter_pages else ""
        own = (self.file.trouble, self.expander.trouble, self.hold_watcher.trouble, election, clock, self.attempts.trouble, pages)
        return tuple(trouble for trouble in (*own, *self.picture.troubles) if trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSetup:
    """A provider, the ``parts`` that must run beside it while this process leads, and the callback for changed settings.

    ``discovered_pools`` are its pools if they are discovered in the cloud, and the file only overrides them.
    """

    provider: Provider
    parts: Sequence[Part] = ()
    reload: Callable[[RunSettings], None] = lambda _settings: None
    discovered_pools: DiscoveredPools | None = None

    def policy(self, settings: RunSettings) -> Policy:
        """The policy in force now."""
        return settings.policy if self.discovered_pools is None else self.discovered_pools.policy(settings.policy)


#: Makes the provider of the settings each time that leading begins; its memory is read from the cluster.
MakeProvider = Callable[[RunSettings, ProcessContext], Coroutine[Any, Any, ProviderSetup]]


class UnusableError(Exception):
    """A part of the process cannot work with the settings; the text names the key, what was seen, and what to do."""


class Records(Recorder, Protocol):
    """A recorder that lives as long as the process."""

    def led_by(self, controller: Controller | None, /) -> None:
        """Set the controller that leads in this process, None if none does."""

    def set_discovered_pools(self, discovered_pools: DiscoveredPools | None, /) -> None:
        """Set the source of discovered pools, None if there are only those of the file."""

    def settings_changed(self, settings: RunSettings, /) -> None: ...

    async def run(self) -> None:
        """Serve the HTTP endpoints and write records until cancelled."""


MakeRecords = Callable[[RunSettings, ProcessContext], Records]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerProcess:
    """One process of the controller. ``namespace`` is used if the settings name none.

    With ``default_limit``, settings without any limit get a modest limit in dollars per hour.
    """

    file: SettingsFile
    transport: Transport
    namespace: str
    identity: str
    clocks: Clocks
    make_provider: MakeProvider
    make_records: MakeRecords
    dry_run: bool = False
    default_limit: bool = False

    async def run(self) -> None:
        """Run until cancelled; the lease is then released.

        Raises :class:`ApiError` or :class:`Unreachable` if the API server cannot be used at all at the start,
        :class:`~gpuscaler.control.loop.store.StoreError` for a memory of another version, and :class:`UnusableError`.
        """
        context = self._place()
        await check_api_server(context, self.file.settings.leader_election.name)
        records = self.make_records(self.file.settings, context)
        lead = _Leadership(self, context, records)
        await context.expander.poll()
        await context.hold_watcher.poll()
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (context.picture, context.attempts, records):
                    tasks.create_task(part.run())
                tasks.create_task(self.file.follow(lead.reload, log_file_trouble))
                tasks.create_task(context.expander.run(lead.plan_again))
                tasks.create_task(context.hold_watcher.run(lead.holds_changed))
                tasks.create_task(lead.run() if context.election is None else context.election.run(lead.run))
        except BaseExceptionGroup as group:
            if isinstance(error := first_error(group), ApiError | Unreachable | StoreError | UnusableError):
                raise error from None
            raise

    def _place(self) -> ProcessContext:
        settings = self.file.settings
        rate = settings.rate_limit
        namespace = settings.namespace or self.namespace
        client = Client(self.transport, limit=RateLimit(qps=rate.qps, burst=rate.burst), dry_run=self.dry_run)
        election = None
        if settings.leader_election.enabled and not self.dry_run:
            election_settings = settings.leader_election
            # With a rate limit of its own: renewals must get through while the controller itself is throttled.
            election = LeaderElection(
                replace(client, limit=RateLimit(qps=5.0, burst=10)),
                name=election_settings.name,
                namespace=namespace,
                identity=self.identity,
                clock=self.clocks.monotonic,
                wall=self.clocks.wall,
                random=Random(self.identity),
                times=LeaseTimes(lease=election_settings.lease, renew=election_settings.renew, retry=election_settings.retry),
            )
            client = client.fenced(election.fence)
        now = SteadyClock(self.clocks.wall, self.clocks.monotonic)
        return ProcessContext(
            client=client,
            picture=Picture(
                client,
                clock=asyncio.get_running_loop().time,
                random=Random(self.identity),
                interner=Interner(max_grace=settings.policy.max_grace),
            ),
            namespace=namespace,
            identity=self.identity,
            dry_run=self.dry_run,
            now=now,
            election=election,
            file=self.file,
            expander=PriorityExpander(client),
            attempts=Attempts(client),
            hold_watcher=HoldWatcher(client, namespace=namespace, now=now),
            exporter_pages=_exporter_pages(settings.exporters, client),
        )


class _Leadership:
    """Runs the controller while this process leads."""

    def __init__(self, running: ControllerProcess, place: ProcessContext, records: Records) -> None:
        self._running, self._place, self._records = running, place, records
        self._controller: Controller | None = None
        self._setup: ProviderSetup | None = None
        self._warned = ""

    async def run(self) -> None:
        """Lead until cancelled. Whenever another process wrote, or might have, everything is read again."""
        while True:
            try:
                await self._lead_in_own_task()
            except* (OvertakenError, NotLeaderError, ApiError, Unreachable) as group:
                _LOG.warning("restarting the control loop", problem=str(first_error(group)))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _lead_in_own_task(self) -> None:
        """Lead once, in a task of its own.

        A task group that is cancelled while a task in it fails raises only the failure, so that code that waits for the end of this task,
        such as an election that was lost, would wait forever.
        """
        task = asyncio.create_task(self._lead_once())
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        task.result()

    async def _lead_once(self) -> None:
        context, settings = self._place, self._running.file.settings
        setup = await self._running.make_provider(settings, context)
        if self._running.file.settings is not settings:
            # The file has changed while there was no controller to get the new settings.
            settings = self._running.file.settings
            setup.reload(settings)
        pages = context.exporter_pages
        controller = Controller(
            picture=context.picture,
            client=context.client,
            provider=setup.provider,
            store=MemoryStore(context.client, namespace=context.namespace),
            policy=self._policy(setup, settings),
            recorder=self._records,
            now=context.now,
            attempts=context.attempts,
            pace=pace_of(settings.pace),
            dry_run=context.dry_run,
            hold_watcher=context.hold_watcher,
            page_events=lambda: pages.events if pages is not None else {},
        )
        self._controller, self._setup = controller, setup
        if setup.discovered_pools is not None:
            setup.discovered_pools.listen(self.plan_again)
        self._records.set_discovered_pools(setup.discovered_pools)
        self._records.led_by(controller)
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (*setup.parts, controller.run):
                    tasks.create_task(part())
                if pages is not None:
                    tasks.create_task(pages.run(controller.turn_soon))
        finally:
            self._controller = self._setup = None
            self._records.led_by(None)
            self._records.set_discovered_pools(None)

    def reload(self, before: RunSettings, now: RunSettings) -> None:
        """Apply the changed settings file."""
        keys = changed_keys(before, now)
        _LOG.info("settings changed", keys=keys)
        if needs_restart := restart_keys(before, now):
            _LOG.warning("takes effect after a restart", keys=needs_restart)
        self._records.settings_changed(now)
        self._place.picture.interner.max_grace = now.policy.max_grace
        if self._controller is not None and self._setup is not None:
            self._setup.reload(now)
            self.plan_again()
            self._controller.set_pace(pace_of(now.pace))

    def holds_changed(self) -> None:
        """Plan soon: a person has stopped or resumed buying or removing."""
        if self._controller is not None:
            self._controller.plan_soon()

    def plan_again(self) -> None:
        """Apply the current policy: the pools or their settings may have changed."""
        if self._controller is not None and self._setup is not None:
            self._controller.set_policy(self._policy(self._setup, self._running.file.settings))

    def _policy(self, setup: ProviderSetup, settings: RunSettings) -> Policy:
        """The policy in force now, with the default limit if no limit was set."""
        policy = self._place.expander.policy(setup.policy(settings))
        self._place.expander.announce()
        if self._running.default_limit and not settings.limits_stated:
            policy = with_default_limit(policy)
        if (warning := boundless_warning(policy)) != self._warned:
            self._warned = warning
            if warning:
                _LOG.warning("no limit is set", problem=warning)
        return policy


def _exporter_pages(settings: ExportersSettings, client: Client) -> ExporterPages | None:
    """What reads the pages of exporters, unless no namespace is set."""
    if not settings.namespace:
        return None
    return ExporterPages(client.urgently(), settings.namespace, settings.port, settings.interval)


def log_file_trouble(trouble: str) -> None:
    """Log that the file has changed and cannot be used; without ``trouble``, that the file has its previous content again."""
    if trouble:
        _LOG.error("the settings file cannot be used; the previous settings stay in force", problem=trouble)
    else:
        _LOG.info("the settings file can be used again; its content is the previous one")


async def check_api_server(context: ProcessContext, lease: str) -> None:
    """Check that the API server serves the objects that are always needed; raise its errors."""
    client, namespace = context.client, context.namespace
    for resource in (NODES, PODS):
        await client.get_page(resource, limit=1)
    names = [(CONFIG_MAPS, "gpuscaler-state"), *([(LEASES, lease)] if context.election is not None else [])]
    for resource, name in names:
        try:
            await client.get(resource, name, namespace=namespace)
        except NotFound:
            continue
    try:
        await client.get(NAMESPACES, namespace)
    except NotFound as error:
        raise StoreError(
            f"namespace {namespace}: saw no such namespace, expected one that exists; create it, or set the key namespace"
        ) from error
    except Forbidden as error:
        # A namespace that may not be read can still exist.
        _LOG.warning("it could not be checked whether the namespace exists", problem=str(error))


def pace_of(settings: PaceSettings) -> Pace:
    return Pace(
        debounce=settings.debounce,
        patience=settings.patience,
        resync=settings.resync,
        register=settings.register_timeout,
        ready=settings.ready_timeout,
        consolidate=settings.consolidate,
    )


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error among several that happened together."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
