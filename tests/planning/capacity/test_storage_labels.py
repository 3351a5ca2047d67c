"""Topology labels of storage drivers on offerings."""

from tests.planning.building import HOST, ZONE, node, offering, planned, pod, pool, spec, unplaced

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.model.storage import CSINode
from gpuscaler.planning.capacity.storage_labels import with_storage_places

KEY = "topology.shop.example/zone"
POOL = pool(offering(zone="z1"), offering(zone="z2"))


def added_labels(*items: Item) -> dict[str, dict[str, str]]:
    """The additional labels of offerings, by zone."""
    policy = with_storage_places(Policy((POOL,)), Cluster.of(items))
    return {
        offering.zone: {key: value for key, value in offering.labels.items() if key not in before.labels}
        for before, offering in zip(POOL.offerings, policy.pools[0].offerings, strict=True)
    }


def node_with_csi(name: str, zone: str, *keys: str, **more: str) -> list[Item]:
    """A node with labels, and its CSINode, which names ``keys``."""
    node_labels = {ZONE: zone, **{key.replace("__", "/").replace("_", "."): value for key, value in more.items()}}
    return [node(name, offering(zone=zone, labels=node_labels)), CSINode(name, topology_keys=keys)]


def test_a_storage_label_whose_value_is_the_zone_is_expected_in_every_zone() -> None:
    assert added_labels(*node_with_csi("a", "z1", KEY, topology_shop_example__zone="z1")) == {"z1": {KEY: "z1"}, "z2": {KEY: "z2"}}


def test_a_storage_label_that_nodes_of_a_zone_share_is_expected_of_the_next_node() -> None:
    two = [
        *node_with_csi("a", "z1", KEY, topology_shop_example__zone="az-7"),
        *node_with_csi("b", "z1", KEY, topology_shop_example__zone="az-7"),
    ]
    assert added_labels(*two) == {"z1": {KEY: "az-7"}, "z2": {}}


def test_a_storage_label_of_one_node_or_with_different_values_in_a_zone_is_ignored() -> None:
    one, other = (node_with_csi(name, "z1", "local.csi/node", local_csi__node=name) for name in "ab")
    assert added_labels(*one) == {"z1": {}, "z2": {}}
    assert added_labels(*one, *other) == {"z1": {}, "z2": {}}


def test_the_zone_id_label_is_learned_from_one_node() -> None:
    assert added_labels(*node_with_csi("a", "z1", topology_k8s_aws__zone_id="use1-az4"))["z1"] == {}
    there = node("a", offering(zone="z1", labels={"topology.k8s.aws/zone-id": "use1-az4"}))
    assert added_labels(there) == {"z1": {"topology.k8s.aws/zone-id": "use1-az4"}, "z2": {}}


def test_configured_labels_of_a_pool_take_precedence_and_node_names_are_not_copied() -> None:
    policy = Policy((pool(offering(zone="z1", labels={KEY: "mine"})),))
    there = node_with_csi("a", "z1", KEY, HOST, topology_shop_example__zone="z1")
    (made,) = with_storage_places(policy, Cluster.of(there)).pools[0].offerings
    assert made.labels[KEY] == "mine"
    assert HOST not in made.labels


def test_a_machine_is_bought_for_a_pod_that_selects_a_storage_label() -> None:
    items = [
        *node_with_csi("a", "z1", KEY, topology_shop_example__zone="z1"),
        pod("p", spec(gpus=1, cpu=100, node_selector=((KEY, "z2"),))),
    ]
    assert unplaced(planned(items, POOL)) == ["p"]
    big = pool(offering("g.9", cpu=200, zone="z1"), offering("g.9", cpu=200, zone="z2"))
    policy = with_storage_places(Policy((big,)), Cluster.of(items))
    assert [machine.zone for machine in planned(items, *policy.pools).machines] == ["z2"]
