"""A node that looks empty because a pod cannot be read is not removed (I4)."""

from typing import Any

import pytest
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.model.aside import SetAside
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


def unreadable(**more: Any) -> SetAside:
    """A pod as the API server could only show one if it were newer than we are."""
    found = decode_object({"kind": "Pod", "metadata": {"namespace": "n", "name": "odd"}, "spec": {"containers": "none"}} | more, Interner())
    assert isinstance(found, SetAside)
    return found


def kept(cluster: Cluster) -> dict[str, str]:
    made = planned(cluster)
    assert {one.node for one in made.removals} | {one.node for one in made.blocked_nodes} == {"a", "b"}
    return {one.node: one.blocker for one in made.blocked_nodes}


def test_where_every_pod_can_be_read_idle_nodes_go() -> None:
    assert kept(Cluster.of(NODES)) == {}


def test_a_node_with_a_pod_that_cannot_be_read_stays_and_others_go() -> None:
    cluster = Cluster.of(NODES, [unreadable(spec={"nodeName": "a", "containers": "none"})])

    assert kept(cluster) == {"a": "unreadable-pod"}
    (told,) = planned(cluster).blocked_nodes
    assert told.detail.startswith("Pod n/odd runs on it and cannot be read: spec.containers")


@pytest.mark.parametrize("spec", [None, {"nodeName": 5}, {"nodeName": {}, "containers": []}])
def test_while_the_node_of_a_pod_is_not_known_every_node_stays(spec: Any) -> None:
    assert kept(Cluster.of(NODES, [unreadable(spec=spec, metadata={"namespace": "n", "name": "odd", "labels": 3})])) == dict.fromkeys(
        "ab", "unreadable-pod"
    )


@pytest.mark.parametrize(
    "more",
    [{"spec": {"containers": "none"}}, {"status": {"phase": "Succeeded"}, "spec": {"nodeName": "a", "containers": "none"}}],
    ids=["bound to no node", "finished"],
)
def test_a_pod_that_holds_no_room_keeps_nothing_though_it_cannot_be_read(more: dict[str, Any]) -> None:
    assert kept(Cluster.of(NODES, [unreadable(**more)])) == {}


def test_what_was_read_of_a_pod_before_tells_where_it_is() -> None:
    before = Cluster.of([*NODES, pod("odd", on="b")])
    after = before.apply(Delta(), set_aside=[SetAside("Pod default/odd", "odd")])

    assert kept(after).keys() == {"b"}


@pytest.mark.parametrize(
    "delta",
    [Delta(deletes=((Pod, "n/odd"),)), Delta(upserts=(pod("odd", spec(namespace="n", gpus=1), phase="Succeeded"),))],
    ids=["gone", "read again"],
)
def test_when_the_pod_is_gone_or_can_be_read_again_the_nodes_go(delta: Delta) -> None:
    cluster = Cluster.of(NODES, [SetAside("Pod n/odd", "odd")])
    assert kept(cluster).keys() == {"a", "b"}

    assert kept(cluster.apply(delta)) == {}


def test_other_kinds_that_cannot_be_read_keep_nothing() -> None:
    assert kept(Cluster.of(NODES, [SetAside("Job n/odd", "odd"), SetAside("PodGroup n/odd", "odd")])) == {}
