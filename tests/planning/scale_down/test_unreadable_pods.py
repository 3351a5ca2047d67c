"""A node that looks empty because a pod cannot be read is not removed (I4)."""

from typing import Any

import pytest
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

NODES = [node("a"), node("b")]
IDLE = State(idle_seconds={"a": 7200.0, "b": 7200.0})
POLICY = Policy((pool(offering(), idle_after=600.0),))


def planned(cluster: Cluster) -> Plan:
    return plan(cluster, IDLE, POLICY, NOW)


def unreadable(**more: Any) -> Skipped:
    """A pod that cannot be decoded, as from an API server newer than gpuscaler."""
    decoded = decode_object(
        {"kind": "Pod", "metadata": {"namespace": "n", "name": "odd"}, "spec": {"containers": "none"}} | more, Interner()
    )
    assert isinstance(decoded, Skipped)
    return decoded


def kept_nodes(cluster: Cluster) -> dict[str, str]:
    made = planned(cluster)
    assert {removal.node for removal in made.removals} | {blocked.node for blocked in made.blocked_nodes} == {"a", "b"}
    return {blocked.node: blocked.blocker for blocked in made.blocked_nodes}


def test_idle_nodes_are_removed_if_every_pod_can_be_read() -> None:
    assert kept_nodes(Cluster.of(NODES)) == {}


def test_only_a_node_with_an_unreadable_pod_stays() -> None:
    cluster = Cluster.of(NODES, [unreadable(spec={"nodeName": "a", "containers": "none"})])

    assert kept_nodes(cluster) == {"a": "unreadable-pod"}
    (blocked,) = planned(cluster).blocked_nodes
    assert blocked.detail.startswith("Pod n/odd runs on it and cannot be read: spec.containers")


@pytest.mark.parametrize("spec", [None, {"nodeName": 5}, {"nodeName": {}, "containers": []}])
def test_every_node_stays_while_the_node_of_an_unreadable_pod_is_unknown(spec: Any) -> None:
    assert kept_nodes(Cluster.of(NODES, [unreadable(spec=spec, metadata={"namespace": "n", "name": "odd", "labels": 3})])) == dict.fromkeys(
        "ab", "unreadable-pod"
    )


@pytest.mark.parametrize(
    "more",
    [{"spec": {"containers": "none"}}, {"status": {"phase": "Succeeded"}, "spec": {"nodeName": "a", "containers": "none"}}],
    ids=["bound to no node", "finished"],
)
def test_an_unreadable_pod_that_uses_no_resources_keeps_no_node(more: dict[str, Any]) -> None:
    assert kept_nodes(Cluster.of(NODES, [unreadable(**more)])) == {}


def test_the_node_of_an_unreadable_pod_comes_from_its_last_readable_version() -> None:
    before = Cluster.of([*NODES, pod("odd", on="b")])
    after = before.apply(Delta(), set_aside=[Skipped("Pod default/odd", "odd")])

    assert kept_nodes(after).keys() == {"b"}


@pytest.mark.parametrize(
    "delta",
    [Delta(deletes=((Pod, "n/odd"),)), Delta(upserts=(pod("odd", spec(namespace="n", gpus=1), phase="Succeeded"),))],
    ids=["gone", "read again"],
)
def test_nodes_are_removed_after_the_unreadable_pod_is_gone_or_readable(delta: Delta) -> None:
    cluster = Cluster.of(NODES, [Skipped("Pod n/odd", "odd")])
    assert kept_nodes(cluster).keys() == {"a", "b"}

    assert kept_nodes(cluster.apply(delta)) == {}


def test_unreadable_objects_of_other_kinds_keep_no_node() -> None:
    assert kept_nodes(Cluster.of(NODES, [Skipped("Job n/odd", "odd"), Skipped("PodGroup n/odd", "odd")])) == {}
