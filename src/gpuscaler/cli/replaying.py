"""Options shared by commands that replay a trace, reading of the files they name, and error messages."""

import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from gpuscaler.model.offerings import OfferingKey
    from gpuscaler.model.pools import Policy
    from gpuscaler.simulation.results.campaign import Setting
    from gpuscaler.simulation.traces.workload import Shaping

GPU_MODELS = ("ignore", "strict")
SCORINGS = ("least-allocated", "most-allocated")
#: Policies that a sweep tries with different settings.
SWEPT = ("karpenter", "cluster-autoscaler")


if TYPE_CHECKING:
    Choice = click.Choice[str]
else:
    # Older releases of click have no type arguments here.
    Choice = click.Choice


class PolicyName(Choice):
    """A policy by its name, optionally with settings: ``karpenter(budget=1,batch_idle=10)``."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        match = re.fullmatch(r"([a-z-]+)\(\w+=[^,=()]+(?:,\w+=[^,=()]+)*\)", value)
        return value if match and match[1] in SWEPT and match[1] in self.choices else super().convert(value, param, ctx)


OPTIONS = (
    click.option(
        "--trace", "trace_file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Jobs as CSV, plain or gzipped."
    ),
    click.option(
        "--gpu-model",
        default="ignore",
        metavar="ignore|strict|MAPFILE",
        show_default=True,
        help="Meaning of the trace's GPU models: none, the label nvidia.com/gpu.product, or labels from a YAML or JSON file that maps "
        "models to labels.",
    ),
    click.option("--cpu-per-gpu", metavar="N", help="CPU request per GPU if the trace has none, such as 4 or 3500m."),
    click.option("--mem-per-gpu", metavar="SIZE", help="Memory request per GPU if the trace has none, such as 30Gi."),
    click.option(
        "--scheduler-scoring",
        type=click.Choice(SCORINGS),
        default=SCORINGS[0],
        show_default=True,
        help="Scoring strategy of kube-scheduler's NodeResourcesFit.",
    ),
    click.option(
        "--load",
        "load_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Load of services over time as CSV: request rates or duty cycles.",
    ),
    click.option(
        "--spot",
        "spot_files",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Spot markets over time as CSV: availability or prices; repeatable. Without it no spot is bought.",
    ),
    click.option("--spot-map", metavar="FILE", type=click.Path(path_type=Path), help="Mapping of series to offerings, as YAML or JSON."),
    click.option("--checkpoint", default="1h", show_default=True, metavar="DURATION", help="How often pods save their work; 0 for never."),
    click.option(
        "--restart-cost",
        metavar="DURATION",
        help="Work that a pod loses when moved, as its owner declares; without it running pods are never moved.",
    ),
    click.option(
        "--start",
        "starts",
        multiple=True,
        metavar="POOL[/TYPE]=N",
        help="Machines of a pool at the start of the run; repeatable. Default: none.",
    ),
    click.option("--no-steering", is_flag=True, help="Open gpuscaler's machines to every pod at once, as other autoscalers do."),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of all random values."),
    click.option(
        "--seeds", default=1, show_default=True, type=click.IntRange(1, 1000), help="Number of seeds to repeat with, starting at --seed."
    ),
    click.option("--sweep", is_flag=True, help="Also show each peer with the settings that cost least on this trace."),
    click.option(
        "--out",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for a report: report.json, and report.html with plots.",
    ),
)


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every replay to a command, which gets them as one argument, ``options``."""

    @functools.wraps(command)
    def called(**values: Any) -> None:  # click's values have the types of their options
        names = ReplayOptions.__struct_fields__
        command(options=ReplayOptions(**{name: values.pop(name) for name in names}), **values)

    for option in reversed(OPTIONS):
        called = option(called)
    return called


class ReplayOptions(Struct, frozen=True):
    """The options of every replay, as given."""

    trace_file: Path
    gpu_model: str
    cpu_per_gpu: str | None
    mem_per_gpu: str | None
    scheduler_scoring: str
    load_file: Path | None
    spot_files: tuple[Path, ...]
    spot_map: Path | None
    checkpoint: str
    restart_cost: str | None
    starts: tuple[str, ...]
    no_steering: bool
    seed: int
    seeds: int
    sweep: bool
    out: Path | None

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


def check_options(options: ReplayOptions, policies: Sequence[str]) -> None:
    """Reject options that would fail later, before anything is replayed."""
    from gpuscaler.cli.reporting import create_report_folder
    from gpuscaler.model.pools import Policy
    from gpuscaler.simulation.policies.peers.variants import peer_by_name

    for name in policies:
        try:
            peer_by_name(name, Policy(()))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--policy") from error
        invalid = re.search(r"\w+=(-[^,)]*|nan)|scan_interval=0*\.?0*(?=[,)])", name)
        if invalid is not None:
            raise click.BadParameter(
                f"{name}: saw {invalid[0]}, expected a number of at least 0 (scan_interval: above 0)", param_hint="--policy"
            )
    if options.sweep and not set(SWEPT) & set(policies):
        raise click.BadParameter(f"saw no policy with settings to try, expected {' or '.join(SWEPT)} among --policy", param_hint="--sweep")
    if options.spot_map is not None and not options.spot_files:
        raise click.BadParameter("saw no --spot, expected the series that the map names: give --spot FILE too", param_hint="--spot-map")
    if options.out is not None:
        create_report_folder(options.out)


@contextmanager
def report_unusable_files(options: ReplayOptions) -> Iterator[None]:
    """Exit with 2 and a message if a file cannot be used, with 1 if a worker process was killed."""
    from concurrent.futures import BrokenExecutor

    from gpuscaler.simulation.traces.traces import TraceError
    from gpuscaler.simulation.traces.workload import UnmappedModelsError

    try:
        yield
    except TraceError as error:
        fail(str(error))
    except BrokenExecutor:
        click.echo("saw a worker process killed, probably for lack of memory; use fewer --policy or --seeds at a time", err=True)
        sys.exit(1)
    except UnmappedModelsError as error:
        models, trace = ", ".join(error.models), options.trace_file
        fail(f"{options.gpu_model}: saw no entry for {models}, expected one for every GPU model of {trace}; add them")


def read_settings(options: ReplayOptions, pools_files: Sequence[str]) -> "list[tuple[Setting, list[str]]]":
    """Return the replay's setting for each of ``pools_files``, with notes on derived values."""
    from gpuscaler.model.pools import min_gpus_warnings
    from gpuscaler.simulation.results.campaign import Setting
    from gpuscaler.simulation.services import derived_from, read_load
    from gpuscaler.simulation.traces.spot import read_spot
    from gpuscaler.simulation.traces.spot_markets import derived_markets, read_spot_map
    from gpuscaler.simulation.traces.traces import read_trace

    shaping = replace(
        _shaping(options.gpu_model, options.cpu_per_gpu, options.mem_per_gpu),
        restart_cost=_seconds(options.restart_cost, "--restart-cost") if options.restart_cost is not None else None,
    )
    pools = [_pools(path, spot=bool(options.spot_files)) for path in pools_files]
    trace = read_trace(options.trace_file)
    load = read_load(options.load_file) if options.load_file is not None else None
    spot = tuple(read_spot(path) for path in options.spot_files)
    spot_map = read_spot_map(options.spot_map) if options.spot_map is not None else {}
    checkpoint = _seconds(options.checkpoint, "--checkpoint")
    settings = []
    sizes = _sizes(options.starts)
    for path, (policy, dropped) in zip(pools_files, pools, strict=True):
        start = _start(path, policy, sizes)
        notes = derived_markets(policy, spot, seed=options.seed, spot_map=spot_map)
        notes += (
            [f"{dropped} spot offerings of the pools file: omitted, because there is no --spot for their availability"] if dropped else []
        )
        notes += min_gpus_warnings(policy)
        notes += [f"at the start: {count} x {'/'.join(key)}, as requested" for key, count in start.items()]
        notes += derived_from(load, seed=options.seed) if load is not None else ()
        if options.seeds > 1 and (spot or load is not None):
            notes.append(f"random values are listed for seed {options.seed}; each of the other seeds draws its own")
        setting = Setting(
            trace=trace,
            policy=policy,
            shaping=shaping,
            scoring=options.scheduler_scoring,
            load=load,
            spot=spot,
            spot_map=spot_map,
            checkpoint=checkpoint,
            steering=not options.no_steering,
            start=start,
        )
        settings.append((setting, notes))
    return settings


def _pools(path: str, *, spot: bool) -> "tuple[Policy, int]":
    from gpuscaler.settings import SettingsError, load_policy
    from gpuscaler.simulation.traces.workload import without_spot

    try:
        policy, dropped = load_policy(path), 0
    except SettingsError as error:
        fail(str(error))
    if not spot:
        policy, dropped = without_spot(policy)
    if not policy.pools:
        fail(f"{path}: saw only spot offerings, expected on-demand or reserved ones, or --spot with series for their markets")
    return policy, dropped


def _sizes(starts: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in starts:
        name, _, count = text.rpartition("=")
        if not name or not count.isascii() or not count.isdecimal() or len(count) > 5:
            raise click.BadParameter(f"saw {text}, expected POOL=N or POOL/TYPE=N, such as gpu=4", param_hint="--start")
        if name in sizes:
            raise click.BadParameter(f"saw {name} twice, expected it once", param_hint="--start")
        sizes[name] = int(count)
    return sizes


def _start(path: str, policy: "Policy", sizes: dict[str, int]) -> "dict[OfferingKey, int]":
    from gpuscaler.simulation.world.starting import StartError, machines_at_start

    try:
        return machines_at_start(policy, sizes)
    except StartError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--start") from error


def _seconds(text: str, option: str) -> float:
    from gpuscaler.model.durations import DurationError, parse_positive_duration

    try:
        return parse_positive_duration(text)
    except DurationError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _shaping(gpu_model: str, cpu_per_gpu: str | None, mem_per_gpu: str | None) -> "Shaping":
    from gpuscaler.model.quantities import milli, whole
    from gpuscaler.simulation.traces.workload import Shaping

    return Shaping(
        gpu_model=gpu_model if gpu_model in GPU_MODELS else _mapping(Path(gpu_model)),
        cpu_per_gpu=_quantity(cpu_per_gpu, "--cpu-per-gpu", unit=milli, maximum="1k"),
        memory_per_gpu=_quantity(mem_per_gpu, "--mem-per-gpu", unit=whole, maximum="8Ti"),
    )


def _quantity(text: str | None, option: str, *, unit: Callable[..., int], maximum: str) -> int | None:
    from gpuscaler.model.quantities import QuantityError, parse

    if text is None:
        return None
    try:
        amount = unit(parse(text))
    except QuantityError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if not 0 <= amount <= unit(parse(maximum)):
        raise click.BadParameter(f"saw {text}, expected a quantity from 0 to {maximum}", param_hint=option)
    return amount


def _mapping(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a file that maps each GPU model of a trace to the product label, or the list of labels, of the GPUs that serve the model."""
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
            seen = f"{str(model)[:40]}: {str(products)[:60]}"
            raise click.BadParameter(
                f"{path}: saw {seen}, expected a model with one product label or a list of them", param_hint="--gpu-model"
            )
        mapping[model] = tuple(listed)
    return mapping


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on standard error if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        # A bar has about a hundred cells: more updates than that only cost time.
        step = max(1, total // 200)
        shown = 0

        def advance(done: int) -> None:
            nonlocal shown
            if done - shown >= step or done == total:
                shown = done
                bar.update(task, completed=done)

        yield advance


def fail(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(2)
