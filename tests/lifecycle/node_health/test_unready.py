"""How machines count that are being ended because their nodes are not Ready."""

import pytest
from tests.planning.building import bought, node, offering, planned, pod, pods, pool

from gpuscaler.model.cluster import Item
from gpuscaler.model.pools import Limits
from gpuscaler.planning.state import Ending, State

FADING = State(ending=(Ending("gone", offering().key),))


def test_a_terminating_machine_does_not_count_towards_the_maximum_of_its_pool() -> None:
    some: list[Item] = [node("gone"), pod("runs", on="gone"), *pods("p", 2)]
    assert bought(planned(some, pool(offering(), max=1))) == {}
    assert bought(planned(some, pool(offering(), max=1), state=FADING)) == {"g.1": 1}
    assert bought(planned(pods("p", 2), pool(offering(), max=1), state=FADING)) == {"g.1": 1}


@pytest.mark.parametrize("limits", [Limits(machines=1), Limits(gpus=1), Limits(dollars_per_hour=1.0)])
def test_a_terminating_machine_counts_towards_the_limits_although_its_node_is_gone(limits: Limits) -> None:
    assert bought(planned([pod("p")], limits=limits, state=FADING)) == {}
    assert bought(planned([pod("p")], limits=limits)) == {"g.1": 1}
