"""Explanations of pending pods, and of nodes that stay or are removed."""

from typing import Any

import pytest
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.records import Records
from gpuscaler.control.records.status.why import why_node, why_pod
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pods import Owner
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan as make_plan
from gpuscaler.planning.plans import BlockedNode, Ignored, Placement, Plan, Reason, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.planning.state.boot_times import Boots, BootTimes
from gpuscaler.planning.state.idle_clocks import IdleClocks
from gpuscaler.planning.state.ledger.entries import Eviction
from gpuscaler.planning.state.ledger.ledger import DRAINING, OPEN, Ledger, OrderedMachine, Promise, Removal

G1 = offering("g.1", 1.0, gpus=1, cpu=4)
POLICY = Policy((pool(G1),))
#: Machines of that kind were always ready after a minute.
SEEN = Boots((BootTimes(G1.pool, "g.1", (50.0, 50.0), (10.0, 10.0)),))
WAITS = pod("a", spec(gpus=1))


def latest(*items: Item, ledger: Ledger | None = None, plan: Plan | None = None, idle: float | None = None) -> Latest:
    clocks = IdleClocks({"n1": NOW - idle}) if idle is not None else IdleClocks()
    memory = Memory(ledger=ledger or Ledger(), boots=SEEN, clocks=clocks)
    return Latest(Cluster.of(items), memory, plan or Plan(), POLICY, NOW, NOW)


def machine(**fields: object) -> OrderedMachine:
    made = {"id": "m", "order": "t", "offerings": (G1.key,), "price": 1.0, "asked": NOW - 30, "pods": (WAITS.key,)}
    return OrderedMachine(**{**made, **fields})  # type: ignore[arg-type]  # a few fields of many


def pod_lines(latest: Latest, key: str = WAITS.key) -> tuple[str, ...]:
    return why_pod(latest, key, [], NOW).now


def node_lines(latest: Latest, name: str = "n1") -> tuple[str, ...]:
    return why_node(latest, name, [], NOW).now


def test_why_shows_the_order_and_the_forecast_for_a_pod_with_an_ordered_machine() -> None:
    (line,) = pod_lines(latest(WAITS, ledger=Ledger(coming=(machine(),))))

    assert line == f"g.1 {G1.market} in {G1.zone} was ordered 30s ago; once granted, it should be ready in about 1m; $1.00/h"


def test_why_shows_the_clouds_text_about_a_machine_that_failed_before_it_was_a_node() -> None:
    state = latest(WAITS, ledger=Ledger(coming=(machine(instance="i-1", offering=G1.key, granted=NOW - 90, faulted=NOW - 30),)))
    state.faults = {"m": "vmssCSE: exit status=50"}
    where = f"g.1 {G1.market} in {G1.zone}"
    words = "was granted, and the cloud reports a fault of it; unless it becomes a node, it is given up in 1m30s: vmssCSE: exit status=50"

    assert pod_lines(state) == (f"{where} {words}; $1.00/h",)
    assert node_lines(state, "i-1") == (f"{where} {words}; $1.00/h, bought for 1 pod",)


def test_why_shows_the_clouds_text_about_the_machine_of_a_node_that_works() -> None:
    state = latest(node("n1", G1, provider_id="i-1"))
    state.inventory = lambda: Inventory(NOW, (Instance("i-0", *G1.key), Instance("i-1", *G1.key, fault="monitoring: exit status=1")))

    assert "the cloud reports a fault of its machine: monitoring: exit status=1" in node_lines(state)


def test_why_shows_the_reason_that_a_ready_machine_is_still_closed() -> None:
    shut = node("n1", G1, taints=(Taint("gpuscaler.io/arriving"),))
    ready = machine(instance="i-1", offering=G1.key, granted=NOW - 90, node="n1", registered=NOW - 30, ready=NOW - 1)
    sent = Ledger(coming=(ready,), promises=(Promise("n1", G1.key, (WAITS.key,), NOW - 1, nominated=NOW - 1, sent=(WAITS.key,)),))
    why = "is ready as node n1 and is still closed: the binding of pod default/a was sent but is not visible yet"

    assert any(why in line for line in node_lines(latest(WAITS, shut, ledger=sent)))
    assert any(why in line for line in pod_lines(latest(WAITS, shut, ledger=sent)))
    promised = Ledger(promises=sent.promises)
    assert any("the binding of pod default/a was sent" in line for line in node_lines(latest(WAITS, shut, ledger=promised)))


def test_why_shows_when_the_booting_machine_of_a_pod_should_be_ready() -> None:
    granted = machine(instance="i-1", offering=G1.key, granted=NOW - 20)
    late = machine(instance="i-1", offering=G1.key, granted=NOW - 90, node="n9", registered=NOW - 10)

    assert "was granted; it should be ready in about 40s" in pod_lines(latest(WAITS, ledger=Ledger(coming=(granted,))))[0]
    assert "is node n9, not ready yet; it should have been ready 30s ago" in pod_lines(latest(WAITS, ledger=Ledger(coming=(late,))))[0]


def test_why_shows_the_reason_that_a_registered_machine_is_not_ready() -> None:
    late = machine(instance="i-1", offering=G1.key, granted=NOW - 90, node="n1", registered=NOW - 10)
    current = latest(WAITS, node("n1", G1), ledger=Ledger(coming=(late,)))
    current.lacks = {late.id: "it is not protected from scale-in"}

    assert "is node n1, not ready yet: it is not protected from scale-in; it should" in pod_lines(current)[0]
    assert any("not ready yet: it is not protected from scale-in" in line for line in node_lines(current))


def test_why_shows_the_node_of_a_promised_pod() -> None:
    promised = Ledger(promises=(Promise("n1", G1.key, (WAITS.key,), NOW, OPEN),))

    assert pod_lines(latest(WAITS, ledger=promised)) == (
        "node n1 is promised to it and is open, waiting for kube-scheduler to bind the pod",
    )


def test_why_does_not_call_a_promised_pod_ignored() -> None:
    promised = Ledger(promises=(Promise("n1", G1.key, (WAITS.key,), NOW, OPEN),))
    ignored = Plan(ignored=(Ignored(WAITS.key, "nominated to node n1"),))

    assert pod_lines(latest(WAITS, ledger=promised, plan=ignored)) == (
        "node n1 is promised to it and is open, waiting for kube-scheduler to bind the pod",
    )


def test_why_shows_the_reason_of_each_pool_for_an_unplaced_pod() -> None:
    reasons = (Reason("gpu", "limit", "the limit on machines is reached"), Reason("cpu", "resource", "no GPU"))

    assert pod_lines(latest(WAITS, plan=Plan(unplaced=(Unplaced(WAITS.key, reasons),)))) == (
        "no machine can be bought for it now:",
        "  pool gpu: limit: the limit on machines is reached",
        "  pool cpu: resource: no GPU",
    )


def test_why_does_not_say_now_of_a_pod_that_no_machine_of_any_pool_can_hold() -> None:
    reasons = (Reason("gpu", "taint", "g.1: it has a taint"), Reason("cpu", "resource", "no GPU"))

    assert pod_lines(latest(WAITS, plan=Plan(unplaced=(Unplaced(WAITS.key, reasons),)))) == (
        "no machine of any pool fits it:",
        "  pool gpu: taint: g.1: it has a taint",
        "  pool cpu: resource: no GPU",
    )


@pytest.mark.parametrize("excluded_by", ["market", "price", "limit", "budget", "gang", "topology", "volume", "port"])
def test_why_says_now_if_the_reason_of_one_pool_may_pass(excluded_by: str) -> None:
    reasons = (Reason("gpu", excluded_by, "it"), Reason("cpu", "resource", "no GPU"))

    assert pod_lines(latest(WAITS, plan=Plan(unplaced=(Unplaced(WAITS.key, reasons),))))[0] == "no machine can be bought for it now:"
    assert pod_lines(latest(WAITS, plan=Plan(unplaced=(Unplaced(WAITS.key),))))[0] == "no machine can be bought for it now:"


def test_why_says_that_a_pod_is_ignored_or_fits_on_a_node() -> None:
    ignored = Plan(ignored=(Ignored(WAITS.key, "it has scheduling gates"),))
    fits = Plan(placements=(Placement(WAITS.key, "n1"),))

    assert pod_lines(latest(WAITS, plan=ignored)) == ("it is ignored: it has scheduling gates",)
    assert pod_lines(latest(WAITS, plan=fits)) == ("it fits on node n1; kube-scheduler will bind it",)


def test_why_shows_the_node_of_a_running_pod_and_whether_the_node_is_being_removed() -> None:
    runs = pod("a", spec(gpus=1), on="n1")
    leaving = Ledger(leaving=(Removal("n1", "i-1", G1.key, "idle for 10m", NOW - 5, NOW),))

    assert pod_lines(latest(runs)) == ("it is on node n1",)
    assert pod_lines(latest(runs, ledger=leaving)) == ("it is on node n1, which is leaving: idle for 10m",)


@pytest.mark.parametrize(
    ("eviction", "more", "line"),
    [
        (
            {"signalled": NOW - 20.0},
            {"options": {"grace": 300.0}},
            "it was asked 20s ago to save its work, and has 4m40s left (gpuscaler.io/grace)",
        ),
        (
            {"tries": 2, "again": NOW + 7.0, "why": "budget web needs 1"},
            {},
            "its eviction failed 2 times: budget web needs 1; tried again in 7s",
        ),
        ({"tries": 1}, {"deleted": NOW + 25.0}, "it is terminating; its grace period ends in 25s"),
        ({"tries": 1}, {"deleted": NOW - 5.0}, "it is terminating and is overdue"),
    ],
)
def test_why_shows_the_progress_of_the_eviction_of_a_pod(eviction: dict[str, Any], more: dict[str, Any], line: str) -> None:
    evictions = (Eviction("default/a", "u-a", **eviction), Eviction("default/b", "u-b", why="another program's"))
    leaving = Removal("n1", "i-1", G1.key, "idle for 10m", NOW - 50, NOW - 30, step=DRAINING, evictions=evictions)

    lines = pod_lines(latest(pod("a", spec(gpus=1), on="n1", uid="u-a", **more), ledger=Ledger(leaving=(leaving,))))
    assert lines == ("it is on node n1, which is leaving: idle for 10m", line)


def test_why_knows_a_deleted_pod_only_by_its_events() -> None:
    happened = [HistoryEvent(NOW - 60, kinds.ORDERED, "g.1 ordered", pods=("x/y",), decision="d-7")]

    assert not why_pod(latest(), "x/y", [], NOW).known
    remembered = why_pod(latest(), "x/y", happened, NOW)
    assert remembered.known
    assert remembered.now == ("there is no such pod now",)
    assert [(entry.about, entry.text, entry.at, entry.decision) for entry in remembered.happened] == [
        ("ordered", "g.1 ordered", NOW - 60, "d-7")
    ]


def test_why_shows_the_blocker_and_the_pods_of_a_node_that_stays() -> None:
    plan = Plan(blocked_nodes=(BlockedNode("n1", "restart-cost", "pod default/a would lose its work"),))

    assert node_lines(latest(node("n1", G1), pod("a", spec(gpus=1), on="n1"), plan=plan)) == (
        f"it is g.1 {G1.market} in {G1.zone} at $1.00/h of pool {G1.pool}",
        "it stays: restart-cost: pod default/a would lose its work",
        "1 pod runs there: default/a",
    )


def test_why_shows_the_blocker_of_a_busy_node_from_the_last_consolidation() -> None:
    cluster = Cluster.of([node("n1", G1), pod("a", spec(gpus=1), on="n1", ready=True, options={"disruption": "allow"})])
    records = Records()
    stays: list[str] = []
    for at, asks in ((0.0, False), (10.0, True), (50.0, False)):
        state = State(consolidating=asks)
        records.planned(make_plan(cluster, state, POLICY, NOW + at), cluster, state, POLICY, NOW + at)
        stays += [line for line in why_node(records.latest, "n1", [], NOW + at).now if line.startswith("it stays")]

    found = "it stays: in-use: pod default/a fits on no other node: there is no other open node"
    assert stays == [
        "it stays: in-use: pods run on it; the check whether they fit elsewhere runs about once a minute, and is still to come",
        found,
        f"{found} (found 40s ago)",
    ]


def test_why_shows_how_long_a_node_with_only_daemon_set_pods_has_been_idle() -> None:
    daemon = pod("log", spec(cpu=1), on="n1", owner=Owner("DaemonSet", "log", "u"))

    assert node_lines(latest(node("n1", G1), daemon, idle=125.0))[1:] == (
        "idle for 2m05s: only DaemonSet, static and expendable pods run on it",
    )


def test_why_shows_the_reason_and_the_step_of_a_removal() -> None:
    leaving = Removal("n1", "i-1", G1.key, "idle for 10m", NOW - 70, NOW, DRAINING, detail="a budget allows none")

    assert node_lines(latest(node("n1", G1), ledger=Ledger(leaving=(leaving,))))[:2] == (
        "its removal began 1m10s ago: idle for 10m",
        "its pods are being evicted: a budget allows none",
    )


def test_why_says_that_a_node_outside_of_pools_is_never_removed() -> None:
    foreign = node("other", G1, labels={"gpuscaler.io/pool": "someone-elses"})

    assert node_lines(latest(foreign), "other") == ("it belongs to no pool of the settings: it is never removed",)


def test_why_shows_no_price_for_a_node_whose_machine_the_cloud_does_not_list() -> None:
    latest_state = latest(node("other", G1, provider_id="aws:///z1/i-9"))
    latest_state.unlisted, latest_state.inventory = frozenset({"other"}), lambda: Inventory(NOW)

    assert node_lines(latest_state, "other") == ("it belongs to no pool: the cloud does not list aws:///z1/i-9; it is never removed",)


def test_why_says_that_nothing_is_known_of_a_node_before_the_cloud_lists_its_machines() -> None:
    latest_state = latest(node("other", G1, provider_id="aws:///z1/i-9"))
    latest_state.unlisted = frozenset({"other"})

    assert node_lines(latest_state, "other") == (
        "it belongs to no pool as far as is known: the cloud has not listed aws:///z1/i-9 or any other machine yet; it is left alone",
    )


def test_why_explains_an_unregistered_machine_by_its_id() -> None:
    granted = Ledger(coming=(machine(instance="i-1", offering=G1.key, granted=NOW - 20),))

    answer = why_node(latest(ledger=granted), "i-1", [], NOW)

    assert answer.known
    assert answer.now[0].endswith("was granted; it should be ready in about 40s; $1.00/h, bought for 1 pod")


def test_why_reports_a_node_that_never_existed_as_unknown() -> None:
    answer = why_node(latest(), "unknown", [], NOW)

    assert (answer.known, answer.now) == (False, ("there is no such node now",))
