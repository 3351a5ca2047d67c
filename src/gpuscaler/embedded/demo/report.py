"""The outcome of a demo as a result of the simulator, so that both have the same report."""

from collections.abc import Iterable, Sequence

from gpuscaler.control.records.events.happening import DECIDED, INSTEAD, LOST, ORDERED, REFUSED, HistoryEvent
from gpuscaler.embedded.demo.stage import Demo
from gpuscaler.embedded.demo.tally import PodLife, first_waits
from gpuscaler.embedded.demo.workload import submissions
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.simulation.cloud.delays import Delays, Faults
from gpuscaler.simulation.cloud.machines import FAILED, RECLAIMED
from gpuscaler.simulation.measures.bound import KIND, lower_bound
from gpuscaler.simulation.measures.fleet import machines_over_time
from gpuscaler.simulation.measures.waits import by_class, curve_of, wait_of
from gpuscaler.simulation.results.report import Inputs, printable
from gpuscaler.simulation.world.meter import Decision, Result, UnservedReason, failover_of, gpu_hours_paid, machine_hours

#: The kinds of decisions in a result, by kind of event.
KINDS = {ORDERED: "buy", INSTEAD: "buy", DECIDED: "remove", REFUSED: "refused", LOST: "lost"}


def result_of(demo: Demo) -> Result:
    """The result of a demo that has ended."""
    core, ended, lives = demo.cluster.core, demo.wall(), demo.tally.lives
    sizes = {submission.job["metadata"]["name"]: submission.pods for submission in submissions(demo.scenario.trace)}
    waits = tuple(first_waits(lives, sizes, ended))
    cut_short = [life for life in lives if life.started is not None and life.ended is not None and not life.finished]
    done = [life for life in lives if life.finished]
    return Result(
        policy="gpuscaler",
        seed=demo.scenario.seed,
        cost=sum(core.cost(machine, ended) for machine in core.history()),
        lower_bound=lower_bound([(life.spec, _hours(life, ended)) for life in done], _offerings(demo.policy)),
        gpu_hours_used=_gpu_hours(done, ended),
        gpu_hours_paid=gpu_hours_paid(core, ended),
        wait=wait_of(waits),
        served=sum(pod_wait.ran for pod_wait in waits),
        unserved=sum(not pod_wait.ran for pod_wait in waits),
        unserved_reasons=_unserved(demo),
        evictions=len(cut_short),
        lost_gpu_hours=_gpu_hours(cut_short, ended),
        machine_hours=machine_hours(core, ended),
        kept=demo.notes.kept,
        broken=demo.notes.broken,
        failover=failover_of(failovers(demo.notes.happenings)),
        reclaimed=sum(event.why == RECLAIMED for event in demo.lost),
        failed=sum(event.why == FAILED for event in demo.lost),
        capacity_errors=sum(event.kind == REFUSED for event in demo.notes.happenings),
        plans=demo.notes.plans,
        began=demo.began,
        ended=ended,
        services=(),
        timeline=tuple(demo.tally.timeline),
        decisions=tuple(_decision(event) for event in demo.notes.happenings if event.kind in KINDS),
        gpu_hours_held=sum(((life.ended or ended) - life.bound) / 3600.0 * life.gpus for life in lives if life.bound is not None),
        waits=waits,
        wait_by_class=by_class(waits),
        wait_curve=curve_of(waits),
        fleet=machines_over_time(core.history(), began=demo.began, ended=ended),
    )


def _hours(life: PodLife, ended: float) -> float:
    return 0.0 if life.started is None else ((life.ended or ended) - life.started) / 3600.0


def _gpu_hours(lives: Iterable[PodLife], ended: float) -> float:
    return sum(_hours(life, ended) * life.gpus for life in lives)


def _offerings(policy: Policy) -> Sequence[Offering]:
    return list(policy.offerings.values())


def _unserved(demo: Demo) -> tuple[UnservedReason, ...]:
    """Why pods had not run when the demo ended, with the controller's reasons at that time."""
    waiting = {life.key for life in demo.tally.lives if life.started is None and life.ended is None}
    reasons: dict[str, int] = {}
    for pending in demo.last.pending if demo.last is not None else ():
        if pending.key in waiting:
            reasons[pending.why] = reasons.get(pending.why, 0) + 1
    return tuple(UnservedReason(pods, reason) for reason, pods in sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0])))


def failovers(happenings: Iterable[HistoryEvent]) -> list[float]:
    """Seconds from each first refusal of a market until another market was tried."""
    delays: list[float] = []
    dry: set[str] = set()
    since = 0.0
    for event in happenings:
        market = event.offering.market if event.offering else ""
        if event.kind == REFUSED:
            since = since if dry else event.at
            dry.add(market)
        elif event.kind == ORDERED and dry and market not in dry:
            delays.append(event.at - since)
            dry.clear()
    return delays


def _decision(event: HistoryEvent) -> Decision:
    what = event.node or " ".join(event.offering[1:] if event.offering else ())
    return Decision(event.at, KINDS[event.kind], what, event.text, len(event.pods))


def inputs_of(demo: Demo) -> Inputs:
    """The settings and inputs of a demo."""
    scenario, trace, delays, faults = demo.scenario, demo.scenario.trace, Delays(), Faults()
    dry_spell = f"spot machines: none available from {scenario.dry / 60:.0f} to {scenario.back / 60:.0f} minutes"
    drawn = [
        f"boot delay: {delays.boot}",
        f"device plugin delay: {delays.device_plugin}",
        f"answer of the cloud: {delays.answer}",
        f"image pull of a machine's first pod: {delays.image_pull}",
        f"{dry_spell}; running ones are reclaimed after {faults.reclaim}, with a notice of {faults.notice_seconds:.0f} s",
    ]
    return Inputs(
        trace=printable(trace.name),
        pools=printable(demo.pools_name),
        spot=(),
        jobs=len(trace.jobs),
        pods=sum(job.pods for job in trace.jobs),
        set_aside=trace.set_aside,
        set_aside_rows=tuple({"line": row.line, "reason": row.reason} for row in trace.bad_rows),
        days=(trace.jobs[-1].submit - trace.jobs[0].submit) / 86_400.0 if trace.jobs else 0.0,
        gpu_model="ignore",
        scheduler_scoring="LeastAllocated",
        steering=True,
        checkpoint_seconds=0.0,
        seed=scenario.seed,
        seeds=1,
        lower_bound=KIND,
        generated=tuple(drawn),
        derived=tuple(_derived(demo)),
    )


def _derived(demo: Demo) -> list[str]:
    trace = demo.scenario.trace
    parts = sum(job.gpus > 0 and job.gpu_milli < 1000 for job in trace.jobs)
    gangs = sum(job.pods > 1 for job in trace.jobs)
    notes = [f"time: {demo.speed:g} times real time, one event loop for API server, scheduler, kubelets, cloud and controller"]
    if demo.scenario.haste != 1:
        haste = demo.scenario.haste
        notes = [f"time: real time, on a real control plane; jobs and machines take {haste:g} times less than they would"]
    if demo.scenario.since is not None:
        notes.append(f"the trace starts at hour {demo.scenario.since / 3600:.1f}: the first part with enough jobs to be worth watching")
    if parts:
        notes.append(f"{parts:,} jobs that request a part of a GPU: each gets a whole one, since no device plugin shares GPUs here")
    if gangs:
        notes.append(f"{gangs:,} jobs of several pods: gangs, which start together")
    return notes
