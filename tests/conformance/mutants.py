"""Mutants of our filters: each is loaded in place of the real module in a process of its own, and the cases must tell it apart."""

import hashlib
import json
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from .asking import Json, Oracle
from .cases import draw_case
from .equivalent import EQUIVALENT, Key, matches, why_equivalent
from .mutating import Mutation, difference, mutated, mutations
from .replacing import Replacing

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
#: Not mutated: devices that are shared by the thousandth, and pools for large pods, which Kubernetes does not have.
NOT_MUTATED = ("__init__", "devices", "min_gpus")
#: What is mutated: everything else that decides whether a node passes.
TARGETS = (
    *sorted(path for path in (SOURCES / "gpuscaler/planning/feasibility").rglob("*.py") if path.stem not in NOT_MUTATED),
    SOURCES / "gpuscaler/model/selectors.py",
    SOURCES / "gpuscaler/model/taints.py",
)
#: Seconds of one case after which a mutant is taken to run for ever, and so to be caught.
PATIENCE = 120


@dataclass(frozen=True)
class Mutant:
    path: Path
    mutation: Mutation

    @property
    def change(self) -> tuple[str, str, str]:
        """Module and function, kind of change, and the source that is changed."""
        return f"{self.path.stem}.{self.mutation.function}", self.mutation.kind, self.mutation.source

    def __str__(self) -> str:
        return ": ".join(self.change)


@dataclass(frozen=True)
class Outcome:
    """``caught`` is the number of cases it took, 0 for a mutant that none of them caught; ``how`` the difference that gave it away."""

    mutant: Mutant
    caught: int
    how: str


def every_mutant() -> list[Mutant]:
    return [Mutant(path, mutation) for path in TARGETS for mutation in mutations(path.read_text())]


def drawn(count: int, seed: int, among: Iterable[Mutant] | None = None) -> list[Mutant]:
    """``count`` mutants of those there are, none of them known to be equivalent.

    Each has a rank of its own for every seed, so that an edit of a filter or of the list of equivalent changes leaves the others drawn.
    """
    times: Counter[tuple[str, str, str]] = Counter()
    ranked = []
    for mutant in every_mutant() if among is None else among:
        times[mutant.change] += 1
        if not why_equivalent(*mutant.change):
            ranked.append((rank(mutant, times[mutant.change], seed), mutant))
    return [mutant for _, mutant in sorted(ranked, key=itemgetter(0))[:count]]


def rank(mutant: Mutant, occurrence: int, seed: int) -> str:
    """``occurrence`` tells changes apart that look the same."""
    return hashlib.sha256(f"{seed}/{mutant}/{occurrence}".encode()).hexdigest()


def hunt(binary: Path, mutants: Sequence[Mutant], *, cases: int, seed: int, jobs: int) -> Iterator[Outcome]:
    """Show every mutant the same ``cases``, which the oracle answers once, until one of them catches it."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "cases"
        with asked.open("wb") as file:
            for pair in answered(binary, cases, seed):
                pickle.dump(pair, file)
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(lambda mutant: outcome(asked, mutant), mutants)


def answered(binary: Path, cases: int, seed: int) -> Iterator[tuple[Json, Json]]:
    with Oracle(binary) as oracle:
        for number in range(cases):
            case = draw_case(seed, number)
            yield case, oracle.ask(case)


def outcome(asked: Path, mutant: Mutant) -> Outcome:
    command = (sys.executable, "-m", __name__, str(asked), str(mutant.path), str(mutant.mutation.index))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGALRM:
        return Outcome(mutant, 1, f"a case took more than {PATIENCE} s")
    if done.returncode:
        # A module that cannot even be loaded is caught by any case.
        return Outcome(mutant, 1, (done.stderr.strip().splitlines() or ["it died"])[-1])
    caught, how = json.loads(done.stdout)
    return Outcome(mutant, caught, how)


def show(asked: Path, path: Path, index: int) -> tuple[int, str]:
    """In a process of its own: load the mutant, then go through the cases until one of them tells it apart."""
    name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    sys.meta_path.insert(0, Replacing(name, mutated(path.read_text(), index)))
    signal.alarm(PATIENCE)
    # Only now, so that everything they import sees the mutant.
    from .compare import differences, variant, verdicts

    for number, (case, answer) in enumerate(stored(asked)):
        signal.alarm(PATIENCE)
        for found in differences(case, verdicts(case, answer), otherwise=variant(number)):
            return number + 1, str(found)
    return 0, ""


def stale() -> list[Key]:
    """What is listed as equivalent and matches no change of today's source."""
    changes = [mutant.change for mutant in every_mutant()]
    return [key for key in EQUIVALENT if not any(matches(key, change) for change in changes)]


def stored(asked: Path) -> Iterator[tuple[Json, Json]]:
    with asked.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def report(outcomes: Iterable[Outcome]) -> int:
    """Print what became of the mutants; the number of those that nothing caught."""
    survivors = []
    for number, one in enumerate(outcomes, 1):
        print(f"{number:3} {'caught by case ' + str(one.caught) if one.caught else 'SURVIVED':22} {one.mutant}", flush=True)
        if not one.caught:
            survivors.append(one.mutant)
    for mutant in survivors:
        print(f"\nsurvivor: {mutant}\n{difference(mutant.path.read_text(), mutant.mutation.index)}")
    print(
        f"\n{len(survivors)} survived; {len(EQUIVALENT)} changes are listed as equivalent, with reasons, in tests/conformance/equivalent.py"
    )
    for key in stale():
        print(f"listed there, and no longer a change that can be made: {key}")
    return len(survivors)


if __name__ == "__main__":
    print(json.dumps(show(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
