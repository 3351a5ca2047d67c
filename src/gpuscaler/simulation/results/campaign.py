"""Several policies and seeds on one trace, in processes of their own; the result does not depend on which ends first."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.policies.peers.variants import AXES, axes_of, sweep_settings
from gpuscaler.simulation.policies.policies import HINDSIGHT
from gpuscaler.simulation.policies.static import optimal_hindsight
from gpuscaler.simulation.replay import CHECKPOINT_SECONDS, EPOCH, run
from gpuscaler.simulation.results.chart import thinned
from gpuscaler.simulation.services import LoadFile
from gpuscaler.simulation.traces.spot import SpotFile
from gpuscaler.simulation.traces.spot_markets import SpotMap, markets_of
from gpuscaler.simulation.traces.traces import Trace
from gpuscaler.simulation.traces.workload import Shaping, members, with_gpu_milli
from gpuscaler.simulation.world.meter import Result
from gpuscaler.simulation.world.scheduler import LEAST_ALLOCATED

#: Replaying so many pods takes about as long as starting a process for it.
PODS_OF_A_START = 200


class Setting(Struct, frozen=True):
    """Everything that the runs of a comparison share; see :func:`gpuscaler.simulation.replay.run` for each part."""

    trace: Trace
    policy: Policy
    shaping: Shaping = Shaping()
    scoring: str = LEAST_ALLOCATED
    load: LoadFile | None = None
    spot: tuple[SpotFile, ...] = ()
    spot_map: SpotMap = {}
    checkpoint: float = CHECKPOINT_SECONDS
    steering: bool = True
    start: Mapping[OfferingKey, int] = {}


def run_one(setting: Setting, name: str, seed: int, progress: Callable[[int], None] | None = None) -> Result:
    """Run one policy on one seed. All policies see the same markets for one seed."""
    markets, _ = markets_of(setting.policy, setting.spot, seed=seed, began=EPOCH, spot_map=setting.spot_map)
    if name == HINDSIGHT:
        pods = members(setting.trace, setting.shaping)
        policy = with_gpu_milli(setting.policy) if setting.trace.fractional else setting.policy
        return optimal_hindsight(pods, policy, markets, seed=seed, began=EPOCH + pods[0].submit)
    return run(
        setting.trace,
        setting.policy,
        name=name,
        shaping=setting.shaping,
        scoring=setting.scoring,
        seed=seed,
        markets=markets,
        checkpoint=setting.checkpoint,
        steering=setting.steering,
        load=setting.load,
        start=setting.start,
        progress=progress,
    )


def run_all(setting: Setting, names: Sequence[str], seeds: Sequence[int], *, workers: int) -> list[Result]:
    """Run every policy on every seed, in the order of ``names``, the seeds of each together; results are thinned."""
    return run_each([(setting, name, seed) for name in names for seed in seeds], workers=workers)


def best_of_sweeps(setting: Setting, names: Sequence[str], seed: int, *, workers: int) -> tuple[str, ...]:
    """The cheapest setting on ``seed`` for each peer among ``names``, as a name; peers that are best with defaults are left out."""
    best = [best_setting(setting, name, seed, workers=workers) for name in names if name in AXES]
    return tuple(name for name in best if name not in names)


def best_setting(setting: Setting, name: str, seed: int, *, workers: int) -> str:
    """The cheapest setting of the peer ``name`` on ``seed``, as a name: the plain name if its defaults are best."""
    axes = axes_of(name, moves=setting.load is not None or setting.shaping.restart_cost is not None)
    return sweep_settings(name, lambda settings: run_all(setting, settings, [seed], workers=workers), axes=axes)[0].policy


def run_each(runs: Sequence[tuple[Setting, str, int]], *, workers: int, reduce: Callable[[Result], Result] = thinned) -> list[Result]:
    """Return one result for each of ``runs``, in order, using at most ``workers`` processes, or none if that is faster.

    ``reduce`` (a module's function) reduces a result in the process that made it.
    """
    workers = min(workers, len(runs), _worth_starting(runs))
    if workers <= 1:
        return [_run(*run, reduce) for run in runs]
    # Spawned, not forked: a fork of a process with threads (numpy's, the progress bar's) may never end.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            with _interrupts_blocked():
                started = [pool.submit(_run, *run, reduce) for run in runs]
            return [run.result() for run in started]
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _worth_starting(runs: Sequence[tuple[Setting, str, int]]) -> int:
    """How many processes ``runs`` are worth; the time of services depends on more than their number."""
    if any(setting.load is not None for setting, _, _ in runs):
        return len(runs)
    return sum(job.pods for setting, _, _ in runs for job in setting.trace.jobs) // PODS_OF_A_START


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C, which a terminal sends to all processes, from those started here: each would print a traceback. Ours still gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(setting: Setting, name: str, seed: int, reduce: Callable[[Result], Result]) -> Result:
    return reduce(run_one(setting, name, seed))
