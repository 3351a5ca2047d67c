"""Prometheus metrics. Labels are pools, markets, types and verbs: never names of nodes or pods, of which there are too many.

``docs/reference/metrics.md`` describes each metric.
"""

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuscaler.clouds.call_errors import CallErrors
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Decision, Sink
from gpuscaler.control.records.status.status import Status
from gpuscaler.kube.requests import BUCKETS, RequestMetrics
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.holds import ACTIVITIES
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.promises import Kept

OFFERING = ("pool", "market", "instance_type")
#: Buckets in seconds: how long before (below zero) or after their forecast machines are ready.
LATE = (-300.0, -120.0, -60.0, -30.0, -10.0, 0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
PLAN = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def _labels(key: OfferingKey) -> tuple[str, str, str]:
    pool, market, instance_type, _ = key
    return pool, market, instance_type


class Metrics(Sink):
    """A sink that counts; ``registry`` has the metrics that ``/metrics`` serves."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._plans = Counter("gpuscaler_plans", "Plans made.", registry=registry)
        self._plan_seconds = Histogram("gpuscaler_plan_seconds", "Time that a plan took.", buckets=PLAN, registry=registry)
        self._decisions = Counter("gpuscaler_decisions", "Plans that bought or removed machines.", registry=registry)
        self._ordered = Counter("gpuscaler_machines_ordered", "Machines ordered.", OFFERING, registry=registry)
        self._granted = Counter("gpuscaler_machines_granted", "Machines that the cloud granted.", OFFERING, registry=registry)
        self._refused = Counter("gpuscaler_refusals", "Offerings that the cloud refused.", (*OFFERING, "cause"), registry=registry)
        self._opened = Counter("gpuscaler_machines_opened", "Machines that became open nodes.", OFFERING, registry=registry)
        self._unfamiliar = Counter(
            "gpuscaler_unfamiliar_machines", "Machines granted with an offering outside their pool.", ("pool",), registry=registry
        )
        self._stopped = Counter(
            "gpuscaler_machines_stopped", "Machines of plans that the hard stop did not order.", ("pool",), registry=registry
        )
        self._lacking = Counter(
            "gpuscaler_machines_lacking",
            "Machines given up because they never showed a resource.",
            ("pool", "instance_type", "resource"),
            registry=registry,
        )
        self._lost = Counter("gpuscaler_machines_lost", "Machines that ended before they opened.", OFFERING, registry=registry)
        self._removed = Counter("gpuscaler_removals", "Finished removals.", ("pool", "result"), registry=registry)
        self._failed = Counter("gpuscaler_failed_acts", "Writes and calls that failed.", registry=registry)
        self._promises = Counter("gpuscaler_promises", "Pods that a node was opened for.", ("outcome",), registry=registry)
        self._stray = Counter("gpuscaler_stray_pods", "Pods bound to another node than the promised one.", registry=registry)
        self._turned_away = Counter(
            "gpuscaler_pods_turned_away", "Pods that gpuscaler bound and the kubelet rejected.", ("pool", "reason"), registry=registry
        )
        self._late = Histogram(
            "gpuscaler_forecast_error_seconds",
            "Time from the forecast until a machine was ready; negative if the machine was early.",
            ("basis",),
            buckets=LATE,
            registry=registry,
        )
        self.lag = Histogram("gpuscaler_loop_lag_seconds", "Delay of the event loop.", buckets=LAG, registry=registry)
        for outcome in ("kept", "broken"):
            self._promises.labels(outcome)

    def planned(self, plan: Plan, /) -> None:
        self._plans.inc()
        if plan.solve_seconds is not None:
            self._plan_seconds.observe(plan.solve_seconds)

    def decided(self, _decision: Decision, /) -> None:
        self._decisions.inc()

    def observed(self, seen: Reconciliation, /) -> None:
        for fate in seen.arrivals.breaker_events:
            if isinstance(fate, offering_events.Lacking):
                pool, _, instance_type, _ = fate.offering
                self._lacking.labels(pool, instance_type, fate.resource).inc()
        self._stray.inc(len(seen.stray))
        for turned_away in seen.turned_away:
            self._turned_away.labels(turned_away.pool, turned_away.reason).inc()
        for outcome in seen.outcomes:
            self._promises.labels("kept" if isinstance(outcome, Kept) else "broken").inc()

    def happened(self, what: HistoryEvent, /) -> None:
        by_offering = {kinds.GRANTED: self._granted, kinds.OPENED: self._opened, kinds.LOST: self._lost}
        if what.offering is not None and what.kind in by_offering:
            by_offering[what.kind].labels(*_labels(what.offering)).inc()
        elif what.offering is not None and what.kind == kinds.ORDERED:
            self._ordered.labels(*_labels(what.offering)).inc(what.machines)
        elif what.offering is not None and what.kind == kinds.REFUSED:
            self._refused.labels(*_labels(what.offering), what.cause).inc()
        elif what.kind in (kinds.KEPT, kinds.REMOVED):
            self._removed.labels(what.offering.pool if what.offering else "", what.kind).inc()
        elif what.kind == kinds.ACTED:
            self._failed.inc()
        elif what.kind == kinds.STOPPED:
            self._stopped.labels(what.cause).inc(what.machines)
        elif what.offering is not None and what.kind == kinds.UNFAMILIAR:
            self._unfamiliar.labels(what.offering.pool).inc()
        if what.late is not None:
            self._late.labels("seen" if what.seen else "assumed").observe(what.late)


@dataclass(slots=True, eq=False)
class Gauges(Collector):
    """Metrics that are computed at each scrape. ``numbers`` are counters of other objects, by name, with their help texts.

    ``cloud_errors`` are the failed calls of the cloud.
    """

    status: Callable[[], Status | None]
    requests: RequestMetrics
    leading: Callable[[], bool]
    synced: Callable[[], bool]
    cloud_errors: Callable[[], Iterable[CallErrors]] = tuple
    numbers: dict[str, tuple[str, Callable[[], float]]] = field(default_factory=dict)

    def describe(self) -> list[Metric]:
        """No metrics: they are only known at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("gpuscaler_leader", "1 while this process leads.", float(self.leading()))
        yield GaugeMetricFamily("gpuscaler_synced", "1 once every kind has been listed.", float(self.synced()))
        for name, (text, value) in self.numbers.items():
            yield CounterMetricFamily(name, text, value())
        yield from self._requests()
        yield from _cloud_metrics(tuple(self.cloud_errors()))
        status = self.status()
        if status is not None:
            yield from _status_metrics(status)

    def _requests(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "gpuscaler_kube_requests", "Requests to the API server; status 0 means no answer.", labels=("verb", "resource", "status")
        )
        seconds = HistogramMetricFamily("gpuscaler_kube_request_seconds", "Time until the head of an answer.", labels=("verb", "resource"))
        retried = CounterMetricFamily("gpuscaler_kube_retries", "Reads that were repeated.", labels=("verb", "resource"))
        withheld = CounterMetricFamily("gpuscaler_kube_withheld_writes", "Writes that a dry run withheld.", labels=("verb", "resource"))
        for (what, status), number in self.requests.requests.items():
            answered.add_metric((*what, str(status)), number)
        for what, latency in self.requests.latencies.items():
            total, buckets = 0, []
            for bound, number in zip((*map(str, BUCKETS), "+Inf"), latency.counts, strict=True):
                total += number
                buckets.append((bound, float(total)))
            seconds.add_metric(what, buckets, latency.total)
        for family, counts in ((retried, self.requests.retries), (withheld, self.requests.withheld)):
            for what, number in counts.items():
                family.add_metric(what, number)
        yield from (answered, seconds, retried, withheld)
        limited = self.requests.limited_seconds
        yield CounterMetricFamily("gpuscaler_kube_rate_limited_seconds", "Time that requests waited for the rate limit.", limited)


def _cloud_metrics(cloud_errors: Collection[CallErrors]) -> Iterator[Metric]:
    failing = GaugeMetricFamily("gpuscaler_cloud_failing", "Calls to the cloud that fail now.", labels=("part", "cause"))
    for (part, cause), number in Counts((error.part, error.cause) for errors in cloud_errors for error in errors.failing.values()).items():
        failing.add_metric((part, cause), number)
    failed = CounterMetricFamily("gpuscaler_cloud_errors", "Calls to the cloud that failed.", labels=("part", "cause"))
    for errors in cloud_errors:
        for labels, number in errors.counts.items():
            failed.add_metric(labels, number)
    yield from (failing, failed)


def _removal_metrics(status: Status) -> Iterator[Metric]:
    steps = GaugeMetricFamily("gpuscaler_removals_under_way", "Removals in progress, by step.", labels=("pool", "step"))
    held = GaugeMetricFamily("gpuscaler_held_removals_dollars_per_hour", "Cost per hour of machines with held removals.", labels=("pool",))
    for (pool, step), count in Counts((removal.pool, removal.step) for removal in status.removals).items():
        steps.add_metric((pool, step), count)
    for pool in sorted({removal.pool for removal in status.removals if removal.held}):
        held.add_metric(
            (pool,), sum(removal.dollars_per_hour or 0.0 for removal in status.removals if removal.held and removal.pool == pool)
        )
    yield from (steps, held)


def _unready_metrics(status: Status) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("gpuscaler_unready_nodes", "Nodes that have not been Ready for 5 minutes.", labels=("pool",))
    about = "Cost per hour of the machines of nodes that have not been Ready for 5 minutes."
    dollars = GaugeMetricFamily("gpuscaler_unready_dollars_per_hour", about, labels=("pool",))
    for pool in status.pools:
        unready_nodes = [unready for unready in status.unready if unready.pool == pool.name]
        nodes.add_metric((pool.name,), len(unready_nodes))
        dollars.add_metric((pool.name,), sum(unready.dollars_per_hour for unready in unready_nodes))
    yield from (nodes, dollars)


def _status_metrics(status: Status) -> Iterator[Metric]:
    machines = GaugeMetricFamily("gpuscaler_machines", "Machines of the pools.", labels=(*OFFERING, "state"))
    for kind in status.kinds:
        machines.add_metric((kind.pool, kind.market, kind.instance_type, kind.state), kind.machines)
    gpus = GaugeMetricFamily("gpuscaler_gpus", "GPUs of open machines.", labels=("pool",))
    used = GaugeMetricFamily("gpuscaler_gpus_requested", "GPUs that bound pods request.", labels=("pool",))
    dollars = GaugeMetricFamily("gpuscaler_dollars_per_hour", "Cost per hour of open machines.", labels=("pool",))
    for pool in status.pools:
        gpus.add_metric((pool.name,), pool.gpus)
        used.add_metric((pool.name,), pool.used)
        dollars.add_metric((pool.name,), pool.dollars_per_hour)
    waiting = GaugeMetricFamily(
        "gpuscaler_pending_pods", "Pending pods: machines are ordered for them, or cannot be bought.", labels=("state",)
    )
    waiting.add_metric(("unplaced",), status.unplaced)
    waiting.add_metric(("coming",), status.coming)
    yield from (machines, gpus, used, dollars, waiting, *_removal_metrics(status))
    yield from _unready_metrics(status)
    findings = GaugeMetricFamily("gpuscaler_doctor_findings", "Mistakes that the last checks found.", labels=("check", "severity"))
    for entry in status.doctor.counts:
        findings.add_metric((entry.check, entry.severity), entry.count)
    yield findings
    stopping = sum(breaker.open for breaker in status.breakers)
    holds = GaugeMetricFamily("gpuscaler_hold", "1 while a person holds this activity.", labels=("activity",))
    held = {hold.activity for hold in status.holds}
    for activity in ACTIVITIES:
        holds.add_metric((activity,), float(activity in held))
    yield holds
    yield GaugeMetricFamily("gpuscaler_breakers_open", "Breakers that are open.", stopping)
    causes = GaugeMetricFamily("gpuscaler_breakers", "Breakers that are open, by cause.", labels=("cause",))
    for cause, number in sorted(Counts(breaker.cause for breaker in status.breakers if breaker.open).items()):
        causes.add_metric((cause,), number)
    yield causes
    yield GaugeMetricFamily("gpuscaler_set_aside_objects", "Objects that could not be parsed.", status.set_aside_count)
    yield GaugeMetricFamily("gpuscaler_troubles", "Sentences under Problems in gpuscaler status.", len(status.troubles))
    yield GaugeMetricFamily("gpuscaler_last_look_timestamp_seconds", "When the controller last observed the cluster.", status.looked_at)
    yield GaugeMetricFamily("gpuscaler_last_plan_timestamp_seconds", "When the controller last planned.", status.planned_at)
    promises = status.promises_kept + status.promises_broken
    if promises:
        share = status.promises_kept / promises
        yield GaugeMetricFamily("gpuscaler_promises_kept_ratio", "Share of all promises that were kept.", share)
