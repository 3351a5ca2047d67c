"""Which live nodes teach about the next machines of their kind, and when."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import GI, NOW, PRODUCT, node, offering, pool

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.observing import ASKED, LABELS_SECONDS, SETTLED_SECONDS, observed
from gpuscaler.planning.roll import Roll
from gpuscaler.planning.state.learned import Learned, corrected
from gpuscaler.planning.state.ledger import Coming, Ledger
from gpuscaler.planning.teachers import Teachers

KIND = offering("g.1", gpus=1, memory=32)
POLICY = Policy((pool(KIND),))


def live(name: str = "a", *, memory: int = 40, **more: Any) -> Node:
    amounts = {**KIND.allocatable, "memory": memory * GI}
    return node(name, KIND, **{"allocatable": amounts, "provider_id": f"i-{name}", **more})


def taught(
    *nodes: Node, book: Ledger | None = None, listed: bool = True, policy: Policy = POLICY, known: Learned | None = None
) -> Offering:
    """The offering as the nodes teach it."""
    machines = tuple(Instance(one.provider_id, *KIND.key) for one in nodes if one.provider_id != "i-foreign")
    roll = Roll.of(Cluster.of(nodes), Inventory(NOW, machines) if listed else None)
    learned = observed(known or Learned(), book or Ledger(), policy, NOW, roll=roll, teachers=Teachers())
    return corrected(policy, learned).pools[0].offerings[0]


def memory(*nodes: Node, **more: Any) -> float:
    return taught(*nodes, **more).allocatable["memory"] / GI


def test_an_open_node_of_the_list_teaches() -> None:
    assert memory(live()) == 40


def test_where_no_cloud_lists_machines_labels_say_what_a_node_is() -> None:
    assert memory(live(provider_id=""), listed=False) == 40


@pytest.mark.parametrize(
    "odd",
    [
        {"ready": False},
        {"deleted": NOW},
        {"created": NOW - SETTLED_SECONDS + 1.0},
        {"provider_id": "i-foreign"},
        {"taints": (Taint("gpuscaler.io/leaving"),)},
        {"allocatable": {**KIND.allocatable, "memory": 40 * GI, "nvidia.com/gpu": 0}},
    ],
    ids=["not ready", "deleted", "new", "not ours", "leaving", "without its GPU"],
)
def test_a_node_that_is_not_finished_or_not_ours_teaches_nothing(odd: dict[str, Any]) -> None:
    assert memory(live(**odd)) == 32


@pytest.mark.parametrize(("since", "teaches"), [(LABELS_SECONDS - 1.0, False), (LABELS_SECONDS, True)])
def test_a_machine_that_is_to_open_teaches_once_its_labels_should_be_there(since: float, teaches: bool) -> None:
    coming = Coming("m", "o", (KIND.key,), 1.0, NOW - 300.0, node="a", ready=NOW - since)

    assert (memory(live(created=NOW - 30.0), book=Ledger(coming=(coming,))) == 40) is teaches


def test_of_many_nodes_the_newest_are_asked() -> None:
    old = live("old", memory=33, created=NOW - 90_000.0)
    young = [live(f"n{number}", created=NOW - 7000.0 + number) for number in range(ASKED)]

    assert memory(old, *young) == 40
    assert memory(old, *young[1:]) == 33


def test_after_a_new_revision_only_machines_that_were_made_since_teach() -> None:
    first, second = (Policy((replace(POLICY.pools[0], revision=name),)) for name in "12")
    roll = Roll.of(Cluster.of([live()]), Inventory(NOW, (Instance("i-a", *KIND.key),)))
    known = observed(Learned(), Ledger(), first, NOW - 3600.0, roll=roll, teachers=Teachers())
    changed = observed(known, Ledger(), second, NOW - 1800.0, roll=roll, teachers=Teachers())

    assert memory(live(), policy=first, known=known) == 40
    assert memory(live(), policy=second, known=changed) == 32
    assert memory(live(), live("b", memory=36, created=NOW - 900.0), policy=second, known=changed) == 36


def test_a_taint_of_one_node_alone_may_be_a_persons_and_teaches_nothing() -> None:
    taint = Taint("maintenance")

    assert taught(live(taints=(taint,))).taints == ()
    assert taught(live("a", taints=(taint,)), live("b", taints=(taint,))).taints == (taint,)


def test_what_did_not_change_is_not_worked_out_again() -> None:
    teachers, nodes = Teachers(), (live(),)
    first = teachers.shown(("main", "g.1"), KIND, nodes)

    assert teachers.shown(("main", "g.1"), KIND, nodes) is first
    assert teachers.shown(("main", "g.1"), KIND, (live(labels={PRODUCT: "other"}),)) is not first
