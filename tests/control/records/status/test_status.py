"""The status, computed from the latest state."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, daemon, node, offering, pod, pool, spec

from gpuscaler.cli.status import print_status
from gpuscaler.control.process.expander import PrioritiesInForce
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.telling import unplaced_event
from gpuscaler.control.records.status import doctor_status as doctor_status_module
from gpuscaler.control.records.status.doctor_status import doctor_lines, doctor_status, summarize
from gpuscaler.control.records.status.reporting import status_config_map
from gpuscaler.control.records.status.status import MOST, NAMED, Process, Status, status_of, summary
from gpuscaler.doctor.findings import Finding, Fix, Report, Unchecked
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.node_health.device_plugins import AbsentDevices
from gpuscaler.lifecycle.released_pools import ReleasedPool
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pools import BY_SIZE, Limits, Policy
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.plans import BlockedNode, Plan, Reason, Unplaced
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine, Removal

G1 = offering("g.1", 1.0, gpus=1, cpu=4)
G8 = offering("g.8", 6.5, gpus=8, cpu=32)
POLICY = Policy((pool(G1, G8),), Limits(gpus=20, machines=None, dollars_per_hour=50.0))


def status(*items: Item, aside: tuple[Skipped, ...] = (), plan: Plan | None = None, **memory: Any) -> Status:
    latest = Latest(Cluster.of(items, aside), Memory(**memory), plan or Plan(), POLICY, NOW, NOW)
    return status_of(latest, Process("me"), troubles=(), happened=(), now=NOW)


def machine(name: str, of: Any = G8, **fields: Any) -> OrderedMachine:
    return OrderedMachine(**{"id": name, "order": "t", "offerings": (of.key,), "price": of.price, "asked": NOW - 30, **fields})


def test_the_status_of_a_pool_counts_each_machine_once_with_its_gpus_and_cost() -> None:
    closed = machine("m1", node="n3", instance="i-3", offering=G8.key, granted=NOW - 20)
    ledger = Ledger(coming=(closed, machine("m2", G1)), leaving=(Removal("n2", "i-2", G1.key, "idle", NOW, NOW),))
    shown = status(node("n1", G8), node("n2", G1), node("n3", G8), pod("a", spec(gpus=3), on="n1"), ledger=ledger)

    (pool,) = shown.pools
    assert (pool.machines, pool.coming, pool.leaving) == (2, 2, 1)
    assert (pool.gpus, pool.used) == (9, 3)
    assert pool.dollars_per_hour == 7.5
    assert [(kind.instance_type, kind.state, kind.machines) for kind in shown.kinds] == [
        ("g.1", "coming", 1),
        ("g.1", "leaving", 1),
        ("g.8", "coming", 1),
        ("g.8", "open", 1),
    ]


def test_nodes_outside_of_pools_count_as_nodes_and_not_as_machines() -> None:
    shown = status(node("other", G8, labels={"gpuscaler.io/pool": "someone-elses"}))

    assert (shown.nodes, shown.pools[0].machines, shown.kinds) == (1, 0, ())


def test_the_use_of_a_limit_includes_ordered_machines() -> None:
    shown = status(node("n1", G8), ledger=Ledger(coming=(machine("m1", G8),)))

    assert {limit.name: (limit.used, limit.most) for limit in shown.limits} == {"gpus": (16.0, 20.0), "dollars_per_hour": (13.0, 50.0)}


def test_the_status_of_a_breaker_states_its_target_cause_and_end() -> None:
    target = Target("", "spot", ("g.1",), "z1")
    shown = status(breakers=Breakers((Breaker(target, "capacity", 2, NOW - 60, NOW - 10, NOW + 100, detail="none left"),)))

    (breaker,) = shown.breakers
    assert (breaker.target, breaker.cause, breaker.open, breaker.until) == ("spot g.1 z1", "capacity", True, NOW + 100)
    assert "none left" in breaker.text


def test_the_status_groups_pods_pending_for_the_same_reason_and_names_a_few() -> None:
    why = (Reason("gpu", "resource", "too large"),)
    plan = Plan(unplaced=tuple(Unplaced(f"default/p{number:02}", why) for number in range(12)))
    (waiting,) = status(plan=plan).waiting

    assert (waiting.count, waiting.reason) == (12, "no machine of any pool fits it: pool gpu: too large")
    assert waiting.pods == tuple(f"default/p{number:02}" for number in range(NAMED))


def test_lists_in_the_status_are_cut_and_counts_include_all_entries() -> None:
    plan = Plan(
        unplaced=tuple(Unplaced(f"default/p{number}", (Reason("gpu", "taint", f"{number} " + "é" * 900),)) for number in range(500))
    )
    shown = status(plan=plan, aside=tuple(Skipped(f"Pod default/odd-{number}", "saw nothing") for number in range(500)))

    assert (shown.unplaced, len(shown.waiting)) == (500, MOST)
    assert (shown.set_aside_count, len(shown.set_aside)) == (500, MOST)
    assert len(msgspec.json.encode(status_config_map(shown, "kube-system"))) < 100_000


def test_the_status_names_the_markets_without_a_known_price() -> None:
    policy = Policy((pool(G1, replace(G8, market="spot", price_from=BY_SIZE)),))
    (trouble,) = status_of(Latest(policy=policy), Process("me"), troubles=(), happened=(), now=NOW).troubles

    assert trouble.startswith(f"prices unknown: g.8 spot (pool {G8.pool}); purchases use an estimated price")
    assert "aws" not in trouble


def test_a_released_pool_is_described_in_words_of_no_cloud() -> None:
    latest = Latest(policy=POLICY, released_pools=(ReleasedPool("old", coming=1),))
    (warning,) = status_of(latest, Process("me"), troubles=(), happened=(), now=NOW).warnings

    assert warning.startswith("pool old is no longer managed. Work in progress is finished (1 machine starting, 0 leaving")
    assert "aws" not in warning


def test_nodes_with_the_same_problem_share_one_warning() -> None:
    seven = {**G8.allocatable, "nvidia.com/gpu": 7}
    (warning,) = status(*(node(f"n{number}", G8, allocatable=seven) for number in range(5))).warnings

    assert warning.startswith("5 nodes, n0, n1, n2 and 2 more show 7 of 8 nvidia.com/gpu that a g.8 has; plans use the shown number;")


def test_machines_of_a_pool_that_failed_before_they_were_nodes_share_one_problem_with_the_clouds_text() -> None:
    ordered = tuple(machine(f"m{number}", instance=f"i-{number}", offering=G8.key, granted=NOW - 60) for number in range(4))
    latest = Latest(memory=Memory(ledger=Ledger(coming=ordered)), policy=POLICY)

    def troubles(*faulty: str) -> tuple[str, ...]:
        latest.faults = dict.fromkeys(faulty, "vmssCSE: exit status=50")
        return status_of(latest, Process("me"), troubles=(), happened=(), now=NOW).troubles

    assert troubles() == ()
    assert troubles("m1") == ("pool main: the cloud reports a fault of a machine that is not a node yet, i-1: vmssCSE: exit status=50",)
    assert troubles("m1", "m2") == (
        "pool main: the cloud reports a fault of 2 machines that are not nodes yet, such as i-1: vmssCSE: exit status=50",
    )


def test_nodes_kept_closed_for_the_same_reason_share_one_warning() -> None:
    closed = [node(f"n{number}", G8, taints=(Taint(ARRIVING_TAINT),), created=NOW - 3600.0) for number in range(3)]
    (warning,) = status(*closed).warnings

    assert warning.startswith(
        f"3 nodes, n0, n1, n2 are closed by the taint {ARRIVING_TAINT}, and gpuscaler neither opens nor removes them:"
    )


def test_one_line_gives_the_number_and_cost_of_machines_with_blockers(capsys: pytest.CaptureFixture[str]) -> None:
    stays = (
        BlockedNode("n1", "job", "pod default/a belongs to a running Job and states no restart cost"),
        BlockedNode("n2", "job", "pod default/b belongs to a running Job and states no restart cost"),
        BlockedNode("n3", "pdb", "budget default/web allows no eviction"),
        BlockedNode("n4", "in-use", "pod default/c fits on no other node"),
        BlockedNode("other", "not-listed", "it is another program's"),
    )
    shown = status(node("n1", G8), node("n2", G8), node("n3", G1), node("n4", G1), node("other", G8), plan=Plan(blocked_nodes=stays))
    print_status(shown, NOW)

    assert [(held.blocker, held.machines, held.dollars_per_hour, held.node) for held in shown.held] == [
        ("job", 2, 13.0, "n1"),
        ("pdb", 1, 1.0, "n3"),
    ]
    assert (
        "\nHeld: 2 machines ($13.00/h) by Jobs or gangs without gpuscaler.io/restart-cost, or with a cost above the saving; "
        "1 machine ($1.00/h) by PodDisruptionBudgets. gpuscaler why node n1 names the object.\n"
    ) in capsys.readouterr().out


def test_the_line_about_machines_with_blockers_is_missing_if_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(status(node("n1", G1), plan=Plan(blocked_nodes=(BlockedNode("n1", "in-use", "pods run on it"),))), NOW)

    assert "Held" not in capsys.readouterr().out


def test_the_status_shows_the_priorities_in_force_and_warns_of_suspicious_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    latest = Latest(
        policy=POLICY, priorities=lambda: PrioritiesInForce("the ConfigMap is in force: 9: gpu", ("its pattern 5: x matches no pool",))
    )
    print_status(status_of(latest, Process("me"), troubles=(), happened=(), now=NOW), NOW)
    output = capsys.readouterr().out

    assert "\nPriorities: the ConfigMap is in force: 9: gpu.\n" in output
    assert "\nWarnings:\n  its pattern 5: x matches no pool\n" in output


def test_the_summary_of_the_status_is_one_readable_line() -> None:
    shown = status(node("n1", G8), pod("a", spec(gpus=3), on="n1"), ledger=Ledger(coming=(machine("m1", pods=("default/b",)),)))

    assert summary(shown) == ("1 machine in 1 pool at $6.50/h; 3 of 8 GPUs in use; 0 pods cannot be placed, 1 waits for ordered machines")


EXPORTER = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}


def exporter(**labels: str) -> Workload:
    """A DaemonSet of the chart that selects nodes with these labels."""
    return replace(daemon("exporter", spec(node_selector=tuple(labels.items()))), template_labels=LabelSet(EXPORTER))


def test_nodes_with_gpus_that_no_exporter_daemon_set_selects_are_reported() -> None:
    selected, unknown = node("n1", G8, labels={"gpu": "yes"}), node("n2", G8)
    paused = node("n3", G8, labels={"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"})
    plain = node("n4", offering("c.1", 0.1, gpus=0))
    (warning,) = status(selected, unknown, paused, plain, exporter(gpu="yes")).warnings

    assert warning.startswith("DaemonSet default/exporter matches 1 of 2 nodes with NVIDIA GPUs, and not node n2: saw none of the labels")
    assert status(selected, plain, paused, exporter(gpu="yes")).warnings == ()
    # Without an exporter, nothing is measured on purpose; and a second exporter may select the nodes that the first does not.
    assert status(selected, unknown).warnings == ()
    assert status(selected, unknown, exporter(gpu="yes"), replace(exporter(), name="other")).warnings == ()


def test_the_status_reports_a_leader_that_runs_on_a_node_with_gpus() -> None:
    def warnings(on: str) -> tuple[str, ...]:
        own = pod("gpuscaler-0", spec(cpu=1), on=on)
        items = (node("gpu", G8), node("plain", offering("c.1", 0.1, gpus=0)), own)
        latest = Latest(Cluster.of(items), Memory(), Plan(), POLICY, NOW, NOW)
        leader = Process("me", pod="gpuscaler-0", namespace="default")
        return status_of(latest, leader, troubles=(), happened=(), now=NOW).warnings

    (warning,) = warnings("gpu")
    assert warning.startswith("pod default/gpuscaler-0, which leads, runs on node gpu, which has GPUs")
    assert warnings("plain") == warnings("gone") == ()


def test_the_status_has_machines_by_type_the_time_of_the_last_plan_and_the_address_of_the_leader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = {"pod": "leader", "namespace": "gpu", "port": 8081, "address": "127.0.0.1"}
    shown = status(node("n1", G8), node("n2", G8), node("n3", G1), ledger=Ledger(coming=(machine("m1"),)))
    with_leader = replace(shown, looked_at=NOW - 3.0, planned_at=NOW - 60.0, leader=Process("me", **pages))  # type: ignore[arg-type]
    print_status(with_leader, NOW)
    print_status(replace(with_leader, planned_at=0.0, leader=Process("me", host="h", port=1, address="::1")), NOW)
    output = capsys.readouterr().out

    assert "\nLast reconciled 3s ago: 3 nodes and 0 pods; planned 1m ago. Its pages are at 127.0.0.1:8081 of pod gpu/leader.\n" in output
    assert "; not planned yet. Its pages are at [::1]:1 of h.\n" in output
    assert f"\nMachines:\n  {shown.kinds[0].pool}: " in output
    assert {f"{kind.machines} x {kind.market} {kind.instance_type} {kind.state}" in output for kind in shown.kinds} == {True}


def finding(check: str, name: str, seen: str = "this", command: str = "") -> Finding:
    return Finding(check, "warning", name, "field", seen, "that", "it costs", Fix((command,) if command else ()))


def test_a_node_without_its_devices_is_reported_by_the_finding_about_it_if_there_is_one() -> None:
    memory = Memory(absent_devices={name: AbsentDevices("u", {"nvidia.com/gpu": 8}, NOW - 400.0) for name in ("a", "b")})
    latest = Latest(memory=memory, findings=(finding("D12", "Node a"), finding("D40", "Node b")))

    (trouble,) = status_of(latest, Process("me"), troubles=(), happened=(), now=NOW).troubles

    assert trouble.startswith("node b had 8 nvidia.com/gpu")


def test_findings_in_the_status_are_bounded_in_number_and_size() -> None:
    many = tuple(finding("D40", f"Node {number}", f"{number} {'x' * 9000}", "y" * 9000) for number in range(500))
    same = tuple(finding("D35", f"Node {number}", command="kubectl") for number in range(500))
    unchecked = tuple(Unchecked("D9", "z" * 9000, "it failed") for _ in range(500))
    result = doctor_status(Report((*same, *many), unchecked, 7), NOW)

    assert len(msgspec.json.encode(result)) < 40_000
    assert (len(result.groups), result.more, result.silenced) == (doctor_status_module.MOST, 501 - doctor_status_module.MOST, 7)
    assert result.groups[0].count == 500
    assert result.groups[0].objects == ("Node 0", "Node 1", "Node 2")
    assert result.groups[0].fix == "kubectl"
    assert {group.fix for group in result.groups[1:]} == {"gpuscaler doctor prints the commands"}
    assert [(entry.check, entry.count) for entry in result.counts] == [("D35", 500), ("D40", 500)]
    lines = list(doctor_lines(result))
    assert lines[:2] == ["WARNING D35 Node 0, Node 1, Node 2 and 497 more: field: saw this, expected that; it costs", "  fix: kubectl"]
    assert "481 more; gpuscaler doctor prints all" in lines
    assert summarize(result) == "0 critical, 1,000 warnings, 0 info, 7 silenced"


def test_the_events_of_the_status_name_unplaced_pods() -> None:
    stuck = unplaced_event((Reason("gpu", "resource", "too large"),), ("default/x",), NOW)
    limited = unplaced_event((Reason("gpu", "limit", "it is at its maximum"),), ("default/a", "default/b", "default/c"), NOW)
    shown = status_of(Latest(policy=POLICY), Process("me"), troubles=(), happened=(stuck, limited), now=NOW)

    assert stuck.text == "no machine of any pool fits it: pool gpu: too large"
    assert [entry.text for entry in shown.happened] == [
        "no machine of any pool fits default/x: pool gpu: too large",
        "no machine can be bought for default/a and 2 more now: pool gpu: it is at its maximum",
    ]


def test_the_status_marks_pods_that_no_machine_of_any_pool_can_hold() -> None:
    never = (Reason("gpu", "resource", "too large"), Reason("cpu", "taint", "a taint"))
    later = (Reason("gpu", "market", "paused"), Reason("cpu", "taint", "a taint"))
    shown = status(plan=Plan(unplaced=(Unplaced("default/x", never), Unplaced("default/y", later))))

    assert [(entry.pods, entry.reason) for entry in shown.waiting] == [
        (("default/x",), "no machine of any pool fits it: pool gpu: too large; pool cpu: a taint"),
        (("default/y",), "pool gpu: paused; pool cpu: a taint"),
    ]
