"""Properties of plans while offerings are blocked, probed, unsettled or paused."""

import dataclasses
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.planning.building import NOW
from tests.planning.drawing import cases
from tests.planning.replaying import Case, assert_comes_true, offerings_of
from tests.soaking import examples

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.plans import PlannedMachine

#: One fixed draw, so that a run fails because of a change and not by chance.
SEARCH = settings(max_examples=examples(15), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def troubled(draw: st.DrawFn) -> Case:
    """A case of the planner's properties with many recent refusals."""
    case = draw(cases())
    keys = [offering.key for pool in case.policy.pools for offering in pool.offerings]

    def some(part: int) -> frozenset[OfferingKey]:
        return frozenset(key for key in keys if draw(st.integers(0, part)) == 0)

    blocked = some(3)
    digests = sorted({bucket.sample.spec.digest for bucket in case.cluster.unbound.values()})
    state = replace(
        case.state,
        blocked_offerings=blocked,
        probed_offerings=some(1) - blocked,
        no_moves_to=blocked | some(1),
        paused_offerings={digest: some(2) for digest in digests if draw(st.booleans())},
        skip_untried_spot_since=draw(st.sampled_from((None, NOW - 8.0, NOW + 1.0))),
    )
    return dataclasses.replace(case, state=state)


def chosen(case: Case, machine: PlannedMachine) -> list[OfferingKey]:
    """The offerings that a machine to buy may turn out to be."""
    return [offering.key for offering in offerings_of(machine, case.policy)]


@SEARCH
@given(troubled())
def test_no_blocked_offering_is_bought_and_a_probe_is_one_machine(case: Case) -> None:
    made, state = case.plan(), case.state
    probes: Counter[tuple[OfferingKey, ...]] = Counter()
    for machine in made.machines:
        keys = chosen(case, machine)
        awake = [key for key in keys if key not in state.blocked_offerings]
        assert awake
        if all(key in state.probed_offerings for key in awake):
            probes[tuple(keys)] += 1
    assert all(count == 1 for count in probes.values()), probes


@SEARCH
@given(troubled())
def test_no_running_pod_moves_to_recently_refused_or_reclaimed_offerings(case: Case) -> None:
    for machine in case.plan().machines:
        if machine.purpose == "replacement":
            assert set(chosen(case, machine)) - case.state.no_moves_to


@SEARCH
@given(troubled())
def test_no_offering_is_bought_for_the_pods_it_is_paused_for(case: Case) -> None:
    for machine in case.plan().machines:
        for key in machine.pods:
            paused = case.state.paused_offerings.get(case.cluster.pods[key].spec.digest, frozenset())
            assert machine.purpose == "replacement" or not paused & set(chosen(case, machine))


@SEARCH
@given(troubled())
def test_plans_can_be_carried_out_while_offerings_are_blocked(case: Case) -> None:
    assert_comes_true(case, case.plan())
