"""The hard stop never cuts a plan that counts correctly, over random clusters, policies, states and answers to orders."""

from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.planning.building import NOW
from tests.planning.drawing import cases
from tests.planning.replaying import Case
from tests.soaking import examples

from gpuscaler.lifecycle.hard_stop import without_surplus
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Answered, Ledger, Lost, OrderedMachine

SEARCH = settings(
    max_examples=examples(60), phases=(Phase.generate,), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)


def under_way(case: Case) -> Ledger:
    """Return the machines on their way in ``case``, as orders for the pods that wait for them."""
    coming = (
        OrderedMachine(upcoming.id, "before", (upcoming.key,), 1.0, NOW - 60.0, pods=upcoming.pods, bought_for=upcoming.pods)
        for upcoming in case.state.upcoming
    )
    return Ledger(coming=tuple(coming))


def answered(current: Ledger, dice: Random) -> Ledger:
    """Grant some of the ordered machines and refuse the rest; sometimes lose a machine."""
    for order in current.orders:
        names = [machine.id for machine in current.coming if machine.order == order.token]
        granted = tuple((f"i-{name}", order.offerings[0]) for name in names if dice.random() < 0.6)
        current = ledger.step(current, Answered(order.token, NOW, granted))
    for machine in current.coming:
        if dice.random() < 0.1:
            current = ledger.step(current, Lost(machine.id))
    return current


@given(cases(), st.integers(0, 1_000_000))
@SEARCH
def test_the_hard_stop_cuts_no_purchase_of_a_plan_that_counts_ordered_machines(case: Case, seed: int) -> None:
    memory, state, dice = Memory(ledger=under_way(case)), case.state, Random(seed)
    for _ in range(4):
        made = plan(case.cluster, state, case.policy, NOW)
        assert without_surplus(made, case.cluster, case.policy, ledger=memory.ledger, breakers=memory.breakers, now=NOW).cut == ()
        memory, _ = place_orders(memory, made, case.cluster, case.policy, state=state, now=NOW)
        memory = replace(memory, ledger=answered(memory.ledger, dice))
        leaving = frozenset(removal.node for removal in memory.ledger.leaving)
        state = replace(state, upcoming=ledger.upcoming_machines(memory.ledger), disrupting=case.state.disrupting | leaving)
