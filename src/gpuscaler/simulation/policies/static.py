"""The two extremes of a comparison: a fixed fleet sized for the trace's peak, and the bound with perfect knowledge of the future."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.measures.bound import lower_bound, serves
from gpuscaler.simulation.measures.waits import Wait
from gpuscaler.simulation.traces.workload import Member, without_spot
from gpuscaler.simulation.world.autoscaler import Decisions, Moment, Purchase, View
from gpuscaler.simulation.world.meter import Failover, Result


class Static:
    """Machines for the moment with the highest demand for GPUs, from the first job to the last; a lost machine is bought again.

    It knows the trace, which no operator does when sizing a fleet. The fleet is the planner's cheapest mix for that moment, without spot if
    anything else is available; pods that fit none of its machines get machines for their own peak as well.
    """

    name = "static"
    steers = False
    soft_taint_shares = ()

    def __init__(self, policy: Policy, pods: Sequence[Member]) -> None:
        # There is no steering here, so no machine can be kept for large pods.
        policy = replace(policy, pools=tuple(replace(pool, closed=False, min_gpus_per_pod=0) for pool in policy.pools))
        self._fleet = fleet_for(without_spot(policy)[0] if without_spot(policy)[0].pools else policy, pods)
        self._lost: list[OfferingKey] = []
        self._bought = 0
        self.decide_at: float | None = None

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        return tuple(sorted(self._fleet.items()))

    def observe(self, moment: Moment, _: View) -> None:
        self._lost += [lost.machine.offering.key for lost in moment.lost]
        self._lost += [refusal.offering for answer in moment.answers for refusal in answer.refusals for _ in range(refusal.missing)]
        if self._lost:
            self.decide_at = moment.now

    def decide(self, _: View, __: float) -> Decisions:
        missing = Counter(self._lost)
        self._lost = []
        self.decide_at = None
        self._bought += 1
        return Decisions(
            purchases=tuple(
                Purchase(f"static-{self._bought}/{'/'.join(key)}", (key,), count, standing=True, why="replaces a lost machine")
                for key, count in sorted(missing.items())
            )
        )


def fleet_for(policy: Policy, pods: Sequence[Member]) -> Mapping[OfferingKey, int]:
    """Machines, by offering, for the peak of ``pods`` and for pods that do not fit those machines."""
    fleet: Counter[OfferingKey] = Counter()
    offerings = policy.offerings
    remaining = [pod for pod in pods if any(serves(offering, pod.spec) for offering in offerings.values())]
    while remaining:
        waiting = [pod.pod(created=pod.submit) for pod in at_peak(remaining)]
        machines = plan(Cluster.of(waiting), State(), policy, 0.0).machines
        # Every plan begins with an empty cluster; minimum sizes and headroom are bought only once.
        bought = [machine for machine in machines if not fleet or machine.purpose != "spare"]
        fleet.update(machine.key for machine in bought)
        before = len(remaining)
        served = {digest for digest, spec in {pod.spec.digest: pod.spec for pod in remaining}.items() if _is_served(spec, fleet, offerings)}
        remaining = [pod for pod in remaining if pod.spec.digest not in served]
        if len(remaining) == before:
            # Limits leave no room for the rest.
            break
    return fleet


def _is_served(spec: PodSpec, fleet: Iterable[OfferingKey], offerings: Mapping[OfferingKey, Offering]) -> bool:
    return any(serves(offerings[key], spec) for key in fleet)


def at_peak(pods: Sequence[Member]) -> list[Member]:
    """The pods that run at the moment with the highest demand for GPUs (most pods, if none wants any), if all start on arrival.

    A pod of no duration runs at its moment.
    """
    running: list[tuple[float, int]] = []
    best, most = 0.0, (-1.0, -1)
    demand = 0.0
    for number, pod in enumerate(pods):
        while running and running[0][0] <= pod.submit:
            demand -= pods[heapq.heappop(running)[1]].gpus
        heapq.heappush(running, (pod.submit + pod.duration, number))
        demand += pod.gpus
        if (round(demand, 6), len(running)) > most:
            best, most = pod.submit, (round(demand, 6), len(running))
    return [pod for pod in pods if pod.submit <= best < pod.submit + pod.duration or pod.submit == best]


def optimal_hindsight(pods: Sequence[Member], policy: Policy, markets: Markets, *, seed: int, began: float) -> Result:
    """The minimum cost of all of ``pods``, in the form of a policy's result (:mod:`gpuscaler.simulation.measures.bound`).

    Waiting times are ignored.
    """
    offerings = [markets.cheapest(offering) for offering in policy.offerings.values()]
    hours = dict.fromkeys((pod.spec.digest for pod in pods), 0.0)
    specs = {pod.spec.digest: pod.spec for pod in pods}
    served = {digest for digest, spec in specs.items() if any(serves(offering, spec) for offering in offerings)}
    for pod in pods:
        hours[pod.spec.digest] += pod.duration / 3600.0
    bound = lower_bound([(specs[digest], hours[digest]) for digest in sorted(served)], offerings)
    return Result(
        policy="optimal-hindsight",
        seed=seed,
        cost=bound,
        lower_bound=bound,
        gpu_hours_used=sum(pod.gpus * pod.duration for pod in pods if pod.spec.digest in served) / 3600.0,
        gpu_hours_paid=0.0,
        wait=Wait(),
        served=sum(pod.spec.digest in served for pod in pods),
        unserved=sum(pod.spec.digest not in served for pod in pods),
        unserved_reasons=(),
        evictions=0,
        lost_gpu_hours=0.0,
        machine_hours=(),
        kept=0,
        broken=0,
        failover=Failover(),
        reclaimed=0,
        failed=0,
        capacity_errors=0,
        plans=0,
        began=began,
        ended=began,
        services=(),
        timeline=(),
        decisions=(),
    )
