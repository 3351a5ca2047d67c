from collections.abc import Mapping

import msgspec
import pytest

from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.discovery.comparing import corrected_by_nodes
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.model.taints import Taint

GPU = Taint("nvidia.com/gpu", "true")
TEMPLATE = {"team": "ml", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "us-east-1a"}
SIZE = {"cpu": 3920, "memory": 1000, "nvidia.com/gpu": 1}


def pool_of_states(*states: str) -> AwsPool:
    offering = Offering("gpus", "spot", "g5.xlarge", "us-east-1a", 0.4, SIZE, TEMPLATE, (GPU,))
    machines = tuple(Machine(f"i-{place}", "g5.xlarge", "us-east-1a", state) for place, state in enumerate(states))
    group = Group("gpus", "us-east-1", "", {}, 0, 5, len(machines), ("us-east-1a",), machines=machines)
    return AwsPool(Pool("gpus", (offering,), match_labels={"team": "ml"}), group, "named", ("an old word",))


def node(place: int = 0, labels: Mapping[str, str] = TEMPLATE, taints: tuple[Taint, ...] = (GPU,), **fields: object) -> Node:
    node = Node(f"ip-{place}", labels, SIZE, taints=taints, provider_id=f"aws:///us-east-1a/i-{place}")
    return msgspec.structs.replace(node, **fields)


def compare(*nodes: Node, states: tuple[str, ...] = ("InService", "InService")) -> tuple[Offering, tuple[str, ...]]:
    """The offering and the new warnings."""
    result = corrected_by_nodes(pool_of_states(*states), {f"i-{place}": node for place, node in enumerate(nodes)})
    assert result.warnings[0] == "an old word"
    return result.pool.offerings[0], result.warnings[1:]


def test_nodes_that_match_the_template_do_not_change_the_template() -> None:
    assert compare(node(0), node(1)) == (pool_of_states().pool.offerings[0], ())


def test_a_label_that_no_node_has_is_removed_from_the_template_and_reported() -> None:
    offering, (warning,) = compare(node(0, {"kubernetes.io/arch": "amd64"}))

    assert "team" not in offering.labels
    assert warning.startswith("the label team=ml is on none of its 1 node")


def test_a_label_value_shared_by_all_nodes_replaces_that_of_the_template() -> None:
    other = {**TEMPLATE, "team": "research"}

    offering, warnings = compare(node(0, other), node(1, other))

    assert offering.labels["team"] == "research"
    assert warnings == ("the label team is research on its 2 nodes, expected ml; the nodes take precedence",)


def test_a_label_on_which_nodes_disagree_does_not_change_the_template() -> None:
    offering, warnings = compare(node(0), node(1, {**TEMPLATE, "team": "research"}))

    assert (offering.labels, warnings) == (TEMPLATE, ())


def test_labels_of_all_nodes_are_added_except_those_that_identify_a_node_or_zone() -> None:
    more = {**TEMPLATE, "driver": "580", "topology.k8s.aws/zone-id": "use1-az1"}

    offering, warnings = compare(
        node(0, {**more, "kubernetes.io/hostname": "ip-0", "alpha.eksctl.io/instance-id": "i-0"}), states=("InService",)
    )

    assert offering.labels == {**TEMPLATE, "driver": "580"}
    assert warnings == ()


def test_an_offering_keeps_its_zone_even_if_its_nodes_are_in_another_zone() -> None:
    offering, warnings = compare(node(0, {**TEMPLATE, "topology.kubernetes.io/zone": "us-east-1b"}))

    assert (offering.labels, warnings) == (TEMPLATE, ())


def test_taints_that_all_nodes_have_are_added_and_taints_that_none_has_are_removed() -> None:
    own = Taint("dedicated", "ml")

    offering, warnings = compare(node(0, taints=(own,)), node(1, taints=(own,)))

    assert offering.taints == (own,)
    assert [text.partition(" is on ")[0] for text in warnings] == [
        "the taint nvidia.com/gpu=true:NoSchedule",
        "the taint dedicated=ml:NoSchedule",
    ]


@pytest.mark.parametrize("key", ["node.kubernetes.io/unschedulable", "gpuscaler.io/leaving", "ToBeDeletedByClusterAutoscaler"])
def test_temporary_taints_and_taints_of_single_nodes_do_not_change_the_template(key: str) -> None:
    assert compare(node(0, taints=(GPU, Taint(key)))) == (pool_of_states().pool.offerings[0], ())
    assert compare(node(0, taints=(GPU, Taint("maintenance"))), node(1)) == (pool_of_states().pool.offerings[0], ())


@pytest.mark.parametrize(
    "odd",
    [
        node(0, {}, ready=False),
        node(0, {}, allocatable={"cpu": 3920, "memory": 1000}),
        node(0, {}, allocatable={**SIZE, "nvidia.com/gpu": 0}),
    ],
)
def test_nodes_that_are_not_ready_or_lack_devices_are_ignored(odd: Node) -> None:
    assert compare(odd) == (pool_of_states().pool.offerings[0], ())


def test_nodes_of_terminating_machines_are_ignored() -> None:
    assert compare(node(0, {}), states=("Terminating:Wait",)) == (pool_of_states().pool.offerings[0], ())


def test_nodes_with_fewer_resources_than_expected_are_reported() -> None:
    _, warnings = compare(node(0, allocatable={**SIZE, "memory": 980}))

    assert warnings == ("g5.xlarge offers 980 of memory on its 1 node, expected 1000",)


def test_labels_that_identify_a_pool_are_corrected_by_those_of_its_nodes() -> None:
    def matching(labels: Mapping[str, str]) -> Mapping[str, str]:
        return corrected_by_nodes(pool_of_states("InService"), {"i-0": node(0, labels)}).pool.match_labels

    assert matching(TEMPLATE) == {"team": "ml"}
    assert matching({**TEMPLATE, "team": "research"}) == {"team": "research"}
    assert matching({"kubernetes.io/arch": "amd64"}) == {}
