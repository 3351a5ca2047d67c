"""``python -m tests.conformance_hpa``: compares our algorithm with kube-controller-manager's own controller on random cases."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.conformance.asking import Oracle

from gpuscaler.simulation.horizontal import AutoscalerError, read_autoscaler

from .building import BuildError, horizontal
from .cases import draw_case
from .kubernetes import as_objects
from .objects import draw_object
from .ours import answer

Json = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance_hpa", description=__doc__)
    parser.add_argument("--cases", type=int, default=3000, help="random cases (default 3000)")
    parser.add_argument("--seed", type=int, default=1, help="a seed gives the same cases every time (default 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat a single one")
    parser.add_argument("--show", type=int, default=3, help="differences to print (default 3)")
    options = parser.parse_args(arguments)
    try:
        binary = horizontal()
    except BuildError as error:
        print(f"cannot build the oracle: {error}", file=sys.stderr)
        return 3
    start, seen, differing = time.monotonic(), Counter({"steps": 0, "read": 0, "refused": 0}), 0
    with Oracle(binary) as asked:
        for number in range(options.first, options.first + options.cases):
            case, drawn = draw_case(options.seed, number), draw_object(options.seed, number)
            for what, found in ((case, list(differences(asked, case, seen))), (drawn, list(misreadings(asked, drawn, seen)))):
                differing += bool(found)
                if found and differing <= options.show:
                    print(f"seed {options.seed}, case {number}:", *found, json.dumps(what), sep="\n  ")
    report(seen, options.cases, seconds=time.monotonic() - start, seed=options.seed)
    print(f"disagreements: {differing}")
    return 1 if differing else 0


def differences(asked: Oracle, case: Json, seen: Counter[str]) -> Iterator[str]:
    """The differences at the first step that has any; ``seen`` counts the conditions that the controller reported."""
    theirs = asked.ask(as_objects(case))["steps"]
    ours = answer(case)
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        their = {name: value if value is not None else [] for name, value in their.items()}
        seen.update(f"{one['type']}={one['status']} {one['reason']}" for one in their["conditions"])
        seen["steps"] += 1
        differing = [name for name in our if our[name] != their[name]]
        if differing:
            yield from (f"step {number} {name}: theirs {their[name]}, ours {our[name]}" for name in differing)
            return


def misreadings(asked: Oracle, drawn: Json, seen: Counter[str]) -> Iterator[str]:
    """The differences in reading an object: only one of the API server and gpuscaler accepts it, or their defaults differ."""
    theirs = asked.ask({"read": drawn})
    try:
        ours = read_autoscaler(drawn)
    except AutoscalerError as error:
        seen["refused"] += 1
        if "kept" in theirs:
            yield f"theirs accepts it, ours: {error}"
        return
    seen["read"] += 1
    if "kept" not in theirs:
        yield f"ours accepts it, theirs: {theirs['refused']}"
    elif read_autoscaler(theirs["kept"]) != ours:
        yield f"theirs stores {theirs['kept']}, ours {ours}"


def report(seen: Counter[str], cases: int, *, seconds: float, seed: int) -> None:
    steps = seen.pop("steps")
    print(f"seed {seed}: {cases} cases, {steps} steps, {seconds:.1f} s; objects read {seen.pop('read')}, refused {seen.pop('refused')}")
    for words, count in sorted(seen.items()):
        print(f"  {words:55}{count:8}{count / max(steps, 1):8.1%}")


if __name__ == "__main__":
    sys.exit(main())
