"""The snapshot of a cluster: deltas give the same result as a new snapshot, and do not change the previous one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Bucket, Cluster, Delta, Item, class_key
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import HostPort, Pod, PodAffinityTerm, PodOptions, PodSpec
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.storage import PersistentVolumeClaim
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import DeviceObject, Namespace, PodGroup, Workload

TERM = PodAffinityTerm("zone", LabelSelector(), ("n",))
SPECS = (
    PodSpec("a", "n", {"cpu": 1000}),
    PodSpec("b", "n", {"cpu": 500, "nvidia.com/gpu": 2}),
    PodSpec("c", "n", {"memory": 7}, anti_affinity=(TERM,)),
    PodSpec("d", "n", {}, host_ports=(HostPort(80),)),
)
LABELS = (LabelSet(), LabelSet({"app": "a"}))
NODES = ("n1", "n2", "n3")


def node(name: str, cpu: int = 4000, zone: str = "a", warnings: tuple[str, ...] = ()) -> Node:
    return Node(name, {"zone": zone}, {"cpu": cpu}, taints=(Taint("t", zone),), warnings=warnings)


def pod(name: str, spec: PodSpec = SPECS[0], **fields: Any) -> Pod:
    return Pod("n", name, spec, **{"labels": LABELS[0], **fields})


def content(cluster: Cluster) -> dict[str, Any]:
    """Return all content of a cluster in a comparable form: dictionaries without order, arrays as lists."""
    content: dict[str, Any] = {name: value for name, value in vars(cluster).items() if isinstance(value, dict)}
    content["requested"] = {name: array.tolist() for name, array in cluster.requested.items()}
    content["unbound"] = {key: (bucket.keys, bucket.pods) for key, bucket in cluster.unbound.items()}
    content["table"] = cluster.table.nodes
    content["rows"] = cluster.table.row
    content["cores"] = cluster.table.allocatable("cpu").tolist()
    return {name: copied(value) for name, value in content.items()}


def copied(value: Any) -> Any:
    return {key: copied(item) for key, item in value.items()} if type(value) is dict else value


pods = st.builds(
    pod,
    st.sampled_from(("p1", "p2", "p3", "p4", "p5")),
    st.sampled_from(SPECS),
    labels=st.sampled_from(LABELS),
    node_name=st.sampled_from(("", *NODES, "unknown")),
    phase=st.sampled_from(("Pending", "Running", "Succeeded")),
    deleted=st.sampled_from((0.0, 5.0)),
    options=st.sampled_from((PodOptions(), PodOptions(gang="g"))),
    warnings=st.sampled_from(((), ("odd",))),
)
nodes = st.builds(
    node, st.sampled_from(NODES), st.integers(1, 3).map(lambda cores: cores * 1000), st.sampled_from("ab"), st.sampled_from(((), ("odd",)))
)
others = st.builds(PersistentVolumeClaim, st.just("n"), st.sampled_from(("c1", "c2")), phase=st.sampled_from(("Bound", "Pending")))
items = pods | pods | nodes | others
gone = (
    st.tuples(st.just(Pod), st.sampled_from(("n/p1", "n/p2", "n/p3", "n/p9")))
    | st.tuples(st.just(Node), st.sampled_from((*NODES, "unknown")))
    | st.tuples(st.just(PersistentVolumeClaim), st.sampled_from(("n/c1", "n/c9")))
)
deltas = st.builds(Delta, st.lists(items, max_size=6).map(tuple), st.lists(gone, max_size=3).map(tuple))


def apply_delta(objects: dict[tuple[type, str], Item], delta: Delta) -> None:
    """Apply a delta in the simplest way."""
    for kind, key in delta.deletes:
        objects.pop((kind, key), None)
    for item in delta.upserts:
        key = item.name if isinstance(item, Node) else item.key  # type: ignore[union-attr]  # only kinds drawn here
        objects.pop((type(item), key), None)
        objects[type(item), key] = item


@given(st.lists(items, max_size=10), st.lists(deltas, min_size=1, max_size=4))
def test_a_cluster_after_deltas_equals_a_cluster_of_the_remaining_objects(start: list[Item], changes: list[Delta]) -> None:
    cluster = Cluster.of(start)
    objects: dict[tuple[type, str], Item] = {}
    apply_delta(objects, Delta(tuple(start)))
    for delta in changes:
        before = content(cluster)
        after = cluster.apply(delta)
        assert content(cluster) == before
        cluster = after
        apply_delta(objects, delta)
        assert content(cluster) == content(Cluster.of(objects.values()))


@given(st.lists(items, max_size=12))
def test_every_index_agrees_with_the_pods(found: list[Item]) -> None:
    cluster = Cluster.of(found)
    alive = [pod for pod in cluster.pods.values() if not pod.finished]
    bound = [pod for pod in alive if pod.node_name]
    assert cluster.on_node == {name: {p.key: p for p in bound if p.node_name == name} for name in {p.node_name for p in bound}}
    assert set(cluster.finished) == {pod.key for pod in cluster.pods.values() if pod.finished}
    waiting = [pod for pod in alive if not pod.node_name]
    assert sum(len(bucket.pods) for bucket in cluster.unbound.values()) == len(waiting)
    assert all(pod.key in cluster.unbound[class_key(pod)].pods for pod in waiting)
    assert sum(sum(counts.values()) for counts in cluster.peers.values()) == len(bound)
    warned = [f"Pod {pod.key}" for pod in alive if pod.warnings] + [f"Node {node.name}" for node in cluster.nodes.values() if node.warnings]
    assert cluster.warnings == tuple(f"{name}: odd" for name in sorted(warned))
    with_effect = [pod for pod in bound if pod.spec.digest in ("c", "d")]
    assert sum(sum(user.nodes.values()) for user in cluster.users.values()) == len(with_effect)
    for row, name in enumerate(cluster.table.names):
        on_node = cluster.on_node.get(name, {})
        for resource in ("cpu", "nvidia.com/gpu", "memory"):
            array = cluster.requested.get(resource, np.zeros(len(cluster.table), dtype=np.int64))
            assert array[row] == sum(pod.spec.requests.get(resource, 0) for pod in on_node.values())


def test_of_two_objects_with_the_same_name_the_later_one_is_kept() -> None:
    cluster = Cluster.of([pod("p"), pod("p", SPECS[1], node_name="n1"), node("n1"), node("n1", cpu=1)])
    assert cluster.table.allocatable("cpu").tolist() == [1]
    assert (len(cluster.unbound), cluster.requested["nvidia.com/gpu"].tolist()) == (0, [2])


def test_a_heartbeat_of_a_node_leaves_the_cluster_unchanged() -> None:
    cluster = Cluster.of([node("n1"), pod("p", node_name="n1")])
    after = cluster.apply(Delta((node("n1"),)))
    assert after.table is cluster.table
    assert after.nodes is cluster.nodes


def test_a_node_that_is_added_after_its_pods_has_them() -> None:
    cluster = Cluster.of([node("n2"), pod("p", node_name="n1"), pod("q", node_name="n2")]).apply(Delta((node("n1"),)))
    assert cluster.table.names == ("n1", "n2")
    assert cluster.requested["cpu"].tolist() == [1000, 1000]
    assert cluster.requested["pods"].tolist() == [1, 1]
    without_node = cluster.apply(Delta(deletes=((Node, "n2"),)))
    assert without_node.requested["cpu"].tolist() == [1000]
    assert "q" in {pod.name for pod in without_node.on_node["n2"].values()}


def test_clusters_share_their_unchanged_parts() -> None:
    many = [pod(f"p{number}", node_name=f"n{number % 3 + 1}") for number in range(30)]
    cluster = Cluster.of([*map(node, NODES), *many, pod("waiting")])
    after = cluster.apply(Delta((pod("p0", SPECS[1], node_name="n1"),)))
    assert after.on_node["n2"] is cluster.on_node["n2"]
    assert after.table is cluster.table
    assert after.claims is cluster.claims
    assert after.unbound is cluster.unbound


def test_a_cluster_stores_pod_groups_and_namespaces() -> None:
    content: list[Item] = [PodGroup("volcano", "n", "g", 3), Namespace("n", {"team": "a"})]
    cluster = Cluster.of(content)
    assert cluster.pod_groups == {"volcano/n/g": content[0]}
    assert cluster.namespaces == {"n": content[1]}
    assert cluster.apply(Delta(deletes=((Namespace, "n"),))).namespaces == {}


def test_a_skipped_object_is_listed_once() -> None:
    aside = Skipped("Pod n/p", "odd")
    cluster = Cluster.of([], [aside]).apply(Delta(), set_aside=[aside, Skipped("Pod n/q", "odd")])
    assert [skipped.object for skipped in cluster.set_aside] == ["Pod n/p", "Pod n/q"]


ASIDE = (
    (pod("p"), "Pod n/p"),
    (node("n1"), "Node n1"),
    (PersistentVolumeClaim("n", "c"), "PersistentVolumeClaim n/c"),
    (Workload("Deployment", "n", "web"), "Deployment n/web"),
    (PodGroup("volcano", "n", "g"), "PodGroup n/g"),
    (PodGroup("jobset", "n", "g"), "JobSet n/g"),
    (PodGroup("workload", "n", "g"), "PodGroup n/g"),
    (PodGroup("workload", "n", "w/g"), "Workload n/w"),
    (DeviceObject("DeviceClass", "", "gpu"), "DeviceClass gpu"),
)


@pytest.mark.parametrize(("item", "name"), ASIDE)
def test_a_skipped_object_that_becomes_readable_or_is_deleted_is_no_longer_listed_as_skipped(item: Item, name: str) -> None:
    other = Skipped("Pod n/other", "odd")
    cluster = Cluster.of([], [Skipped(name, "odd"), other])
    key = getattr(item, "name" if isinstance(item, Node) else "key")
    assert cluster.apply(Delta((item,))).set_aside == (other,)
    assert cluster.apply(Delta(deletes=((type(item), key),))).set_aside == (other,)
    assert [skipped.object for skipped in cluster.set_aside] == [name, "Pod n/other"]


def test_an_object_that_becomes_unreadable_again_is_skipped_again() -> None:
    aside = Skipped("Pod n/p", "odd")
    cluster = Cluster.of([], [aside]).apply(Delta((pod("p"),))).apply(Delta(), set_aside=[aside])
    assert cluster.set_aside == (aside,)


def test_only_the_latest_reason_for_skipping_an_object_is_kept() -> None:
    nameless = Skipped("Pod", "no name")
    cluster = Cluster.of([], [Skipped("Pod n/p", "odd"), nameless])
    after = cluster.apply(Delta(), set_aside=[Skipped("Pod n/p", "odder"), Skipped("Pod", "no metadata")])
    assert after.set_aside == (nameless, Skipped("Pod n/p", "odder"), Skipped("Pod", "no metadata"))


def test_a_duplicate_object_in_a_file_may_be_both_read_and_skipped() -> None:
    cluster = Cluster.of([pod("p")], [Skipped("Pod n/p", "odd")])
    assert len(cluster.set_aside) == len(cluster.pods) == 1


def test_the_keys_of_an_index_bucket_are_sorted_regardless_of_insertion_order() -> None:
    bucket = Bucket({name: pod(name) for name in ("b", "c", "a")})
    assert bucket.keys == ("a", "b", "c")
    assert bucket.sample.name == "b"


def test_arrays_of_a_node_table_are_shared_and_read_only() -> None:
    table = Cluster.of([node("n2", zone="b"), node("n1"), node("n3")]).table
    assert table.allocatable("cpu") is table.allocatable("cpu")
    assert table.allocatable("nvidia.com/gpu").tolist() == [0, 0, 0]
    column = table.column("zone")
    assert [column.values[code] for code in column.codes] == ["a", "b", "a"]
    assert table.column("rack").codes.tolist() == [-1, -1, -1]
    codes, lists = table.taints
    assert [lists[code][0].value for code in codes] == ["a", "b", "a"]
    for array in (table.allocatable("cpu"), column.codes, codes, table.unschedulable):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@given(st.lists(nodes, max_size=3), st.lists(nodes, max_size=3), st.booleans())
def test_extending_a_node_table_equals_building_it_from_all_rows(first: list[Node], more: list[Node], asked: bool) -> None:
    table = Cluster.of(first).table
    if asked:
        table.allocatable("cpu"), table.column("zone"), table.taints
    extended = table.extended([node for node in more if node.name not in table.row])
    whole = type(table)(extended.nodes)
    assert extended.names == whole.names
    assert extended.row == whole.row
    assert extended.allocatable("cpu").tolist() == whole.allocatable("cpu").tolist()
    assert zones(extended.column("zone")) == zones(whole.column("zone"))
    assert [extended.taints[1][code] for code in extended.taints[0]] == [node.taints for node in extended.nodes]


def zones(column: Any) -> list[str | None]:
    return [column.values[code] if code >= 0 else None for code in column.codes]


def test_a_label_set_is_hashable_and_immutable() -> None:
    label_set, same_labels = LabelSet({"a": "1", "b": "2"}), LabelSet({"b": "2", "a": "1"})
    assert {label_set: "found"}[same_labels] == "found"
    frozen: Mapping[str, str] = label_set
    assert frozen == {"a": "1", "b": "2"}
    with pytest.raises(TypeError, match="is immutable"):
        label_set["c"] = "3"
    for change in (label_set.update, label_set.pop, label_set.clear, label_set.setdefault, label_set.popitem):
        with pytest.raises(TypeError, match="is immutable"):
            change("a")


@given(st.lists(nodes, max_size=6, unique_by=lambda one: one.name), st.lists(nodes, max_size=4), st.lists(st.integers(0, 5), max_size=3))
def test_updating_a_node_table_equals_building_it_from_the_changed_nodes(before: list[Node], more: list[Node], gone: list[int]) -> None:
    cluster = Cluster.of(before)
    table = cluster.table
    table.allocatable("cpu"), table.column("zone"), table.taints
    deletes = tuple((Node, before[number].name) for number in {*gone} if number < len(before))
    changed = cluster.apply(Delta(tuple(more), deletes)).table
    kept = {node.name: node for node in before if (Node, node.name) not in deletes} | {node.name: node for node in more}
    whole = type(table)([kept[name] for name in sorted(kept)])
    assert (changed.nodes, changed.names, changed.row) == (whole.nodes, whole.names, whole.row)
    assert changed.allocatable("cpu").tolist() == whole.allocatable("cpu").tolist()
    assert zones(changed.column("zone")) == zones(whole.column("zone"))
    assert [changed.taints[1][code] for code in changed.taints[0]] == [node.taints for node in changed.nodes]
