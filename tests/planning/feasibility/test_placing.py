"""Properties of placing: a room after placements equals the room of a cluster with these pods."""

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.building import HOST, bare_node, near, pod, selector, spec
from tests.soaking import examples

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import HostPort, Pod, PodSpec, SpreadConstraint, VolumeUse
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.storage import CSINode, PersistentVolume, PersistentVolumeClaim
from gpuscaler.model.table import NodeTable
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import Namespace
from gpuscaler.planning.feasibility.snapshot import Room

STORAGE: tuple[Item, ...] = (
    Namespace("default", {"team": "ml"}),
    *(PersistentVolumeClaim("default", f"c{n}", volume=f"v{n}", bound=True, phase="Bound") for n in range(3)),
    PersistentVolumeClaim("default", "solo", volume="v3", bound=True, phase="Bound", access_modes=("ReadWriteOncePod",)),
    *(PersistentVolume(f"v{n}", driver="csi.example", handle=f"h{n}") for n in range(4)),
    *(CSINode(f"n{n}", limits=(("csi.example", 2),)) for n in range(3)),
)
LABELS = tuple(LabelSet(labels) for labels in ({}, {"app": "web"}, {"app": "db"}, {"app": "web", "tier": "x"}))

terms = st.builds(
    near,
    st.sampled_from((HOST, "zone")),
    where=st.sampled_from((("default",), ("other",), ())),
    spaces=st.sampled_from((None, LabelSelector(), selector(team="ml"))),
    app=st.sampled_from(("web", "db")),
)
spreads = st.builds(
    SpreadConstraint,
    st.sampled_from((HOST, "zone")),
    max_skew=st.integers(1, 2),
    selector=st.sampled_from((None, LabelSelector(), selector(app="web"))),
    min_domains=st.integers(1, 3),
    honor_affinity=st.booleans(),
    honor_taints=st.booleans(),
)
volumes = st.one_of(
    st.sampled_from(("c0", "c1", "c2", "solo")).map(lambda name: VolumeUse(claim=name)),
    st.builds(VolumeUse, driver=st.just("gcePersistentDisk"), handle=st.sampled_from(("d1", "d2")), read_only=st.booleans()),
)
specs = st.builds(
    spec,
    namespace=st.sampled_from(("default", "default", "other")),
    requests=st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 3), "nvidia.com/gpu": st.integers(1, 4)}),
    node_selector=st.sampled_from(((), (), (("zone", "a"),))),
    host_ports=st.lists(st.builds(HostPort, st.integers(80, 81), ip=st.sampled_from(("0.0.0.0", "10.0.0.1"))), max_size=1).map(tuple),
    affinity=st.lists(terms, max_size=1).map(tuple),
    anti_affinity=st.lists(terms, max_size=2).map(tuple),
    spread=st.lists(spreads, max_size=2).map(tuple),
    volumes=st.lists(volumes, max_size=2).map(tuple),
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    """Two to five nodes, some without a zone, some tainted."""
    drawn = []
    for number in range(draw(st.integers(2, 5))):
        zone = draw(st.sampled_from(("a", "b", "")))
        offers = {"cpu": draw(st.integers(0, 8)), "nvidia.com/gpu": draw(st.integers(0, 8)), "pods": draw(st.integers(1, 6))}
        taints = draw(st.sampled_from(((), (), (Taint("gpu"),))))
        drawn.append(bare_node(f"n{number}", {"zone": zone} if zone else {}, allocatable=offers, taints=taints))
    return drawn


class Step(NamedTuple):
    spec: PodSpec
    labels: LabelSet
    node: int


steps = st.lists(st.builds(Step, specs, st.sampled_from(LABELS), st.integers(0, 4)), max_size=8)


def pods(placed: list[Step], nodes: list[Node], first: int = 0) -> list[Pod]:
    return [pod(f"p{first + n}", s.spec, on=nodes[s.node % len(nodes)].name, labels=s.labels) for n, s in enumerate(placed)]


def assert_equal(worked: Room, fresh: Room, probes: list[PodSpec]) -> None:
    for probe in probes:
        for labels in LABELS:
            left, right = worked.verdict(probe, labels), fresh.verdict(probe, labels)
            for name in right.excluded:
                assert left.excluded[name].tolist() == right.excluded[name].tolist(), name
            assert left.mask.tolist() == right.mask.tolist()
            capacity = fresh.capacity(probe, labels)
            assert worked.capacity(probe, labels).tolist() == capacity.tolist()
            odd_rows = np.arange(len(capacity)) % 2 == 1
            assert worked.capacity(probe, labels, odd_rows).tolist() == np.where(odd_rows, capacity, 0).tolist()
            assert worked.admitting(probe, labels, slice(1, None)).tolist() == right.mask[1:].tolist()


@given(nodes=nodes(), before=steps, placed=steps, probes=st.lists(specs, min_size=1, max_size=2), asked=st.booleans())
@settings(max_examples=examples(50), deadline=None)
def test_placing_pods_gives_the_same_result_as_a_cluster_with_them_bound(
    *, nodes: list[Node], before: list[Step], placed: list[Step], probes: list[PodSpec], asked: bool
) -> None:
    worked = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes))))
    if asked:
        # Counters that exist before placing are kept current, others are built afterwards: both must give the same result.
        assert_equal(worked, worked.copy(), probes)
    together = worked.copy()
    for step in placed:
        worked.place(step.spec, step.labels, step.node % len(nodes))
        together.place_all(step.spec, step.labels, np.array([step.node % len(nodes)]), np.array([1]))
    fresh = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes), *pods(placed, nodes, first=100))))
    for room in (worked, together):
        assert_equal(room, fresh, [*probes, *(step.spec for step in placed)])


@given(nodes=nodes(), before=steps, removed=st.integers(0, 8), probes=st.lists(specs, min_size=1, max_size=2), asked=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_removing_pods_gives_the_same_result_as_a_cluster_without_them(
    *, nodes: list[Node], before: list[Step], removed: int, probes: list[PodSpec], asked: bool
) -> None:
    worked = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes))))
    if asked:
        assert_equal(worked, worked.copy(), probes)
    for step in before[:removed]:
        worked.remove(step.spec, step.labels, step.node % len(nodes))
    fresh = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before[removed:], nodes))))
    assert_equal(worked, fresh, [*probes, *(step.spec for step in before)])


@given(nodes=nodes(), before=steps, placed=steps, probes=st.lists(specs, min_size=1, max_size=2), split=st.integers(0, 5))
@settings(max_examples=examples(40), deadline=None)
def test_appending_nodes_gives_the_same_result_as_starting_with_them(
    *, nodes: list[Node], before: list[Step], placed: list[Step], probes: list[PodSpec], split: int
) -> None:
    first, more = nodes[:split], nodes[split:]
    items = (*nodes, *STORAGE, *pods(before, first)) if first else (*nodes, *STORAGE)
    worked = Room.of(Cluster.of(items), NodeTable(first))
    assert_equal(worked, worked.copy(), probes)
    extended = worked.extended(more)
    fresh = Room.of(Cluster.of(items))
    for step in placed:
        for each in (extended, fresh):
            each.place(step.spec, step.labels, step.node % len(nodes))
    assert_equal(extended, fresh, probes)


@given(nodes=nodes(), before=steps, placed=steps, probes=st.lists(specs, min_size=1, max_size=2), asked=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_changes_to_a_copy_of_a_room_do_not_affect_the_original(
    *, nodes: list[Node], before: list[Step], placed: list[Step], probes: list[PodSpec], asked: bool
) -> None:
    cluster = Cluster.of((*nodes, *STORAGE, *pods(before, nodes)))
    original = Room.of(cluster)
    # Volumes, ports and counters are shared if they exist at the time of the copy.
    for step in (*placed, *before) if asked else ():
        original.verdict(step.spec, step.labels)
    first, then = placed[::2], placed[1::2]
    for step in first:
        original.place(step.spec, step.labels, step.node % len(nodes))
    copy = original.copy()
    for step in then:
        copy.place(step.spec, step.labels, step.node % len(nodes))
    for step in first:
        original.remove(step.spec, step.labels, step.node % len(nodes))
    assert_equal(original, Room.of(cluster), probes)
    fresh = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes), *pods(placed, nodes, first=100))))
    assert_equal(copy, fresh, probes)


@given(nodes=nodes(), before=steps, probe=specs, labels=st.sampled_from(LABELS))
@settings(max_examples=examples(100), deadline=None)
def test_the_capacity_of_a_node_is_the_number_of_copies_that_fit_one_by_one(
    *, nodes: list[Node], before: list[Step], probe: PodSpec, labels: LabelSet
) -> None:
    # Spread over larger domains is left to the caller, so the filters would stop before the capacity is reached.
    probe = spec(
        namespace=probe.namespace,
        requests=probe.requests,
        node_selector=probe.node_selector,
        host_ports=probe.host_ports,
        affinity=probe.affinity,
        anti_affinity=probe.anti_affinity,
        spread=tuple(c for c in probe.spread if c.topology_key == HOST),
        volumes=probe.volumes,
    )
    here = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes))))
    taken = np.zeros(len(nodes), dtype=np.int64)
    for row in range(len(nodes)):
        alone = here.copy()
        while alone.verdict(probe, labels).mask[row]:
            alone.place(probe, labels, row)
            taken[row] += 1
    assert here.capacity(probe, labels).tolist() == taken.tolist()


@given(nodes=nodes(), before=steps, probe=specs, labels=st.sampled_from(LABELS))
@settings(max_examples=examples(40), deadline=None)
def test_rejected_nodes_have_a_reason_and_admitted_nodes_have_none(
    *, nodes: list[Node], before: list[Step], probe: PodSpec, labels: LabelSet
) -> None:
    here = Room.of(Cluster.of((*nodes, *STORAGE, *pods(before, nodes))))
    verdict = here.verdict(probe, labels)
    for row, admitted in enumerate(verdict.mask):
        name, detail = here.reason(probe, labels, row)
        assert bool(name and detail) is not bool(admitted)
        assert admitted or verdict.excluded[name][row]
