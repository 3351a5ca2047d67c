"""``python -m tests.conformance``: compares both sides on random cases, checks that the cases catch mutants, or replays plans."""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gpuscaler.planning.feasibility import ORDER

from .asking import Oracle
from .building import BuildError, oracle
from .cases import draw_case
from .compare import Difference, Tally, compare, minimal, variant
from .mutants import drawn, hunt
from .mutants import report as report_mutants
from .plans import Replayed, replay_plans

#: Cases per task of a worker: enough to be worth starting an oracle, few enough to keep all workers busy to the end.
CHUNK = 500
#: Share of all pod-node pairs that each plug-in must refuse alone, and the number of cases from which on this is checked.
ENOUGH = 0.03
TELLING = 10_000


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        binary = oracle()
    except BuildError as error:
        print(f"cannot build the oracle: {error}", file=sys.stderr)
        return 3
    if options.mutants:
        return mutate(binary, options)
    return replay(binary, options) if options.plans else conform(binary, options)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--cases", type=int, help="random cases (default 20000; 10000 for mutants)")
    parser.add_argument("--seed", type=int, default=1, help="a seed gives the same cases every time (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat a single one")
    parser.add_argument("--mutants", type=int, default=0, help="instead, run the cases against this many mutants of our filters")
    parser.add_argument("--plans", type=int, default=0, help="instead, replay this many whole plans through the real filters")
    parser.add_argument("--show", type=int, default=3, help="differences to minimise and print (default 3)")
    options = parser.parse_args(arguments)
    options.cases = options.cases or (10_000 if options.mutants else 20_000)
    return options


def conform(binary: Path, options: argparse.Namespace) -> int:
    """Compare both sides and print the result; the exit status is 0 if they agreed everywhere."""
    start = time.monotonic()
    tally = run(binary, options)
    report(tally, seconds=time.monotonic() - start, seed=options.seed)
    for number, difference in distinct(tally)[: options.show]:
        print(f"\nseed {options.seed}, case {number}: {difference}\nthe smallest case with this difference:")
        with Oracle(binary) as asked:
            part = minimal(asked, draw_case(options.seed, number), difference, otherwise=variant(number))
        print(json.dumps(part))
    return 1 if tally.differences or rare(tally) else 0


def mutate(binary: Path, options: argparse.Namespace) -> int:
    """Print which mutants the cases catch; the exit status is 0 if they catch all."""
    mutants = drawn(options.mutants, options.seed)
    return 1 if report_mutants(hunt(binary, mutants, cases=options.cases, seed=options.seed, jobs=options.jobs)) else 0


def replay(binary: Path, options: argparse.Namespace) -> int:
    """Print the pods that the scheduler would not put where a plan puts them; the exit status is 0 if there are none."""
    seen = Replayed()
    with Oracle(binary) as asked:
        broken = list(replay_plans(asked, options.seed, range(options.first, options.first + options.plans), seen))
    for one in broken:
        print(one)
    print(f"seed {options.seed}: {seen.plans} plans, {seen.machines} machines, {seen.pods} pods placed, {len(broken)} refused")
    return 1 if broken else 0


def run(binary: Path, options: argparse.Namespace) -> Tally:
    last = options.first + options.cases
    chunks = [range(low, min(low + CHUNK, last)) for low in range(options.first, last, CHUNK)]
    tally = Tally()
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in pool.map(work, [binary] * len(chunks), [options.seed] * len(chunks), chunks):
            tally.add(part)
    return tally


def work(binary: Path, seed: int, numbers: range) -> Tally:
    with Oracle(binary) as asked:
        return compare(asked, seed, numbers)


def report(tally: Tally, *, seconds: float, seed: int) -> None:
    rate = tally.pairs / seconds if seconds else 0
    print(f"seed {seed}: {tally.cases} cases, {tally.pairs} pod-node pairs, {seconds:.1f} s, {rate:.0f} pairs/s")
    print(f"{'accepted by all plug-ins':26}{tally.accepted:9}{tally.accepted / max(tally.pairs, 1):8.1%}")
    print("refused by one plug-in alone:")
    for plugin, pairs in tally.sole.most_common():
        print(f"  {plugin:24}{pairs:9}{pairs / max(tally.pairs, 1):8.2%}")
    for plugin in rare(tally):
        print(f"{plugin} alone refuses too few pairs for a meaningful comparison; expected at least {ENOUGH:.0%} of all pairs")
    print(f"disagreements: {len(tally.differences)}")


def rare(tally: Tally) -> list[str]:
    """Plug-ins that are too rarely the only one to refuse; none in runs that are too short to judge."""
    if tally.cases < TELLING:
        return []
    return [plugin for plugin in (*ORDER, "NodeName") if tally.sole[plugin] < ENOUGH * tally.pairs]


def distinct(tally: Tally) -> list[tuple[int, Difference]]:
    """One difference of each kind, most frequent kind first."""
    kinds: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[int, Difference]]] = {}
    for number, difference in tally.differences:
        kinds.setdefault((difference.theirs, difference.ours), []).append((number, difference))
    return [kind[0] for kind in sorted(kinds.values(), key=len, reverse=True)]


if __name__ == "__main__":
    sys.exit(main())
