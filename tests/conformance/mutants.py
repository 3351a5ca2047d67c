"""Mutants of our filters: each replaces the real module in its own process, and the cases must catch it."""

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
#: Not mutated: devices shared in thousandths, and pools for large pods, which Kubernetes does not have.
NOT_MUTATED = ("__init__", "devices", "min_gpus")
#: Mutated modules: all others that decide whether a node passes.
TARGETS = (
    *sorted(path for path in (SOURCES / "gpuscaler/planning/feasibility").rglob("*.py") if path.stem not in NOT_MUTATED),
    SOURCES / "gpuscaler/model/selectors.py",
    SOURCES / "gpuscaler/model/taints.py",
)
#: Seconds for one case after which a mutant is considered to run forever, and so to be caught.
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
    """``caught`` is the number of cases until the mutant was caught, 0 if none caught it; ``how`` is the difference that caught it."""

    mutant: Mutant
    caught: int
    how: str


def every_mutant() -> list[Mutant]:
    return [Mutant(path, mutation) for path in TARGETS for mutation in mutations(path.read_text())]


def drawn(count: int, seed: int, among: Iterable[Mutant] | None = None) -> list[Mutant]:
    """``count`` of all mutants that are not listed as equivalent.

    Each has its own rank for every seed, so an edit of a filter or of the list of equivalent changes does not change which others are
    drawn.
    """
    times: Counter[tuple[str, str, str]] = Counter()
    ranked = []
    for mutant in every_mutant() if among is None else among:
        times[mutant.change] += 1
        if not why_equivalent(*mutant.change):
            ranked.append((rank(mutant, times[mutant.change], seed), mutant))
    return [mutant for _, mutant in sorted(ranked, key=itemgetter(0))[:count]]


def rank(mutant: Mutant, occurrence: int, seed: int) -> str:
    """The rank of a mutant; ``occurrence`` distinguishes changes with the same text."""
    return hashlib.sha256(f"{seed}/{mutant}/{occurrence}".encode()).hexdigest()


def hunt(binary: Path, mutants: Sequence[Mutant], *, cases: int, seed: int, jobs: int) -> Iterator[Outcome]:
    """Run every mutant on the same ``cases``, which the oracle answers once, until one of them catches it."""
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
        return Outcome(mutant, 1, (done.stderr.strip().splitlines() or ["it exited"])[-1])
    caught, how = json.loads(done.stdout)
    return Outcome(mutant, caught, how)


def show(asked: Path, path: Path, index: int) -> tuple[int, str]:
    """Load the mutant in this process, then run the cases until one of them catches it."""
    name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    sys.meta_path.insert(0, Replacing(name, mutated(path.read_text(), index)))
    signal.alarm(PATIENCE)
    # Imported only now, so that all imported modules see the mutant.
    from .compare import differences, variant, verdicts

    for number, (case, answer) in enumerate(stored(asked)):
        signal.alarm(PATIENCE)
        for found in differences(case, verdicts(case, answer), otherwise=variant(number)):
            return number + 1, str(found)
    return 0, ""


def stale() -> list[Key]:
    """Entries of the list of equivalent changes that match no change of the current source."""
    changes = [mutant.change for mutant in every_mutant()]
    return [key for key in EQUIVALENT if not any(matches(key, change) for change in changes)]


def stored(asked: Path) -> Iterator[tuple[Json, Json]]:
    with asked.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def report(outcomes: Iterable[Outcome]) -> int:
    """Print the outcome of each mutant; returns the number of survivors."""
    survivors = []
    for number, outcome in enumerate(outcomes, 1):
        print(f"{number:3} {'caught by case ' + str(outcome.caught) if outcome.caught else 'SURVIVED':22} {outcome.mutant}", flush=True)
        if not outcome.caught:
            survivors.append(outcome.mutant)
    for mutant in survivors:
        print(f"\nsurvivor: {mutant}\n{difference(mutant.path.read_text(), mutant.mutation.index)}")
    print(
        f"\n{len(survivors)} survived; {len(EQUIVALENT)} changes are listed as equivalent, with reasons, in tests/conformance/equivalent.py"
    )
    for key in stale():
        print(f"listed there, but matches no change of the current source: {key}")
    return len(survivors)


if __name__ == "__main__":
    print(json.dumps(show(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
