"""``gpuscaler simulate``: what a trace of jobs would have cost."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from gpuscaler.model.pools import Policy
    from gpuscaler.simulation.campaign import Setting
    from gpuscaler.simulation.meter import Result
    from gpuscaler.simulation.workload import Shaping

GPU_MODELS = ("ignore", "strict")
SCORINGS = ("least-allocated", "most-allocated")
POLICIES = ("gpuscaler", "karpenter", "cluster-autoscaler", "static", "optimal-hindsight")


@click.command()
@click.option("--trace", "trace_file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Jobs as CSV, gzip or plain.")
@click.option("--pools", "pools_file", required=True, metavar="FILE", help="The pools file.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICIES), default=POLICIES[:1], help="Who decides; may be repeated."
)
@click.option(
    "--gpu-model",
    default="ignore",
    metavar="ignore|strict|MAPFILE",
    show_default=True,
    help="What the trace's GPU models mean: nothing, the label nvidia.com/gpu.product, or labels that a YAML or JSON file maps them to.",
)
@click.option("--cpu-per-gpu", metavar="N", help="CPU requested per GPU where the trace does not say, such as 4 or 3500m.")
@click.option("--mem-per-gpu", metavar="SIZE", help="Memory requested per GPU where the trace does not say, such as 30Gi.")
@click.option(
    "--scheduler-scoring",
    type=click.Choice(SCORINGS),
    default=SCORINGS[0],
    show_default=True,
    help="How kube-scheduler's NodeResourcesFit is configured.",
)
@click.option(
    "--load",
    "load_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Load of services over time as CSV: request rates or duty cycles.",
)
@click.option(
    "--spot",
    "spot_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Spot markets over time as CSV: availability or prices; may be repeated. Without it no spot is bought.",
)
@click.option("--spot-map", metavar="FILE", type=click.Path(path_type=Path), help="Which series drives which offerings, as YAML or JSON.")
@click.option("--checkpoint", default="1h", show_default=True, metavar="DURATION", help="How often a pod saves its work; 0 for never.")
@click.option("--sweep", is_flag=True, help="Also show each peer at the setting that costs least on this very trace.")
@click.option("--no-steering", is_flag=True, help="Open gpuscaler's machines to every pod at once, as other autoscalers do.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of everything that is drawn.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 1000), help="Repeat with so many seeds, from --seed on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(
    *,
    trace_file: Path,
    pools_file: str,
    policies: tuple[str, ...],
    gpu_model: str,
    cpu_per_gpu: str | None,
    mem_per_gpu: str | None,
    scheduler_scoring: str,
    load_file: Path | None,
    spot_files: tuple[Path, ...],
    spot_map: Path | None,
    checkpoint: str,
    sweep: bool,
    no_steering: bool,
    seed: int,
    seeds: int,
    as_json: bool,
) -> None:
    """Replay a trace of jobs in virtual time through the planner, and print what it cost and how long jobs waited.

    Machines boot, show their GPUs later, cost by the second, fail, and leave when idle; spot machines go when their market runs dry.
    Several policies and seeds run in parallel.
    """
    from gpuscaler.cli.reporting import print_json, print_report
    from gpuscaler.simulation.campaign import Setting
    from gpuscaler.simulation.report import inputs_of
    from gpuscaler.simulation.services import derived_from, read_load
    from gpuscaler.simulation.spot import read_spot
    from gpuscaler.simulation.spot_markets import derived_markets, read_spot_map
    from gpuscaler.simulation.traces import TraceError, read_trace
    from gpuscaler.simulation.workload import UnmappedModelsError

    shaping = _shaping(gpu_model, cpu_per_gpu, mem_per_gpu)
    policy, dropped = _pools(pools_file, spot=bool(spot_files))
    try:
        setting = Setting(
            trace=read_trace(trace_file),
            policy=policy,
            shaping=shaping,
            scoring=scheduler_scoring,
            load=read_load(load_file) if load_file is not None else None,
            spot=tuple(read_spot(path) for path in spot_files),
            spot_map=read_spot_map(spot_map) if spot_map is not None else {},
            checkpoint=_seconds(checkpoint, "--checkpoint"),
            steering=not no_steering,
        )
        results = _results(setting, tuple(dict.fromkeys(policies)), range(seed, seed + seeds), sweep=sweep)
        derived = derived_markets(policy, setting.spot, seed=seed, spot_map=setting.spot_map)
    except TraceError as error:
        _fail(str(error))
    except UnmappedModelsError as error:
        _fail(f"{gpu_model}: saw no entry for {', '.join(error.models)}, expected one for every GPU model of {trace_file}; add them")
    derived += [f"{dropped} spot offerings of the pools file: left out, since no --spot says when they run dry"] if dropped else []
    derived += derived_from(setting.load, seed=seed) if setting.load is not None else ()
    inputs = inputs_of(setting, pools=pools_file, seed=seed, seeds=seeds, derived=derived)
    if as_json:
        print_json(inputs, results)
    else:
        print_report(inputs, results)


def _results(setting: "Setting", names: tuple[str, ...], seeds: range, *, sweep: bool) -> "list[Result]":
    """One run where the bar can follow it, several in parallel."""
    import os

    from gpuscaler.simulation.campaign import best_of_sweeps, run_all, run_one

    if sweep:
        names += best_of_sweeps(setting, names, seeds[0], workers=os.cpu_count() or 1)
    if len(names) * len(seeds) > 1:
        return run_all(setting, names, seeds, workers=os.cpu_count() or 1)
    with _progress(f"{setting.trace.name}, {names[0]}", sum(job.pods for job in setting.trace.jobs)) as progress:
        return [run_one(setting, names[0], seeds[0], progress)]


def _pools(path: str, *, spot: bool) -> "tuple[Policy, int]":
    from gpuscaler.settings import SettingsError, load_policy
    from gpuscaler.simulation.workload import without_spot

    try:
        policy, dropped = load_policy(path), 0
    except SettingsError as error:
        _fail(str(error))
    if not spot:
        policy, dropped = without_spot(policy)
    if not policy.pools:
        _fail(f"{path}: saw only spot offerings, expected on-demand or reserved ones, or --spot with series of their markets")
    return policy, dropped


def _seconds(text: str, option: str) -> float:
    from gpuscaler.model.durations import DurationError, parse_positive_duration

    try:
        return parse_positive_duration(text)
    except DurationError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _shaping(gpu_model: str, cpu_per_gpu: str | None, mem_per_gpu: str | None) -> "Shaping":
    from gpuscaler.model.quantities import milli, whole
    from gpuscaler.simulation.workload import Shaping

    return Shaping(
        gpu_model=gpu_model if gpu_model in GPU_MODELS else _mapping(Path(gpu_model)),
        cpu_per_gpu=_quantity(cpu_per_gpu, "--cpu-per-gpu", unit=milli, most="1k"),
        memory_per_gpu=_quantity(mem_per_gpu, "--mem-per-gpu", unit=whole, most="8Ti"),
    )


def _quantity(text: str | None, option: str, *, unit: Callable[..., int], most: str) -> int | None:
    from gpuscaler.model.quantities import QuantityError, parse

    if text is None:
        return None
    try:
        amount = unit(parse(text))
    except QuantityError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if not 0 <= amount <= unit(parse(most)):
        raise click.BadParameter(f"saw {text}, expected a quantity from 0 to {most}", param_hint=option)
    return amount


def _mapping(path: Path) -> dict[str, tuple[str, ...]]:
    """A file that maps GPU models of a trace to the product labels that serve them: one, or a list."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(
            f"{path}: {error.strerror}; expected ignore, strict, or a file that maps GPU models to product labels", param_hint="--gpu-model"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: not YAML or JSON: {error}", param_hint="--gpu-model") from error
    if not isinstance(content, dict):
        raise click.BadParameter(f"{path}: saw no mapping, expected lines such as T4: Tesla-T4", param_hint="--gpu-model")
    mapping: dict[str, tuple[str, ...]] = {}
    for model, products in content.items():
        listed = products if isinstance(products, list) else [products]
        if not isinstance(model, str) or not listed or not all(isinstance(product, str) and product for product in listed):
            raise click.BadParameter(
                f"{path}: saw {model!r}: {products!r}, expected a model with one product label or a list of them", param_hint="--gpu-model"
            )
        mapping[model] = tuple(listed)
    return mapping


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error when that is a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        # A bar has some hundred cells: more updates than that only cost time.
        step = max(1, total // 200)
        shown = 0

        def advance(done: int) -> None:
            nonlocal shown
            if done - shown >= step or done == total:
                shown = done
                bar.update(task, completed=done)

        yield advance


def _fail(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(2)
