"""Recordings of pods and nodes that come and go."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests import objects

from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.settings import parse_policy
from gpuscaler.simulation.traces.machine_prices import Offer, offer_of
from gpuscaler.simulation.traces.recording import JOB_COLUMNS, MACHINE_COLUMNS, Recording

#: A Wednesday, 02:00 UTC; second 0 is the Monday before.
BEGAN = 1_800_410_400.0
AT = 2 * 86_400 + 2 * 3_600.0
LABELS = {
    "node.kubernetes.io/instance-type": "g5.xlarge",
    "topology.kubernetes.io/zone": "us-east-1a",
    "topology.kubernetes.io/region": "us-east-1",
}
POLICY = parse_policy("""
region: us-east-1
pools:
  - name: gpu
    zones: [us-east-1a]
    offerings: [{type: g5.xlarge, market: spot, price: 0.5}]
""")
INTERNER = Interner()


def stamp(at: float) -> str:
    return datetime.fromtimestamp(BEGAN + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str = "a", phase: str = "Running", *, uid: str = "", created: float = 0.0, started: float = 0.0, **more: Any) -> Pod:
    """A pod of two GPUs; times are seconds after the recording began."""
    metadata = {"namespace": "ns", "uid": uid or f"uid-of-{name}", "creationTimestamp": stamp(created), **more}
    status = {"phase": phase, **({"startTime": stamp(started)} if phase != "Pending" else {})}
    body = objects.pod(name, 2, cpu="1500m", metadata=metadata, status=status, priority=5)
    decoded = decode_object(msgspec.json.encode(body), INTERNER)
    assert isinstance(decoded, Pod)
    return decoded


def node(name: str = "n", created: float = 0.0, labels: Mapping[str, str] | None = None) -> Node:
    metadata = {"uid": f"uid-{name}", "creationTimestamp": stamp(created)}
    body = objects.node(name, 1, labels={**LABELS, **(labels or {})}, metadata=metadata, cpu="4", memory="16Gi")
    decoded = decode_object(msgspec.json.encode(body), INTERNER)
    assert isinstance(decoded, Node)
    return decoded


def recording(began: float = 0.0) -> Recording:
    return Recording(began=BEGAN + began, offer_of=lambda node: offer_of(node, POLICY))


def recording_of_empty_cluster(began: float = 0.0) -> Recording:
    """A recording that began on an empty cluster."""
    record = recording(began)
    record.settle()
    return record


def jobs(recorded: Recording) -> list[dict[str, str]]:
    return [dict(zip(JOB_COLUMNS, map(str, row), strict=True)) for row in (*recorded.over, *recorded.open_rows())]


def machines(recorded: Recording) -> list[dict[str, str]]:
    return [dict(zip(MACHINE_COLUMNS, map(str, row), strict=True)) for row in recorded.machine_rows()]


def test_a_recorded_pod_becomes_a_job_submitted_at_its_creation_with_its_run_time() -> None:
    record = recording_of_empty_cluster()
    record.pod("ns/a", pod(phase="Pending", created=10), BEGAN + 10)
    record.pod("ns/a", pod(created=10, started=50), BEGAN + 70)
    record.pod("ns/a", pod(phase="Succeeded", created=10), BEGAN + 170)
    (row,) = jobs(record)

    assert (row["job_id"], row["namespace"], row["priority"]) == ("ns.a.uid-of-a", "ns", "5")
    assert [float(row[key]) for key in ("submit_s", "start_s", "duration_s")] == [AT + 10, AT + 70, 100]
    assert [row[key] for key in ("n_pods", "gpus_per_pod", "gpu_milli", "cpu_milli", "mem_mib")] == ["1", "2", "1000", "1500", "1024"]
    assert (row["status"], row["note"]) == ("over", "")


def test_a_pod_that_is_deleted_or_replaced_under_its_name_is_recorded_as_ended() -> None:
    record = recording_of_empty_cluster()
    record.pod("ns/a", pod(uid="one"), BEGAN)
    record.pod("ns/a", pod(uid="two", created=60), BEGAN + 60)
    record.pod("ns/a", None, BEGAN + 90)

    assert [(row["job_id"], float(row["duration_s"])) for row in jobs(record)] == [("ns.a.one", 60), ("ns.a.two", 30)]


def test_a_pod_recorded_as_ended_does_not_start_again_with_the_same_uid() -> None:
    record = recording_of_empty_cluster()
    for at, phase in ((0, "Running"), (10, "Succeeded"), (20, "Running"), (30, "Succeeded")):
        record.pod("ns/a", pod(phase=phase), BEGAN + at)

    assert [float(row["duration_s"]) for row in jobs(record)] == [10]


def test_a_pod_older_than_the_recording_is_recorded_from_its_beginning_with_a_note() -> None:
    record = recording()
    record.pod("ns/a", pod(created=-500, started=-400), BEGAN + 1)
    record.settle()
    record.until(BEGAN + 100)
    (row,) = jobs(record)

    assert [float(row[key]) for key in ("submit_s", "start_s", "duration_s")] == [AT, AT, 100]
    assert row["note"] == "ran on after the recording; was there before the recording"
    assert row["status"] == "there"


def test_pods_that_never_started_are_left_out_and_counted() -> None:
    record = recording_of_empty_cluster()
    record.pod("ns/a", pod(phase="Pending"), BEGAN)
    record.pod("ns/b", pod("b", phase="Pending"), BEGAN)
    record.pod("ns/a", None, BEGAN + 60)
    record.until(BEGAN + 60)

    assert jobs(record) == []
    assert record.unserved == 1


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_daemon_set_and_static_pods_are_not_recorded(kind: str) -> None:
    record = recording_of_empty_cluster()
    owner = [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}]
    record.pod("ns/a", pod(ownerReferences=owner), BEGAN)

    assert jobs(record) == []


def test_a_gang_is_one_job_that_runs_from_its_last_start_to_its_last_end() -> None:
    record = recording_of_empty_cluster()
    gang: Any = {"annotations": {"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"}}
    for name, start in (("a", 20), ("b", 30)):
        record.pod(f"ns/{name}", pod(name, "Pending", **gang), BEGAN)
        record.pod(f"ns/{name}", pod(name, **gang), BEGAN + start)
    # One is evicted, and another replaces it.
    record.pod("ns/a", None, BEGAN + 40)
    record.pod("ns/c", pod("c", created=41, **gang), BEGAN + 50)
    record.pod("ns/b", None, BEGAN + 100)
    record.pod("ns/c", None, BEGAN + 110)
    (row,) = jobs(record)

    assert (row["job_id"], row["n_pods"]) == ("ns.g.uid-of-a", "2")
    assert [float(row[key]) for key in ("submit_s", "start_s", "duration_s")] == [AT, AT + 30, 80]


def test_a_later_gang_of_the_same_name_is_another_job() -> None:
    record = recording_of_empty_cluster()
    gang: Any = {"annotations": {"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "1"}}
    record.pod("ns/a", pod("a", **gang), BEGAN)
    record.pod("ns/a", None, BEGAN + 10)
    record.pod("ns/b", pod("b", created=20, **gang), BEGAN + 20)
    record.pod("ns/b", None, BEGAN + 40)

    assert [float(row["duration_s"]) for row in jobs(record)] == [10, 20]


def test_a_machine_is_recorded_from_registration_to_its_end_at_the_price_in_the_pools_file() -> None:
    record = recording_of_empty_cluster()
    record.node("n", node(created=30, labels={"karpenter.sh/capacity-type": "spot"}), BEGAN + 31)
    record.node("n", None, BEGAN + 3630)
    (row,) = machines(record)

    assert [row[key] for key in ("node", "pool", "market", "instance_type", "zone", "gpus")] == [
        "n", "gpu", "spot", "g5.xlarge", "us-east-1a", "1",
    ]  # fmt: skip
    assert [float(row[key]) for key in ("begin_s", "end_s", "usd_per_hour")] == [AT + 30, AT + 3630, 0.5]
    assert (row["status"], row["price_source"]) == ("over", "pools file")
    assert record.machines[0].dollars == pytest.approx(0.5)


def test_a_machine_without_an_offering_has_its_list_price_and_one_of_an_unknown_type_has_none() -> None:
    listed = offer_of(node(), POLICY)

    assert listed == Offer("gpu", "on-demand", "g5.xlarge", "us-east-1a", 1.006, "catalogue")
    assert offer_of(node(labels={"node.kubernetes.io/instance-type": "mine"}), POLICY).price is None
    assert offer_of(node(labels={"karpenter.sh/capacity-type": "reserved"}), None).price is None


def test_a_node_whose_instance_type_label_appears_later_is_recorded_with_that_type() -> None:
    record = recording_of_empty_cluster()
    record.node("n", node(labels={"node.kubernetes.io/instance-type": ""}), BEGAN)
    record.node("n", node(), BEGAN + 5)

    assert [row["instance_type"] for row in machines(record)] == ["g5.xlarge"]


def test_a_recording_is_continued_from_its_rows() -> None:
    first = recording_of_empty_cluster()
    first.pod("ns/a", pod("a"), BEGAN)
    first.pod("ns/b", pod("b"), BEGAN)
    first.pod("ns/c", pod("c"), BEGAN)
    first.pod("ns/c", None, BEGAN + 50)
    first.node("n", node(), BEGAN)
    first.node("m", node("m"), BEGAN)
    first.until(BEGAN + 100)
    second = recording(began=500.0)
    second.resume(jobs(first), machines(first))
    # Meanwhile b and m went, and d came.
    second.pod("ns/a", pod("a"), BEGAN + 501)
    second.pod("ns/d", pod("d", created=300, started=310), BEGAN + 501)
    second.node("n", node(), BEGAN + 501)
    second.settle()
    second.pod("ns/a", None, BEGAN + 600)
    second.until(BEGAN + 700)
    rows = {row["job_id"][:4]: row for row in jobs(second)}

    assert {name: (float(row["duration_s"]), row["status"]) for name, row in rows.items()} == {
        "ns.a": (600, "over"),
        "ns.b": (100, "over"),
        "ns.c": (50, "over"),
        "ns.d": (390, "there"),
    }
    assert rows["ns.b"]["note"] == "ended while nothing was recorded"
    assert float(rows["ns.d"]["submit_s"]) == AT + 300
    assert [(row["node"], float(row["end_s"]) - AT, row["status"]) for row in machines(second)] == [
        ("n", 700, "there"),
        ("m", 100, "over"),
    ]


def test_new_pods_of_a_gang_in_an_earlier_recording_are_added_to_it() -> None:
    gang: Any = {"annotations": {"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "1"}}
    first = recording_of_empty_cluster()
    first.pod("ns/a", pod("a", **gang), BEGAN)
    first.until(BEGAN + 100)
    second = recording(began=100.0)
    second.resume(jobs(first), [])
    second.pod("ns/a", pod("a", **gang), BEGAN + 101)
    second.settle()
    second.pod("ns/b", pod("b", created=150, **gang), BEGAN + 150)
    second.pod("ns/a", None, BEGAN + 160)
    second.pod("ns/b", None, BEGAN + 200)

    assert [(row["n_pods"], float(row["duration_s"])) for row in jobs(second)] == [("2", 50)]


def test_a_recording_that_was_continued_has_the_same_rows_as_an_uninterrupted_one() -> None:
    first = recording_of_empty_cluster()
    first.pod("ns/a", pod("a"), BEGAN)
    first.node("n", node(), BEGAN)
    first.until(BEGAN + 100)
    second = recording(began=100.0)
    second.resume(jobs(first), machines(first))

    assert (jobs(second), machines(second)) == (jobs(first), machines(first))


def test_rows_of_files_that_are_no_recording_are_rejected() -> None:
    with pytest.raises(ValueError, match="saw 'philly' in the column trace"):
        recording().resume([{"trace": "philly"}], [])
