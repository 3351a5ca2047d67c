"""Cached answers equal newly computed ones."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pod

from gpuscaler.lifecycle.observed.machine_index import MachineIndex, MachineIndexes
from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.instances import RUNNING, STOPPING, TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.planning.capacity.idle import STUCK_AFTER, is_idle

KIND = offering()


def instance(name: str, state: str = RUNNING) -> Instance:
    return Instance(name, *KIND.key, state=state)


def random_item(dice: Random, number: int) -> Pod:
    """A pod that may keep its node busy, for a time, or not at all."""
    made = pod(f"p{number}", on=f"n{dice.randrange(6)}", owner=dice.choice((Owner(), Owner("DaemonSet", "agent"))))
    return replace(made, phase=dice.choice(("Running", "Succeeded")), deleted=dice.choice((0.0, NOW + dice.randrange(300))))


def change(dice: Random, cluster: Cluster) -> Delta:
    deleted: list[tuple[type, str]] = [(Pod, key) for key in dice.sample(sorted(cluster.pods), min(2, len(cluster.pods)))]
    come: list[Item] = [random_item(dice, dice.randrange(12)) for _ in range(2)]
    if dice.random() < 0.5:
        name = dice.randrange(6)
        come.append(node(f"n{name}", provider_id=dice.choice((f"i-{name}", "i-shared", "")), ready=dice.random() < 0.7))
    if dice.random() < 0.2:
        deleted.append((Node, f"n{dice.randrange(6)}"))
    return Delta(tuple(come), tuple(deleted))


@pytest.mark.parametrize("seed", range(20))
def test_an_updated_machine_index_equals_a_new_one_after_every_change(seed: int) -> None:
    dice, indexes, cluster = Random(seed), MachineIndexes(), Cluster()
    inventory: Inventory | None = None
    for step in range(40):
        now = NOW + 10.0 * step
        if dice.random() < 0.8:
            cluster = cluster.apply(change(dice, cluster))
        if dice.random() < 0.3:
            states = (RUNNING, STOPPING, TERMINATED)
            inventory = Inventory(now, tuple(instance(f"i-{dice.randrange(8)}", dice.choice(states)) for _ in range(5)))
        kept, anew = indexes.of(cluster, inventory), MachineIndex.of(cluster, inventory)

        assert kept.unlisted == anew.unlisted
        assert (kept.nodeless, kept.unready, kept.unnamed) == (anew.nodeless, anew.unready, anew.unnamed)
        assert (kept.by_machine, kept.listed.alive, kept.listed.over) == (anew.by_machine, anew.listed.alive, anew.listed.over)
        assert indexes.idle(cluster, now) == {name for name in cluster.nodes if is_idle(cluster.on_node.get(name, {}).values(), now)}


def test_the_machine_index_is_reused_while_nodes_and_the_cloud_list_are_unchanged() -> None:
    indexes, cluster, inventory = MachineIndexes(), Cluster.of([node("n", provider_id="i-1")]), Inventory(NOW, (instance("i-1"),))
    first = indexes.of(cluster, inventory)

    assert indexes.of(cluster.apply(Delta((pod("p", on="n"),))), replace(inventory, at=NOW + 9.0)) is first
    assert indexes.of(cluster, Inventory(NOW, (instance("i-2"),))) is not first
    assert indexes.of(cluster.apply(Delta((node("m"),))), inventory).listed is not first.listed


def test_the_machine_index_finds_both_nodes_of_one_machine() -> None:
    twins = [node(name, provider_id="i-1") for name in ("a", "b")]

    assert MachineIndex.of(Cluster.of(twins), None).by_machine == {"i-1": tuple(twins)}


def test_an_overdue_terminating_pod_keeps_its_node_busy_only_for_a_limited_time() -> None:
    indexes, cluster = MachineIndexes(), Cluster.of([node("n"), pod("p", on="n", deleted=NOW)])

    assert indexes.idle(cluster, NOW + STUCK_AFTER) == set()
    assert indexes.idle(cluster, NOW + STUCK_AFTER + 1.0) == {"n"}


def test_a_cached_result_is_recomputed_only_if_an_argument_is_a_new_object() -> None:
    indexes, asked = MachineIndexes(), []

    def size(cluster: Cluster, index: MachineIndex) -> int:
        asked.append(cluster)
        return len(index.nodes)

    empty = Cluster()
    with_node = empty.apply(Delta((node("n1"),)))
    index = indexes.of(empty, None)

    assert [indexes.cached(size, cluster, indexes.of(cluster, None)) for cluster in (empty, empty, with_node, with_node, empty)] == [
        0,
        0,
        1,
        1,
        0,
    ]
    assert len(asked) == 3
    assert indexes.cached(size, empty, index) == 0
    assert len(asked) == 4
