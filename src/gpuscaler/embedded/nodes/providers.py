"""The simulated cloud of `gpuscaler run`, made from its settings."""

import asyncio
from hashlib import sha256
from pathlib import Path
from random import Random

from gpuscaler.control.process.running import Part, ProcessContext, ProviderSetup, UnusableError
from gpuscaler.embedded.nodes.keeping import CloudStore, StateSaver
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.machines import Machines, Naming
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.settings.clouds.simulated import Dry, Simulated, Span
from gpuscaler.settings.run_settings import RunSettings
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays, Faults, MissingResource
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import CallFaults, SimulatedProvider
from gpuscaler.simulation.cloud.room import Quota
from gpuscaler.simulation.traces import spot_markets
from gpuscaler.simulation.traces.jobs import TraceError
from gpuscaler.simulation.traces.spot import read_spot


async def make(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
    """The simulated cloud, whose machines become Nodes of the cluster behind ``place``; it continues from its saved state."""
    simulated, pools = settings.simulated, settings.policy.pools
    store = CloudStore(place.client, namespace=place.namespace)
    before = await store.load()
    began = before.began or place.now()
    try:
        markets = markets_of(settings.policy, simulated, began)
    except TraceError as error:
        raise UnusableError(f"simulated.dry: {error}") from error
    quotas = [Quota(machine_quota.machines, machine_quota.types, machine_quota.market) for machine_quota in simulated.quotas]
    naming = naming_in(place.namespace)
    core = SimulatedCloud(
        pools,
        seed=simulated.seed,
        delays=delays_of(simulated),
        faults=faults_of(simulated),
        markets=markets,
        quotas=quotas,
        ids=f"{naming.prefix}{{:05d}}",
    )
    machines = Machines(place.client, now=place.now, naming=naming, faults=faults_of(simulated), seed=simulated.seed)
    provider = SimulatedProvider(core, pools, now=place.now, listener=machines.hear, faults=call_faults_of(simulated), seed=simulated.seed)
    if before.began:
        provider.resume(before)
    # Before time continues: events of machines while nothing led come after the saved state.
    await machines.reconcile(core.list())
    keeper = StateSaver(store, provider, began=began)
    parts = [provider.run, machines.run]
    if not place.dry_run:
        provider.keep = keeper.keep
        parts.append(keeper.run)
    if simulated.kubelet:
        parts += _kubelets(place, core, simulated.seed, naming)
    return ProviderSetup(provider=provider, parts=parts, reload=lambda now: provider.set_pools(now.policy.pools))


def naming_in(namespace: str) -> Naming:
    """The names of the machines of the cloud saved in ``namespace``; another namespace may hold another cloud for the same cluster."""
    return Naming(prefix=f"sim-{sha256(namespace.encode()).hexdigest()[:4]}-")


def _kubelets(place: ProcessContext, core: SimulatedCloud, seed: int, naming: Naming) -> list[Part]:
    # They need a picture of their own, because they must receive everything that exists when they begin.
    picture = Picture(place.client, clock=asyncio.get_running_loop().time, random=Random(seed), resources=(PODS, NODES))

    def pull(node: str) -> float:
        return core.image_pull(node, place.now())

    def ours(node: Node) -> bool:
        # The cluster may be a real one, whose other nodes have kubelets that run real pods.
        return naming.is_ours(node.provider_id)

    return [
        Kubelets(
            place.client, picture, now=place.now, pull=pull, plugin_pull=core.plugin_pull, is_ours=ours, lasts=core.kubelet_lifetime
        ).run,
        picture.run,
    ]


def delays_of(settings: Simulated) -> Delays:
    return Delays(
        boot=_delay(settings.boot),
        device_plugin=_delay(settings.device_plugin_delay),
        answer=_delay(settings.capacity_error_delay),
        image_pull=_delay(settings.image_pull),
    )


def faults_of(settings: Simulated) -> Faults:
    """The faults of the cloud beside dry spot markets, from ``faults`` in the settings."""
    return Faults(
        never_registers=settings.faults.never_registers,
        partial_grants=settings.faults.partial_grants,
        gpu_hours_between_failures=NO_FAULTS.gpu_hours_between_failures,
        reclaim=_delay(settings.reclaim.after),
        notice_seconds=settings.reclaim.notice,
        without_notice=settings.reclaim.without_notice,
        never_visible=settings.faults.never_visible,
        impaired=settings.faults.impaired,
        absent=tuple(
            MissingResource(absent_resource.resource, absent_resource.type, absent_resource.share)
            for absent_resource in settings.faults.absent
        ),
        plugin_hours=settings.faults.plugin_restarts / 3600.0,
        plugin_seconds=settings.faults.plugin_away,
        kubelet_hours=settings.faults.kubelet_stops / 3600.0,
    )


def call_faults_of(settings: Simulated) -> CallFaults:
    faults = settings.faults
    return CallFaults(throttled=faults.throttled, lost=faults.lost, stale_seconds=faults.stale, tokens=faults.tokens)


def markets_of(policy: Policy, settings: Simulated, began: float) -> Markets:
    """Markets from the file of series, or markets where the offerings named dry have no machine and all others have unlimited machines.

    Raises :class:`~gpuscaler.simulation.traces.jobs.TraceError` for a file that cannot be used.
    """
    if settings.series:
        return spot_markets.markets_of(policy, [read_spot(Path(settings.series))], seed=settings.seed, began=began)[0]
    capacity: dict[OfferingKey, Steps] = {}
    for offering in policy.offerings.values():
        pool, market, instance_type, zone = offering.key
        if any(_matches(dry, Dry(pool, instance_type, market, zone)) for dry in settings.dry):
            capacity[offering.key] = Steps([0.0], [0.0])
    return Markets(capacity, {}, began=began)


def _matches(pattern: Dry, dry: Dry) -> bool:
    pairs = ((pattern.pool, dry.pool), (pattern.type, dry.type), (pattern.market, dry.market), (pattern.zone, dry.zone))
    return all(not wanted or wanted == actual for wanted, actual in pairs)


def _delay(span: Span) -> Delay:
    return Delay(span.low, span.mode, span.high)
