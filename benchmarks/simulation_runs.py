"""Replays that several figures use, each made once: singly with its processor time, or several at a time in separate processes."""

import os
import time
from collections.abc import Sequence

from msgspec import Struct

from gpuscaler.simulation.policies.peers.variants import sweep_settings
from gpuscaler.simulation.results.campaign import Setting, run_each, run_one
from gpuscaler.simulation.results.chart import thinned
from gpuscaler.simulation.world.meter import Result

WORKERS = os.cpu_count() or 1
SEED = 0


class Case(Struct, frozen=True):
    """A setting with a unique name: cases of the same name are the same."""

    name: str
    setting: Setting


class Runs:
    """Results by case and policy, thinned, all of seed 0."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], Result] = {}

    def run_timed(self, case: Case, policy: str) -> tuple[Result, float]:
        """A new replay in this process, and its processor time in seconds: other load on the machine does not count."""
        began = time.process_time()
        result = run_one(case.setting, policy, SEED)
        seconds = time.process_time() - began
        self._results[case.name, policy] = thinned(result)
        return result, seconds

    def results(self, pairs: Sequence[tuple[Case, str]]) -> list[Result]:
        """One result for each pair of a case and a policy, in order; only missing ones are run."""
        missing = {(case.name, policy): (case.setting, policy, SEED) for case, policy in pairs if (case.name, policy) not in self._results}
        self._results.update(zip(missing, run_each(list(missing.values()), workers=WORKERS), strict=True))
        return [self._results[case.name, policy] for case, policy in pairs]

    def best_of_sweep(self, case: Case, peer: str) -> Result:
        """The cheapest run of a peer over the settings of its sweep."""
        return sweep_settings(peer, lambda names: self.results([(case, name) for name in names]))[0]
