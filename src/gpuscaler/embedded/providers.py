"""The providers that `gpuscaler run` can be told of, made from its settings."""

import asyncio
from random import Random

from gpuscaler.clouds.delays import NO_FAULTS, Delay, Delays, Faults
from gpuscaler.clouds.markets import Key, Markets, Steps
from gpuscaler.clouds.simulated import SimulatedCloud
from gpuscaler.clouds.simulated_provider import SimulatedProvider
from gpuscaler.control.running import Made, Place
from gpuscaler.embedded.kubelets import Kubelets
from gpuscaler.embedded.machines import Machines
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.pools import Policy
from gpuscaler.settings.run_settings import Dry, RunSettings, Simulated, Span


async def make(settings: RunSettings, place: Place) -> Made:
    """The simulated cloud, whose machines become Nodes of the cluster behind ``place``."""
    told, pools = settings.simulated, settings.policy.pools
    core = SimulatedCloud(
        pools, seed=told.seed, delays=delays_of(told), faults=faults_of(told), markets=markets_of(settings.policy, told.dry, place.now())
    )
    machines = Machines(place.client, pools, now=place.now)
    provider = SimulatedProvider(core, pools, now=place.now, listener=machines.hear, seed=told.seed)

    def pull(node: str) -> float:
        try:
            return core.image_pull(node, place.now())
        except KeyError:
            return 0.0

    parts = [provider.run, machines.run]
    if told.kubelet:
        # A picture of their own: they must hear of everything that is there when they begin.
        picture = Picture(place.client, clock=asyncio.get_running_loop().time, random=Random(told.seed), resources=(PODS, NODES))
        parts += [Kubelets(place.client, picture, now=place.now, pull=pull).run, picture.run]
    return Made(provider=provider, parts=parts)


def delays_of(told: Simulated) -> Delays:
    return Delays(boot=_delay(told.boot), device_plugin=_delay(told.device_plugin_delay), answer=_delay(told.capacity_error_delay))


def faults_of(told: Simulated) -> Faults:
    """Nothing fails but spot machines whose market ran dry."""
    return Faults(
        never_registers=NO_FAULTS.never_registers,
        partial_grants=NO_FAULTS.partial_grants,
        gpu_hours_between_failures=NO_FAULTS.gpu_hours_between_failures,
        reclaim=_delay(told.reclaim.after),
        notice_seconds=told.reclaim.notice,
        without_notice=told.reclaim.without_notice,
    )


def markets_of(policy: Policy, dry: tuple[Dry, ...], began: float) -> Markets:
    """Markets in which what ``dry`` names has no machine, and everything else as many as are asked for."""
    capacity: dict[Key, Steps] = {}
    for offering in (one for pool in policy.pools for one in pool.offerings):
        pool, market, instance_type, zone = offering.key
        named = (one for one in dry if _matches(one, Dry(pool, instance_type, market, zone)))
        if next(named, None) is not None:
            capacity[offering.key] = Steps([0.0], [0.0])
    return Markets(capacity, {}, began=began)


def _matches(asked: Dry, there: Dry) -> bool:
    pairs = ((asked.pool, there.pool), (asked.type, there.type), (asked.market, there.market), (asked.zone, there.zone))
    return all(not want or want == have for want, have in pairs)


def _delay(span: Span) -> Delay:
    return Delay(span.low, span.mode, span.high)
