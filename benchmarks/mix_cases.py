"""Problems for the optimiser's benchmark, from the catalogue in ``../shared/data``."""

import csv
import gzip
import random
from pathlib import Path

from gpuscaler.planning.mix import Item, MixKind, Problem, SharedCap

CATALOGUE = Path(__file__).resolve().parents[1] / "../shared/data/instance_catalog.csv.gz"
MIB, GIB = 1 << 20, 1 << 30
SHAPES = ((1, 4, 15), (1, 8, 30), (2, 12, 60), (4, 24, 120), (8, 90, 700), (8, 180, 1000), (0, 2, 4), (0, 16, 64))


def read_kinds(
    *, region: str = "us-east-1", cloud: str = "aws", families: tuple[str, ...] = (), markets: tuple[str, ...] = ("on-demand",)
) -> tuple[MixKind, ...]:
    """The instance types of one region, amd64 only, one kind for each market with a known price."""
    mix_kinds = []
    with gzip.open(CATALOGUE, "rt") as lines:
        for row in csv.DictReader(lines):
            if row["cloud"] != cloud or row["region"] != region or row["arch"] != "amd64" or not row["alloc_cpu_milli"]:
                continue
            if families and row["instance_type"].split(".")[0] not in families:
                continue
            capacity = {"cpu": int(row["alloc_cpu_milli"]), "memory": int(row["alloc_mem_mib"]) * MIB, "pods": int(row["max_pods"])}
            gpus = int(row["gpus"] or 0)
            if gpus:
                capacity["nvidia.com/gpu"] = gpus
            for market in markets:
                price = row["on_demand_usd_h" if market == "on-demand" else "spot_usd_h"]
                if price:
                    mix_kinds.append(MixKind(f"{row['instance_type']}/{market}", capacity, float(price), available=None, gpus_counted=gpus))
    return tuple(mix_kinds)


def make_item(count: int, gpus: int, cpus: float, gib: float, *, key: str = "") -> Item:
    """Pods of one shape."""
    request = {"cpu": round(cpus * 1000), "memory": round(gib * GIB), "pods": 1} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return Item(key or f"{gpus}-{cpus}-{gib}", count, request)


def eight_shapes(seed: int, offered: tuple[MixKind, ...]) -> Problem:
    """The eight shapes, 1 to 30 of each."""
    draw = random.Random(seed)
    return Problem(tuple(make_item(draw.randint(1, 30), *shape) for shape in SHAPES), offered)


def random_mix(seed: int, offered: tuple[MixKind, ...], *, small: bool = False) -> Problem:
    """10 to 1,000 pods (half of them below 100 when ``small``) of 2 to 12 random shapes, with and without GPUs."""
    draw = random.Random(seed)
    total, shapes = round(10 ** draw.uniform(1, 3)) if small else draw.randint(10, 1000), draw.randint(2, 12)
    cuts = sorted(draw.randint(0, total) for _ in range(shapes - 1))
    items = []
    for n, (low, high) in enumerate(zip([0, *cuts], [*cuts, total], strict=True)):
        gpus = draw.choice((0, 0, 0, 1, 1, 2, 4, 8))
        cpus = draw.choice((0.25, 0.5, 1, 2, 4, 8, 16)) if not gpus else gpus * draw.choice((2, 4, 6, 8, 11))
        gib = cpus * draw.choice((1, 2, 4, 7)) if not gpus else gpus * draw.choice((8, 13, 15, 30, 60))
        items.append(make_item(high - low, gpus, cpus, gib, key=f"{n:02}"))
    return Problem(tuple(items), offered)


def linear_prices(pods: int, items: int, count: int, *, seed: int = 1) -> Problem:
    """``items`` classes with random requests over ``count`` kinds whose price grows with their size."""
    draw = random.Random(seed)
    offered = tuple(
        MixKind(f"linear-{n:03}", {"cpu": n * 1000 - 100, "memory": 2 * n * GIB, "pods": 10 * n}, n * 0.0255 + 2 * n * 0.001)
        for n in range(1, count + 1)
    )
    each, extra = divmod(pods, items)
    shapes = []
    for n in range(items):
        request = {
            "cpu": draw.choice((100, 250, 500, 1000, 1500)) + draw.randint(0, 20),
            "memory": draw.choice((100, 256, 512, 1024, 2048, 4096)) * MIB + draw.randint(0, 64) * MIB,
            "pods": 1,
        }
        shapes.append(Item(f"{n:03}", each + (n < extra), request))
    return Problem(tuple(shapes), offered)


def capped_problem(pods: int, items: int, count: int, *, seed: int = 2) -> Problem:
    """As :func:`linear_prices`, a fifth each: plain, 1 or 2 per machine, one zone of four, 1 or 5 per machine of a group."""
    plain = linear_prices(pods, items, count, seed=seed)
    draw = random.Random(seed)
    zones = [tuple(k for k in range(count) if k % 4 == zone) for zone in range(4)]
    capped_items = []
    groups: dict[int, list[int]] = {}
    for n, shape in enumerate(plain.items):
        variant = n % 5
        if variant == 1:
            shape = Item(shape.key, shape.count, shape.request, None, draw.randint(1, 2))
        elif variant == 2:
            shape = Item(shape.key, shape.count, shape.request, draw.choice(zones))
        elif variant > 2:
            groups.setdefault(10 * variant + draw.randrange(7), []).append(n)
        capped_items.append(shape)
    shared_caps = tuple(SharedCap(tuple(group), 1 if variant < 40 else 5) for variant, group in sorted(groups.items()))
    return Problem(tuple(capped_items), plain.kinds, shared_caps)


def many_shapes(items: int, offered: tuple[MixKind, ...], *, seed: int = 3) -> Problem:
    """``items`` shapes of 1 to 20 pods each, a third of them with GPUs."""
    draw = random.Random(seed)
    shapes = []
    for n in range(items):
        gpus = draw.choice((0, 0, 0, 0, 1, 1, 2, 4, 8))
        cpus = gpus * draw.randint(2, 10) if gpus else draw.choice((0.25, 0.5, 1, 2, 4, 8))
        gib = gpus * draw.randint(8, 60) if gpus else cpus * draw.choice((1, 2, 4, 7))
        shapes.append(make_item(draw.randint(1, 20), gpus, cpus, gib, key=f"{n:03}"))
    return Problem(tuple(shapes), offered)


def gpu_classes(classes: int, each: int, offered: tuple[MixKind, ...]) -> Problem:
    """Classes of 1 to 4 GPUs that all differ in vCPU and memory, as the pending pods of :mod:`benchmarks.fleet` do."""
    shapes = [(1 + n % 4, 1 + 0.25 * (7 * n % 29), 2 + 5 * n % 31) for n in range(classes)]
    return Problem(tuple(make_item(each, gpus, cpus, gib, key=f"{n:02}") for n, (gpus, cpus, gib) in enumerate(shapes)), offered)


def all_cases() -> dict[str, Problem]:
    """Every named case."""
    few_families, all_types, both_markets = (
        read_kinds(families=("g5", "c6i", "m6i")),
        read_kinds(),
        read_kinds(markets=("on-demand", "spot")),
    )
    eight_gpus = (MixKind("eight", {"cpu": 96000, "memory": 768 * GIB, "pods": 110, "nvidia.com/gpu": 8}, 10.0, gpus_counted=8),)
    fifty_pods = (MixKind("fifty", {"cpu": 50_000, "pods": 50}, 1.0),)
    problems = {f"gpu-{n}": Problem((make_item(n, 1, 2, 13),), few_families) for n in (2, 8, 64, 1000)}
    problems["gpu-16-small-200"] = Problem((make_item(16, 1, 2, 13), make_item(200, 0, 1, 2)), few_families)
    problems["gpu-16-large-200"] = Problem((make_item(16, 1, 2, 13), make_item(200, 0, 4, 8)), few_families)
    problems["three-and-five"] = Problem((make_item(10, 3, 1, 1), make_item(10, 5, 1, 1)), eight_gpus)
    problems["equal-50000"] = Problem((Item("equal", 50_000, {"cpu": 1000, "pods": 1}),), fifty_pods)
    for seed in range(10):
        problems[f"eight-{seed}"] = eight_shapes(seed, all_types)
        problems[f"eight-spot-{seed}"] = eight_shapes(seed, both_markets)
    problems["linear-250-20000-400"] = linear_prices(20_000, 250, 400)
    problems["linear-200-10000-50"] = linear_prices(10_000, 200, 50)
    problems["capped-250-20000-400"] = capped_problem(20_000, 250, 400)
    problems["capped-250-5000-400"] = capped_problem(5_000, 250, 400)
    problems["fleet-40"] = gpu_classes(40, 50, read_kinds(families=("g5", "m5", "c5", "r5")))
    for n in (20, 40, 80, 160):
        problems[f"shapes-{n}"] = many_shapes(n, all_types)
    for seed in range(200):
        problems[f"mix-{seed}"] = random_mix(seed, all_types)
        problems[f"small-mix-{seed}"] = random_mix(seed, all_types, small=True)
    return problems
