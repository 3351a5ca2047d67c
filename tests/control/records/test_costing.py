"""What machines cost, in words."""

from tests.planning.building import offering, planned, pod, pool

from gpuscaler.control.records import costing
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger.entries import Coming

SMALL, LARGE = offering("g.1", 0.19, market="spot"), offering("g.48", 4.72, market="spot", gpus=8)
POLICY = Policy((pool(SMALL, LARGE, chooser="cloud"),))
ORDERED = Coming("m", "t", (SMALL.key, LARGE.key), 4.72, 0.0, meant=2)


def test_a_machine_that_the_cloud_has_still_to_choose_costs_a_range() -> None:
    assert costing.of_coming(ORDERED, POLICY) == "$0.19 to $4.72/h"


def test_a_machine_that_came_costs_what_it_is() -> None:
    granted = Coming("m", "t", (SMALL.key, LARGE.key), 4.72, 0.0, meant=2, offering=SMALL.key)
    assert costing.of_coming(granted, POLICY) == "$0.19/h"


def test_what_would_do_as_well_is_not_what_is_meant() -> None:
    assert costing.of_coming(Coming("m", "t", (SMALL.key, LARGE.key), 0.19, 0.0), POLICY) == "$0.19/h"


def test_an_offering_that_is_gone_costs_what_was_planned() -> None:
    assert costing.of_coming(ORDERED, Policy(())) == "$4.72/h"


def test_machines_of_a_plan_cost_from_the_least_to_the_most_that_they_may_be() -> None:
    made = planned([pod("p"), pod("q")], *POLICY.pools)
    assert costing.of_plan(made.machines) == f"${0.19 * len(made.machines):.2f} to ${4.72 * len(made.machines):.2f}/h"
