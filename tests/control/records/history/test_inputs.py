"""Packed inputs of a plan: nothing is lost, and planning again from them gives the same plan."""

import zlib
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.control.records.deciding import POLICY, make_decision, removal_decision
from tests.control.records.events.test_records import EventCollector, connect_recorder
from tests.control.world import seeded_random, world
from tests.objects import pod
from tests.planning.building import NOW, node, pods, spec
from tests.planning.changing import POLICIES, World
from tests.soaking import examples

from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history.inputs import InputsError, unpack_decision
from gpuscaler.control.records.history.packing import Packer, pack_decision
from gpuscaler.control.records.history.replaying import replay_decision
from gpuscaler.control.records.history.wire import WirePod
from gpuscaler.kube.resources import PODS
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.result import REMOVALS_WITHHELD, without_removals
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.provider import CallFaults

#: The head of inputs from a possible later version.
NEWER = msgspec.msgpack.encode({"form": 9, "version": "7.0"})


@settings(max_examples=examples(40), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(POLICIES), st.integers(0, 2**32), st.integers(0, 12))
def test_replaying_any_cluster_gives_the_identical_plan(policy: Policy, seed: int, steps: int) -> None:
    here = World(Random(seed))
    for _ in range(steps):
        here.step()
    decision = make_decision(here.cluster, here.state, policy, here.now)

    again, _ = unpack_decision(pack_decision(decision))

    for home, _ in HOMES.values():
        assert getattr(again.cluster, home) == getattr(decision.cluster, home)
    assert again.cluster.pods == decision.cluster.pods
    assert list(again.cluster.pods) == list(decision.cluster.pods)
    assert again.cluster.nodes == decision.cluster.nodes
    assert again.cluster.table.names == decision.cluster.table.names
    assert again.cluster.warned == decision.cluster.warned
    assert (again.state, again.policy, again.at, again.plan) == (decision.state, decision.policy, decision.at, decision.plan)
    assert replay_decision(again).identical
    # Pods that no scheduler has tried yet are ignored in a live cluster: plan for them as well.
    for_all = [plan(decision.cluster, decision.state, decision.policy, decision.at) for decision in (decision, again)]
    assert msgspec.json.encode(for_all[0]) == msgspec.json.encode(for_all[1])


@settings(max_examples=examples(15), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(POLICIES), st.integers(0, 2**32), st.integers(1, 5))
def test_packing_decisions_one_after_the_other_loses_no_object(policy: Policy, seed: int, steps: int) -> None:
    here, packer = World(Random(seed)), Packer()
    for _ in range(5):
        for _ in range(steps):
            here.step()
        decision = make_decision(here.cluster, here.state, policy, here.now)

        again, _ = unpack_decision(packer.pack(decision))

        assert list(again.cluster.pods.items()) == list(decision.cluster.pods.items())
        assert again.cluster.nodes == decision.cluster.nodes
        assert replay_decision(again).identical


def streams(data: bytes) -> list[bytes]:
    """The compressed streams in ``data``."""
    pieces = []
    while data:
        decompressor = zlib.decompressobj()
        decompressor.decompress(data)
        rest = decompressor.unused_data
        pieces.append(data[: len(data) - len(rest)])
        data = rest
    return pieces


def test_the_next_decision_of_a_large_cluster_is_written_as_changes_only() -> None:
    cluster, packer = Cluster.of((*pods("a", 3000, uid="u"), *(node(f"n{number}") for number in range(9)))), Packer()
    first = packer.pack(make_decision(cluster, State(), POLICY, NOW))
    some = [cluster.pods[f"default/a-{number}"] for number in (7, 2999)]
    upserts: tuple[Item, ...] = (
        *(replace(pod, phase="Failed") for pod in some),
        *pods("b", 2),
        node("n3", unschedulable=True),
        node("n20"),
    )
    changed = cluster.apply(Delta(deletes=((Pod, "default/a-5"), (Node, "n6")), upserts=upserts))
    second = packer.pack(make_decision(changed, State(), POLICY, NOW))
    third = packer.pack(make_decision(changed, State(), POLICY, NOW))

    assert streams(second)[:2] == streams(first)[:2]
    assert len(streams(second)[2]) < 0.2 * len(streams(first)[1])
    assert third == second
    again = unpack_decision(second)[0].cluster
    assert list(again.pods.items()) == list(changed.pods.items())
    assert list(again.nodes.items()) == list(changed.nodes.items())
    # After many changes everything is written again.
    other = cluster.apply(Delta(upserts=tuple(replace(pod, phase="Failed") for pod in cluster.pods.values())))
    fourth = packer.pack(make_decision(other, State(), POLICY, NOW))
    assert len(streams(fourth)) == 3
    assert list(unpack_decision(fourth)[0].cluster.pods.items()) == list(other.pods.items())


def test_after_many_small_changes_the_whole_cluster_is_written_again() -> None:
    cluster, packer = Cluster.of(pods("a", 2000)), Packer()
    lengths = []
    for number in range(30):
        some = [replace(cluster.pods[f"default/a-{place}"], phase=f"phase {number}") for place in range(100, 2000, 40)]
        cluster = cluster.apply(Delta(upserts=tuple(some), deletes=((Pod, f"default/a-{number}"),)))
        packed_now = packer.pack(make_decision(cluster, State(), POLICY, NOW))
        lengths.append(len(streams(packed_now)))

        assert list(unpack_decision(packed_now)[0].cluster.pods.items()) == list(cluster.pods.items())

    assert max(lengths) < 30
    assert lengths != sorted(lengths)


def test_unpacked_pods_keep_the_order_of_the_cluster() -> None:
    cluster, packer = Cluster.of(pods("a", 9)), Packer()
    packer.pack(make_decision(cluster, State(), POLICY, NOW))
    other = Cluster.of(reversed(cluster.pods.values()))

    assert list(unpack_decision(packer.pack(make_decision(other, State(), POLICY, NOW)))[0].cluster.pods) == list(other.pods)


def test_a_packed_pod_keeps_all_its_fields() -> None:
    assert set(WirePod.__struct_fields__) == set(Pod.__struct_fields__)


def test_a_replayed_plan_includes_the_skipped_objects() -> None:
    cluster = Cluster.of(pods("a", 2), [Skipped("Pod x/y", "saw a number, expected a string")])

    again, _ = unpack_decision(pack_decision(make_decision(cluster, State(), POLICY, NOW)))

    assert again.cluster.set_aside == cluster.set_aside
    assert replay_decision(again).identical


def test_unpacked_pods_of_one_class_share_one_spec_object() -> None:
    again, _ = unpack_decision(pack_decision(make_decision(Cluster.of(pods("a", 3, spec())), State(), POLICY, NOW)))

    assert len({id(pod.spec) for pod in again.cluster.pods.values()}) == 1


SIZES = """
region: us-east-1
min_saving: 0.01
pools:
  - name: gpu
    types: [g5.xlarge, g5.12xlarge, g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b]
    idle_after: 90s
"""


@pytest.mark.parametrize("seed", range(3))
async def test_each_decision_of_a_running_controller_replays_identically(seed: int) -> None:
    dice = seeded_random(seed, "replays")
    async with world(SIZES, seed=seed, calls=CallFaults(throttled=0.1, lost=0.1)) as here:
        sink = EventCollector()
        connect_recorder(here, sink)
        await here.sleep(3.0)
        for number in range(12):
            body = pod(f"p{number}", dice.choice((1, 1, 2, 4)), {"gpuscaler.io/run-for": f"{dice.randint(60, 400)}s"})
            await here.user.create(PODS, body, namespace="default")
            await here.sleep(dice.choice((1.0, 20.0, 60.0)))
        await here.sleep(900.0)

    assert any(decision.plan.machines for decision in sink.decisions)
    assert any(decision.plan.removals for decision in sink.decisions)
    for decision in sink.decisions:
        assert replay_decision(unpack_decision(pack_decision(decision))[0]).differences == ()


def test_a_plan_with_withheld_removals_is_replayed_without_removals() -> None:
    decision = removal_decision()
    assert decision.plan.removals
    withheld = Decision("d", NOW, "", decision.cluster, decision.state, POLICY, without_removals(decision.plan))

    again = replay_decision(withheld)

    assert again.identical
    assert again.plan.removals == ()
    assert REMOVALS_WITHHELD in again.plan.warnings


def test_differences_between_a_plan_and_its_replay_are_listed_entry_by_entry() -> None:
    decision = removal_decision()
    other = Decision("d", NOW, "", decision.cluster, decision.state, POLICY, replace(decision.plan, removals=(), gap=0.5))

    differences = replay_decision(other).differences

    assert any(line.startswith('removals: new, not recorded: {"node":"n1"') for line in differences)
    assert "gap: recorded 0.5, now 0.0" in differences


def test_a_different_order_of_entries_counts_as_a_difference() -> None:
    decision = make_decision(Cluster.of(pods("a", 2, spec(gpus=1), unschedulable=True)), State(), POLICY, NOW)
    assert len(decision.plan.machines) == 2
    other = Decision("d", NOW, "", decision.cluster, State(), POLICY, replace(decision.plan, machines=decision.plan.machines[::-1]))

    assert replay_decision(other).differences == ("machines: the same entries in another order",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "expected the inputs of a decision"),
        (b"no zlib at all", "cannot be read"),
        (pack_decision(removal_decision())[:-20], "end early"),
        (zlib.compress(b"\x00\x00\x00\x01\xff"), "cannot be read"),
        (zlib.compress(len(NEWER).to_bytes(4) + NEWER), "in format version 9"),
    ],
)
def test_invalid_packed_inputs_are_rejected_with_a_reason(data: bytes, said: str) -> None:
    with pytest.raises(InputsError, match=said):
        unpack_decision(data)
