"""Real traces through gpuscaler and through other autoscalers, on AWS GPU machines of five families, spot beside on-demand."""

import resource
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.figures import GIB, REGION, Figure, types_of_families
from benchmarks.simulation_runs import WORKERS, Case, Runs
from gpuscaler.model.pools import Policy
from gpuscaler.settings import parse_policy
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.results.campaign import Setting, run_all
from gpuscaler.simulation.traces.spot import read_spot
from gpuscaler.simulation.traces.traces import Job, Trace, read_trace
from gpuscaler.simulation.traces.workload import Shaping
from gpuscaler.simulation.world.meter import Result

DATA = Path(__file__).parents[2] / "shared" / "data"
PHILLY, OPENB = DATA / "jobs_philly_2017_first_half.csv.gz", DATA / "jobs_openb_v2023.csv.gz"
SPOT = DATA / "spot_availability_changes.csv.gz"
#: Assumed requests of Philly's jobs beside GPUs: its trace does not contain them.
SHAPING = Shaping(cpu_per_gpu=4000, memory_per_gpu=16 * GIB)
OURS, PEERS = "gpuscaler", ("karpenter", "cluster-autoscaler")
#: Families for pods without GPUs; openb has some.
CPU_FAMILIES = ("c6i", "m6i")

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
#: One pool of all machines, and the same machines in pools by their GPUs that keep big machines for big pods: a key of ours, which peers do
#: not have. They get the one pool, since they would fill pools of equal weight by name.
ONE_POOL, BY_SIZE = "aws-gpu-pools.yaml", "aws-gpu-pools-by-size.yaml"


def figures() -> Iterator[Figure]:
    """The figures of the simulator; those without their trace are left out."""
    for path in (PHILLY, OPENB, SPOT):
        if not path.exists():
            print(f"simulation: skipped, since ../shared/data/{path.name} does not exist")
            return
    runs = Runs()
    philly = Case("Philly", Setting(trace=read_trace(PHILLY), policy=example_policy(ONE_POOL), shaping=SHAPING))
    yield replay_speed(runs, philly)
    yield from growth_with_trace(runs, philly)
    yield from against_peers(runs, philly, "41,125 jobs of Philly")
    yield closed_pool(runs, philly, "41,125 jobs of Philly", 1.06)
    yield steering_effect(runs, philly)
    yield time_to_failover()
    openb = Case("openb", Setting(trace=read_trace(OPENB), policy=example_policy(ONE_POOL, *CPU_FAMILIES)))
    yield from against_peers(runs, openb, "8,152 jobs of openb")
    yield closed_pool(runs, openb, "8,152 jobs of openb", 1.30)
    dry = Case("Philly, spot", replace(philly.setting, spot=(read_spot(SPOT),)))
    yield from against_peers(runs, dry, "Philly with spot markets that run dry")
    yield dry_spot(dry)


def example_policy(name: str, *families_beside: str) -> Policy:
    """The pools of an example, with one pool of CPU machines of these families."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    if families_beside:
        types = ", ".join(types_of_families(*families_beside))
        text += f"  - {{name: cpu, types: [{types}], markets: [spot, on-demand], zones: [{REGION}a, {REGION}b, {REGION}c]}}\n"
    return parse_policy(text, name)


def replay_speed(runs: Runs, case: Case) -> Figure:
    result, seconds = runs.run_timed(case, OURS)
    return Figure(
        f"replay of {len(case.setting.trace.jobs):,} jobs of Philly through gpuscaler, one core",
        "",
        "≤ 60 s of processor time",
        f"{seconds:.1f} s, {result.plans:,} plans",
        seconds <= 60,
        {"seconds": seconds, "plans": result.plans},
    )


def growth_with_trace(runs: Runs, case: Case) -> Iterator[Figure]:
    seconds = {jobs: runs.run_timed(first_jobs(case, jobs), OURS)[1] for jobs in (10_000, 20_000, 40_000)}
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure(
        "processor time and memory against trace length: 10k, 20k, 40k jobs",
        "",
        "linear; ≤ 1 GB",
        f"{' / '.join(f'{value:.1f}' for value in seconds.values())} s, {mebibytes:.0f} MiB",
        # Twice the minimum time per job: later jobs of this trace come at other rates than earlier ones.
        seconds[40_000] / 40_000 <= 2 * min(value / jobs for jobs, value in seconds.items()) and mebibytes <= 1000,
        {"seconds_10k": seconds[10_000], "seconds_20k": seconds[20_000], "seconds_40k": seconds[40_000], "mebibytes": mebibytes},
    )


def first_jobs(case: Case, jobs: int) -> Case:
    """A case with only the first jobs of its trace."""
    trace = case.setting.trace
    return Case(f"{case.name}, {jobs}", replace(case.setting, trace=Trace(trace.name, trace.jobs[:jobs])))


def time_to_failover() -> Figure:
    """Twelve spot offerings without capacity: the time from the first refusal to the order for the on-demand machine."""
    types = ", ".join(types_of_families("g5", "g6"))
    policy = parse_policy(f"region: {REGION}\npools:\n- {{name: gpu, types: [{types}], markets: [spot, on-demand], zones: [{REGION}a]}}\n")
    offerings = sorted(policy.pools[0].offerings, key=lambda offering: offering.price)
    spot = [offering for offering in offerings if offering.market == "spot"][:12]
    others = [offering for offering in offerings if offering.market != "spot"]
    policy = replace(policy, pools=(replace(policy.pools[0], offerings=(*spot, *others)),))
    dry = Markets({offering.key: Steps([0.0], [0.0]) for offering in spot}, began=EPOCH)
    waits = []
    for seed in range(20):
        result = run(Trace("one job", (Job("job", 0.0, 600.0, gpus=1),)), policy, seed=seed, markets=dry)
        waits.append(result.failover.max or 0.0)
    return Figure(
        f"{len(spot)} dry spot groups: seconds from the first capacity error to the on-demand order, 20 seeds",
        "Cluster Autoscaler 33 to 36 minutes with errors after 60 s, never with its time-out",
        "≤ 10 s",
        f"median {statistics.median(waits):.1f} s, maximum {max(waits):.1f} s",
        max(waits) <= 10,
        {"median": statistics.median(waits), "max": max(waits)},
    )


def cost_and_wait(result: Result) -> str:
    return f"${result.cost:,.0f} (p95 wait {result.wait.p95 or 0:.0f} s)"


def against_peers(runs: Runs, case: Case, what: str) -> Iterator[Figure]:
    setting = case.setting
    cpu_families = CPU_FAMILIES if any(pool.name == "cpu" for pool in setting.policy.pools) else ()
    by_size = Case(f"{case.name}, by size", replace(setting, policy=example_policy(BY_SIZE, *cpu_families)))
    ours, one_pool, *peers = runs.results([(by_size, OURS), (case, OURS), *((case, peer) for peer in PEERS)])
    best = [result for result in (runs.best_of_sweep(case, peer) for peer in PEERS) if result.policy not in PEERS]
    bound = ours.lower_bound
    yield cost_figure(f"{what}: cost against the better default", ours, peers, bound, 0.75)
    yield cost_figure(f"{what}: cost against the best setting of a sweep", ours, [*peers, *best], bound, 1.0)
    yield Figure(
        f"{what}: cost against optimal-hindsight",
        " / ".join(f"{peer.policy} {peer.cost / bound:.3f} x" for peer in (*peers, *best)),
        "≤ 1.10 x",
        f"{ours.cost / bound:.3f} x ${bound:,.0f}; with one pool, like the peers, {one_pool.cost / bound:.3f} x, {cost_and_wait(one_pool)}",
        ours.cost <= 1.10 * bound,
        {"ratio": ours.cost / bound, "bound": bound, "one_pool": one_pool.cost},
    )


def closed_pool(runs: Runs, case: Case, what: str, reach: float) -> Figure:
    """One pool of all GPU machines, closed: no key of it depends on the trace."""
    pools = tuple(replace(pool, closed=pool.name != "cpu") for pool in case.setting.policy.pools)
    closed = Case(f"{case.name}, closed", replace(case.setting, policy=replace(case.setting.policy, pools=pools)))
    ours, one_pool, peer = runs.results([(closed, OURS), (case, OURS), (case, PEERS[0])])
    bound = ours.lower_bound
    return Figure(
        f"{what}: one closed pool against optimal-hindsight, at a p95 wait of at most 1.05 times Karpenter's",
        f"{peer.policy} {peer.cost / bound:.3f} x, p95 wait {peer.wait.p95 or 0:.0f} s",
        f"≤ {reach} x",
        f"{ours.cost / bound:.3f} x, {cost_and_wait(ours)}, {ours.unserved} never ran; open {one_pool.cost / bound:.3f} x",
        ours.cost <= reach * bound and not ours.unserved and (ours.wait.p95 or 0.0) <= 1.05 * (peer.wait.p95 or 0.0),
        {"ratio": ours.cost / bound, "p95": ours.wait.p95 or 0.0, "open": one_pool.cost / bound},
    )


def dry_spot(case: Case) -> Figure:
    """The first 300 jobs with spot markets that run dry, on one pool, with four seeds."""
    setting = replace(first_jobs(case, 300).setting, shaping=Shaping(cpu_per_gpu=3500, memory_per_gpu=13 * GIB))
    seeds = range(4)
    results = run_all(setting, (OURS, PEERS[0]), seeds, workers=WORKERS)
    ours, peer = results[: len(seeds)], results[len(seeds) :]
    ratios = [mine.cost / its.cost for mine, its in zip(ours, peer, strict=True)]
    return Figure(
        "300 jobs of Philly with spot markets that run dry, one pool, four seeds: cost against Karpenter's",
        " / ".join(f"${result.cost:,.0f}" for result in peer),
        "≤ 1 x for every seed",
        " / ".join(f"{ratio:.3f} x" for ratio in ratios),
        max(ratios) <= 1.0,
        {f"seed_{seed}": ratio for seed, ratio in zip(seeds, ratios, strict=True)},
    )


def cost_figure(what: str, ours: Result, peers: Sequence[Result], bound: float, reach: float) -> Figure:
    cheapest = min(peers, key=lambda peer: peer.cost)
    ratio = ours.cost / cheapest.cost
    waits_no_longer = (ours.wait.p95 or 0.0) <= (cheapest.wait.p95 or 0.0)
    bound_ratio = bound / cheapest.cost
    note = "" if bound_ratio <= reach else f"; the bound is {bound_ratio:.3f} x"
    return Figure(
        f"{what}, at equal or lower p95 wait",
        " / ".join(f"{peer.policy} {cost_and_wait(peer)}" for peer in peers),
        f"≤ {reach} x",
        f"{ratio:.3f} x, {cost_and_wait(ours)}{note}",
        ratio <= reach and waits_no_longer,
        {"ratio": ratio, "cost": ours.cost, "peer": cheapest.cost, "bound": bound, "p95": ours.wait.p95 or 0.0},
    )


def steering_effect(runs: Runs, case: Case) -> Figure:
    steered = first_jobs(case, 10_000)
    unsteered = Case(f"{steered.name}, unsteered", replace(steered.setting, steering=False))
    on, off = runs.results([(steered, OURS), (unsteered, OURS)])
    return Figure(
        "steering on against off, 10,000 jobs of Philly",
        "",
        "never worse",
        f"{cost_and_wait(on)} against {cost_and_wait(off)}, mean waits {on.wait.mean:.0f} and {off.wait.mean:.0f} s",
        on.cost <= off.cost and (on.wait.p95 or 0.0) <= (off.wait.p95 or 0.0),
        {"cost_on": on.cost, "cost_off": off.cost},
    )
