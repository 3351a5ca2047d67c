"""In normal simulated runs, including spot markets without capacity, failures and partial grants, the hard stop never ends a plan early."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.simulation.pools import C8, FIXED, G1, G4, trace

from gpuscaler.lifecycle.hard_stop import without_surplus
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine
from gpuscaler.simulation.cloud.delays import Faults
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces.traces import Job

SPOT = tuple(replace(offering, market="spot", price=0.4 * offering.price) for offering in (G1, G4))
POLICY = Policy((Pool("gpu", (G1, G4, *SPOT), idle_after=300, min=1), Pool("cpu", (C8,), idle_after=300)))
FAULTS = Faults(never_registers=0.1, partial_grants=0.3, gpu_hours_between_failures=20.0)


def jobs(seed: int) -> list[Job]:
    dice = Random(seed)
    return [Job(f"j-{n}", dice.uniform(0, 7200), dice.choice((300, 1800, 7200)), gpus=dice.choice((1, 1, 2, 4))) for n in range(60)]


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_a_replay_is_stopped_early(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, bought_for, plans = Planner.plan, dict[str, tuple[str, ...]](), [0]

    def checked(self: Planner, cluster: Cluster, state: State, now: float, **more: Any) -> Plan:
        plan = planned(self, cluster, state, now, **more)
        for upcoming in state.upcoming:
            bought_for.setdefault(upcoming.id, upcoming.pods)
        coming = tuple(
            OrderedMachine(upcoming.id, "order", (upcoming.key,), 0.0, now, pods=upcoming.pods, bought_for=bought_for[upcoming.id])
            for upcoming in state.upcoming
        )
        plans[0] += bool(plan.machines and coming)
        assert without_surplus(plan, cluster, self.policy, ledger=Ledger(coming=coming), breakers=Breakers(), now=now).cut == ()
        return plan

    monkeypatch.setattr(Planner, "plan", checked)
    result = run(trace(*jobs(seed)), POLICY, name="gpuscaler", delays=FIXED, faults=FAULTS, seed=seed)

    assert result.served == 60
    assert plans[0] > 5
