"""Several policies and seeds on one trace, in processes of their own; what comes out does not depend on which ends first."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.policies.peers.variants import AXES, axes_of, sweep
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

#: Replaying so many pods takes about as long as starting a process that could do it.
PODS_OF_A_START = 200


class Setting(Struct, frozen=True):
    """Everything that the runs of a comparison share; :func:`gpuscaler.simulation.replay.run` says what each part means."""

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
    """One policy on one seed. The same markets meet every policy of that seed."""
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
    """Every policy on every seed, policies in the order of ``names``, the seeds of each together; results are thinned."""
    return run_each([(setting, name, seed) for name in names for seed in seeds], workers=workers)


def best_of_sweeps(setting: Setting, names: Sequence[str], seed: int, *, workers: int) -> tuple[str, ...]:
    """Of each peer among ``names`` the setting that costs least on ``seed``, as a name; peers that are best as they come are left out."""
    best = [best_setting(setting, name, seed, workers=workers) for name in names if name in AXES]
    return tuple(name for name in best if name not in names)


def best_setting(setting: Setting, name: str, seed: int, *, workers: int) -> str:
    """The setting of the peer ``name`` that costs least on ``seed``, as a name: its own where it is best as it comes."""
    axes = axes_of(name, moves=setting.load is not None or setting.shaping.restart_cost is not None)
    return sweep(name, lambda tried: run_all(setting, tried, [seed], workers=workers), axes=axes)[0].policy


def run_each(runs: Sequence[tuple[Setting, str, int]], *, workers: int, told: Callable[[Result], Result] = thinned) -> list[Result]:
    """One result for each of ``runs``, in their order, by ``workers`` processes at most, none where that is faster.

    ``told`` (of a module) takes what is not needed from a result where it was made.
    """
    workers = min(workers, len(runs), _worth_starting(runs))
    if workers <= 1:
        return [_run(*run, told) for run in runs]
    # Spawned, not forked: a fork of a process with threads (numpy's, the progress bar's) may never end.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            with _deaf_to_ctrl_c():
                started = [pool.submit(_run, *run, told) for run in runs]
            return [run.result() for run in started]
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _worth_starting(runs: Sequence[tuple[Setting, str, int]]) -> int:
    """How many processes ``runs`` are worth; how long services take depends on more than their number."""
    if any(setting.load is not None for setting, _, _ in runs):
        return len(runs)
    return sum(job.pods for setting, _, _ in runs for job in setting.trace.jobs) // PODS_OF_A_START


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started here do not get Ctrl-C, which a terminal sends to all: each would print a traceback. Ours comes a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(setting: Setting, name: str, seed: int, told: Callable[[Result], Result]) -> Result:
    return told(run_one(setting, name, seed))
