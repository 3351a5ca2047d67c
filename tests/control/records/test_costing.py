"""The cost of machines, in words."""

from tests.planning.building import offering, planned, pod, pool

from gpuscaler.control.records import costing
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger.entries import OrderedMachine

SMALL, LARGE = offering("g.1", 0.19, market="spot"), offering("g.48", 4.72, market="spot", gpus=8)
POLICY = Policy((pool(SMALL, LARGE, chooser="cloud"),))
ORDERED = OrderedMachine("m", "t", (SMALL.key, LARGE.key), 4.72, 0.0, meant=2)


def test_the_cost_of_a_machine_whose_type_the_cloud_has_not_chosen_yet_is_a_range() -> None:
    assert costing.format_ordered_price(ORDERED, POLICY) == "$0.19 to $4.72/h"


def test_a_granted_machine_has_the_price_of_its_offering() -> None:
    granted = OrderedMachine("m", "t", (SMALL.key, LARGE.key), 4.72, 0.0, meant=2, offering=SMALL.key)
    assert costing.format_ordered_price(granted, POLICY) == "$0.19/h"


def test_fallback_offerings_are_not_part_of_the_price_range() -> None:
    assert costing.format_ordered_price(OrderedMachine("m", "t", (SMALL.key, LARGE.key), 0.19, 0.0), POLICY) == "$0.19/h"


def test_a_machine_of_an_offering_that_no_longer_exists_has_the_planned_price() -> None:
    assert costing.format_ordered_price(ORDERED, Policy(())) == "$4.72/h"


def test_the_cost_of_a_plan_ranges_from_the_lowest_to_the_highest_possible_price() -> None:
    made = planned([pod("p"), pod("q")], *POLICY.pools)
    assert costing.format_plan_price(made.machines) == f"${0.19 * len(made.machines):.2f} to ${4.72 * len(made.machines):.2f}/h"
