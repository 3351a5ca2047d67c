"""``python -m tests.faults [F7 …]``: load each mutant in place of its module, run the tests of its case, and expect one to fail.

``python -m tests.faults --table`` prints the rows of the table in the documentation.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.conformance.replacing import Replacing
from tests.faults.listing import FOLDER, ROOT, files_of, rows
from tests.faults.mutants import MUTANTS
from tests.faults.mutating import Mutant

#: Seconds after which a test counts as hanging, which proves nothing about its case.
PATIENCE = 300
#: Errors of names that were changed in the source and not in the text of a mutant. A missing value may well lack an attribute.
MISNAMED = re.compile(r"(?:NameError|UnboundLocalError): .*?is not defined|'(?!NoneType)[\w.]+' object has no attribute '\w+'")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``how`` the mutant was noticed, or why not."""

    mutant: Mutant
    caught: bool
    how: str


def main(names: Sequence[str]) -> int:
    """Print the results of the mutants of the cases ``names``, or of all; return 1 if a test did not notice its mutant."""
    if names[:1] == ["--one"]:
        return run_mutant(MUTANTS[int(names[1])])
    if names[:1] == ["--table"]:
        print("\n".join(rows()))
        return 0
    wanted = {int(name.lstrip("Ff")) for name in names}
    chosen = [place for place, mutant in enumerate(MUTANTS) if not wanted or mutant.case in wanted]
    with ThreadPoolExecutor(2) as pool:
        missed = [outcome for outcome in pool.map(outcome, chosen) if not report(outcome)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants were caught")
    return 1 if missed else 0


def report(outcome: Outcome) -> bool:
    """Print ``outcome`` and return whether it was caught."""
    word = "caught  " if outcome.caught else "SURVIVED"
    print(f"F{outcome.mutant.case:<3} {word} {outcome.mutant.removes}: {outcome.how}", flush=True)
    return outcome.caught


def outcome(place: int) -> Outcome:
    """Run the mutant in its own process. A failing test has caught it; a mutant that cannot be loaded has not been caught."""
    command = (sys.executable, "-m", "tests.faults", "--one", str(place))
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return Outcome(MUTANTS[place], False, f"it took more than {PATIENCE} s")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E  ")]
    how = " ".join((errors[0][1:] if errors else lines[-1] if lines else "nothing was printed").split())
    if misnamed := MISNAMED.search(how):
        # Any test notices code that cannot run: this proves nothing about the case.
        return Outcome(MUTANTS[place], False, f"its text uses a name that does not exist: {misnamed[0]}")
    return Outcome(MUTANTS[place], done.returncode == pytest.ExitCode.TESTS_FAILED, how[:300])


def run_mutant(mutant: Mutant) -> int:
    """Load the mutant in place of its module, then run the tests of its case."""
    try:
        module, source = mutant.applied()
    except ValueError as error:
        print(error)
        return pytest.ExitCode.USAGE_ERROR
    sys.meta_path.insert(0, Replacing(module, source))
    options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", f"test_f{mutant.case:02d}_", "--tb=short"]
    return pytest.main([*options, *(str(FOLDER / name) for name in files_of(mutant.case))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
