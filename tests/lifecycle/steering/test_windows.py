"""Which machines open for a moment for DaemonSet pods, when they are closed again, and what is reported."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import GPU, NOW, daemon, node, offering, pod, pool, room, spec
from tests.shipped import SHIPPED, Shipped

from gpuscaler.lifecycle.actions import Close, OpenWindow
from gpuscaler.lifecycle.steering.windows import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    OPEN_SECONDS,
    REPEAT_SECONDS,
    Attempt,
    Window,
    WindowFindings,
    as_closed,
    describe_window,
    next_check,
    observe,
    recalled,
    reports,
)
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodSpec
from gpuscaler.model.pools import BIND, OFF, Policy
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.taints import WINDOW_EFFECT, Taint, Toleration
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT, UNSCHEDULABLE
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.state.ledger.entries import Removal
from gpuscaler.planning.state.ledger.ledger import OPEN, Ledger, OrderedMachine, Promise

KIND = offering("g.4", gpus=4)
POLICY = Policy((pool(KIND),), steering=BIND)
CLOSED = (Taint(ARRIVING_TAINT),)
#: Tolerations and requests of NVIDIA's device plugin as shipped.
AS_SHIPPED = spec(requests={}, tolerations=(Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),))
PLUGIN = daemon("plugin", AS_SHIPPED)
TOLERANT = daemon("proxy", spec(requests={}, tolerations=(Toleration("", "Exists"),)))


def machine(**more: Any) -> OrderedMachine:
    fields: dict[str, Any] = {"offering": KIND.key, "instance": "i-a", "granted": 2.0, "node": "a", "registered": NOW - 5.0}
    return OrderedMachine("o-a", "o", (KIND.key,), 1.0, 1.0, pods=("default/p",), **(fields | more))


def arriving(*, gpus: int = 0, taints: tuple[Taint, ...] = CLOSED, **more: Any) -> Node:
    return node("a", KIND, **{"provider_id": "i-a", "uid": "u-a", "taints": taints, "allocatable": room(gpus=gpus), **more})


def daemon_pod(plugin: str = "plugin", *, on: str = "", name: str = "", like: PodSpec = AS_SHIPPED, **more: Any) -> Pod:
    """A pod that the DaemonSet controller has created for node a."""
    field = NodeSelector((NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("a",)),)),))
    tied = replace(like, digest=f"{like.digest} {plugin} on a", node_affinity=field)
    return pod(name or f"{plugin}-x", tied, on=on, uid=f"uid-{plugin}", owner=Owner("DaemonSet", plugin, "u"), **more)


def in_window(**more: Any) -> Node:
    """Node a while its window is open, as seen by all but the controllers of Kubernetes."""
    return arriving(in_window=True, **more)


def observed(
    before: Window | None = None, *items: Item, policy: Policy = POLICY, ledger: Ledger | None = None, now: float = NOW, **more: Any
) -> WindowFindings:
    windows = {"a": before} if before is not None else {}
    return observe(windows, ledger or Ledger(coming=(machine(),)), Cluster.of(items), policy, now=now, **{"unlisted": frozenset(), **more})


def opened(**more: Any) -> Window:
    return Window("u-a", **{"opened": NOW - 2.0, "seen": NOW - 1.0, **more})


def kinds(windows: WindowFindings) -> list[type]:
    return [type(act) for act in windows.acts]


def test_a_window_opens_for_a_daemonset_that_does_not_tolerate_the_arriving_taint() -> None:
    windows = observed(None, arriving(), PLUGIN, TOLERANT)

    assert windows.acts == (OpenWindow("a", "until it has pods of DaemonSet default/plugin"),)
    assert windows.windows == {"a": Window("u-a", opened=NOW)}


@pytest.mark.parametrize(
    "items",
    [
        (arriving(), TOLERANT),
        (arriving(), daemon("other", spec(requests={}, node_selector=(("no", "such"),)))),
        (arriving(taints=(*CLOSED, Taint("team", "a"))), PLUGIN),
        (arriving(), PLUGIN, daemon_pod(on="a")),
        (arriving(unschedulable=True), PLUGIN),
    ],
)
def test_a_window_opens_only_for_missing_daemonset_pods_that_do_not_tolerate_the_taint(items: tuple[Item, ...]) -> None:
    """No window opens if all DaemonSets tolerate the taint, would not run there, or run already, or if a person has cordoned the node."""
    windows = observed(None, *items)

    assert windows == WindowFindings({})


def test_a_window_opens_for_a_lost_device_plugin_of_a_ready_machine_that_awaits_its_gang() -> None:
    ready = Ledger(coming=(machine(ready=NOW - 1.0),))
    promised = Ledger(promises=(Promise("a", KIND.key, ("default/p",), NOW - 1.0),))

    for ledger in (ready, promised):
        assert kinds(observed(None, arriving(), PLUGIN, ledger=ledger)) == [OpenWindow]
        assert observed(None, arriving(gpus=4), PLUGIN, daemon_pod(on="a"), ledger=ledger) == WindowFindings({})


def test_leaving_and_opening_machines_get_no_window() -> None:
    leaving = Ledger(coming=(machine(),), leaving=(Removal("a", "i-a", KIND.key, "", NOW, NOW),))
    lifted = Ledger(promises=(Promise("a", KIND.key, ("default/p",), NOW - 1.0, taint_removed_at=NOW),))
    opened_ = Ledger(promises=(Promise("a", KIND.key, ("default/p",), NOW - 1.0, OPEN),))

    for ledger in (leaving, lifted, opened_):
        assert observed(None, arriving(), PLUGIN, ledger=ledger) == WindowFindings({})


def test_a_window_is_closed_when_the_pod_is_bound() -> None:
    for items in ((), (daemon_pod(),)):
        still = observed(opened(), in_window(), PLUGIN, *items)
        assert (still.acts, still.windows["a"]) == ((), opened())

    windows = observed(opened(), in_window(), PLUGIN, daemon_pod(on="a"))
    assert kinds(windows) == [Close]
    assert windows.windows["a"] == opened(closed=NOW)
    assert windows.remarks == ()


def test_a_window_for_a_daemonset_opens_only_after_its_terminating_pod_is_gone() -> None:
    assert observed(None, arriving(), PLUGIN, daemon_pod(on="a", deleted=NOW - 1.0)) == WindowFindings({})


def test_a_window_is_forgotten_once_the_node_shows_the_taint_again() -> None:
    windows = observed(opened(closed=NOW - 1.0), arriving(), PLUGIN, daemon_pod(on="a"))

    assert windows == WindowFindings({})


def test_closing_a_window_is_repeated_if_the_node_does_not_show_the_taint() -> None:
    fresh = observed(opened(closed=NOW - 1.0), in_window(), PLUGIN, daemon_pod(on="a"))
    late = observed(opened(closed=NOW - REPEAT_SECONDS), in_window(), PLUGIN, daemon_pod(on="a"))

    assert (fresh.acts, kinds(late)) == ((), [Close])


@pytest.mark.parametrize(
    ("items", "why"),
    [((), "the DaemonSet controller created none"), ((daemon_pod(),), "kube-scheduler has not bound pod default/plugin-x")],
)
def test_a_window_closes_after_ten_seconds_and_the_daemonset_is_retried_later(items: tuple[Item, ...], why: str) -> None:
    over = opened(seen=NOW - OPEN_SECONDS)
    windows = observed(over, in_window(), PLUGIN, *items)

    assert kinds(windows) == [Close]
    (failed,) = windows.windows["a"].failed
    assert (failed.daemon, failed.times, failed.again) == ("default/plugin", 1, NOW + FIRST_PAUSE)
    (remark,) = windows.remarks
    assert remark.text == f"DaemonSet default/plugin has no pod on node a, which was cordoned for it: {why}; tried again in 1 min"
    (message,) = reports(windows.windows)
    assert message.startswith("DaemonSet default/plugin has no pod on node a, where it should run before the machine opens: ")

    closed = observed(windows.windows["a"], arriving(), PLUGIN, *items)
    assert (closed.acts, closed.windows["a"]) == ((), Window("u-a", failed=(failed,)))
    assert kinds(observed(closed.windows["a"], arriving(), PLUGIN, *items, now=NOW + FIRST_PAUSE)) == [OpenWindow]


def test_pauses_between_windows_double_up_to_ten_minutes_and_are_reported_once() -> None:
    window, times = opened(seen=NOW - OPEN_SECONDS), []
    for _ in range(6):
        windows = observed(replace(opened(seen=NOW - OPEN_SECONDS), failed=window.failed), in_window(), PLUGIN)
        assert len(windows.remarks) == (not window.failed)
        window = replace(windows.windows["a"], failed=tuple(replace(attempt, again=NOW) for attempt in windows.windows["a"].failed))
        times.append(windows.windows["a"].failed[0].again - NOW)

    assert times == [60.0, 120.0, 240.0, 480.0, LONGEST_PAUSE, LONGEST_PAUSE]
    for_weeks = opened(seen=NOW - OPEN_SECONDS, failed=(Attempt("default/plugin", 5000, NOW, "it failed"),))
    assert observed(for_weeks, in_window(), PLUGIN).windows["a"].failed[0].again == NOW + LONGEST_PAUSE


def test_a_daemonset_that_is_retried_later_does_not_delay_others() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 30.0, "it failed"),)
    other = daemon("other", spec(requests={}))

    windows = observed(Window("u-a", failed=failed), arriving(), PLUGIN, other)
    assert windows.acts == (OpenWindow("a", "until it has pods of DaemonSet default/other"),)
    assert kinds(observed(opened(failed=failed), in_window(), PLUGIN, other, daemon_pod("other", on="a"))) == [Close]


def test_a_node_that_registers_untainted_is_tainted_once_its_daemonset_pods_are_bound() -> None:
    bare = arriving(taints=())
    first = observed(None, bare, PLUGIN)
    assert (kinds(first), first.windows["a"]) == ([OpenWindow], Window("u-a", opened=NOW))
    assert observed(first.windows["a"], bare, PLUGIN, now=NOW + 1.0).acts == (), "it is on its way"
    assert kinds(observed(first.windows["a"], in_window(), PLUGIN, daemon_pod(on="a"), now=NOW + 1.0)) == [Close]
    for items in ((bare, TOLERANT), (bare, PLUGIN, daemon_pod(on="a"))):
        assert kinds(observed(None, *items)) == [Close]
    assert observed(None, bare, PLUGIN, policy=replace(POLICY, steering=OFF)) == WindowFindings({})


def test_a_node_whose_window_is_open_counts_as_closed() -> None:
    soft = (Taint(ARRIVING_TAINT, effect=WINDOW_EFFECT), Taint("team"), Taint(UNSCHEDULABLE))
    cluster = as_closed(Cluster.of([arriving(taints=soft, unschedulable=True)]))
    node = cluster.nodes["a"]

    assert (node.in_window, node.unschedulable, node.taints) == (True, False, (Taint(ARRIVING_TAINT), Taint("team")))
    assert as_closed(cluster) is cluster


@pytest.mark.parametrize(
    "person",
    [
        arriving(unschedulable=True, taints=(*CLOSED, Taint(UNSCHEDULABLE))),
        arriving(unschedulable=True, taints=(Taint(UNSCHEDULABLE),)),
        arriving(taints=(Taint(ARRIVING_TAINT, effect=WINDOW_EFFECT),)),
    ],
)
def test_a_persons_cordon_or_uncordon_is_respected(person: Node) -> None:
    cluster = Cluster.of([person])

    assert as_closed(cluster) is cluster


@pytest.mark.parametrize("others", [CLOSED, (), (Taint("team"),)], ids=["closed", "open", "a taint of others"])
def test_the_taint_left_by_a_cordon_is_ignored(others: tuple[Taint, ...]) -> None:
    """A busy node controller removes it seconds after the machine has opened."""
    left = as_closed(Cluster.of([arriving(taints=(*others, Taint(UNSCHEDULABLE)))])).nodes["a"]

    assert (left.taints, left.in_window) == (others, False)


def test_opening_a_window_is_repeated_unreported_if_the_node_does_not_show_the_change() -> None:
    window = Window("u-a", opened=NOW - REPEAT_SECONDS)
    windows = observed(window, arriving(), PLUGIN)

    assert (kinds(windows), windows.remarks, list(reports(windows.windows))) == ([OpenWindow], (), [])
    assert windows.windows["a"] == Window("u-a", opened=NOW)
    assert observed(replace(window, opened=NOW - 1.0), arriving(), PLUGIN).acts == ()
    shown = observed(window, arriving(gpus=4), PLUGIN, daemon_pod(on="a"))
    assert shown == WindowFindings({}), "the pod that it was to open for is there"


def test_setting_back_the_clock_does_not_keep_a_window_open() -> None:
    ahead = opened(opened=NOW + 3600.0, seen=NOW + 3600.0)
    windows = observed(ahead, in_window(), PLUGIN)

    assert windows.windows["a"].seen == NOW
    assert kinds(observed(windows.windows["a"], in_window(), PLUGIN, now=NOW + OPEN_SECONDS)) == [Close]


def test_a_new_node_with_the_same_name_does_not_inherit_a_window() -> None:
    failed = (Attempt("default/plugin", 3, NOW + 500.0, "it failed"),)

    assert kinds(observed(Window("u-b", failed=failed), arriving(), PLUGIN)) == [OpenWindow]


def test_the_next_turn_is_soon_while_a_window_is_open_or_else_at_the_next_retry() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 30.0, "it failed"),)

    assert next_check({}, NOW) is None
    assert next_check({"a": Window("u-a", failed=failed)}, NOW) == NOW + 30.0
    soon = next_check({"a": opened(), "b": Window("u-b", failed=failed)}, NOW)
    assert soon is not None
    assert soon < NOW + 1.0


def test_after_a_restart_unconfirmed_window_writes_are_repeated_at_once() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 9000.0, "it failed"),)
    ahead = recalled({"a": opened(opened=NOW + 900.0, closed=NOW, failed=failed)}, NOW)["a"]
    assert (ahead.opened, ahead.seen, ahead.failed[0].again) == (NOW, NOW - 1.0, NOW + LONGEST_PAUSE)
    assert kinds(observed(ahead, in_window(), PLUGIN, daemon_pod(on="a"))) == [Close]

    opening = recalled({"a": Window("u-a", opened=NOW)}, NOW)["a"]
    assert kinds(observed(opening, arriving(), PLUGIN)) == [OpenWindow]


@pytest.mark.parametrize("shipped", SHIPPED, ids=[shipped.name for shipped in SHIPPED])
def test_a_window_opens_for_common_daemonsets_without_a_general_toleration(shipped: Shipped) -> None:
    decoded = decode_object(shipped.manifest(), Interner())
    assert isinstance(decoded, Workload)
    labels = {
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "g5.48xlarge",
    }
    labels |= {"feature.node.kubernetes.io/pci-10de.present": "true", "cloud.google.com/gke-accelerator": "nvidia-l4"}
    labels |= {f"nvidia.com/gpu.deploy.{part}": "true" for part in ("device-plugin", "mig-manager")}

    assert kinds(observed(None, arriving(labels=labels), decoded)) == ([OpenWindow] if shipped.waits else [])
    if shipped.selector or shipped.terms:
        assert kinds(observed(None, arriving(labels={"kubernetes.io/os": "plan9"}), decoded)) == []


KEEPING = Policy((pool(KIND, min_gpus_per_pod=4),), steering=BIND)
KEPT = (Taint(KEPT_TAINT),)


def kept(before: Window | None = None, *items: Item, ledger: Ledger | None = None, now: float = NOW, **more: Any) -> WindowFindings:
    return observed(before, *items, policy=KEEPING, ledger=ledger or Ledger(), now=now, **more)


def test_a_window_of_a_kept_machine_opens_for_a_new_updated_or_restarted_daemonset() -> None:
    machine_ = arriving(gpus=4, taints=KEPT)

    assert kinds(kept(None, machine_, PLUGIN, daemon_pod(on="a"))) == []
    assert kinds(kept(None, machine_, PLUGIN)) == [OpenWindow]
    assert kinds(kept(None, machine_, PLUGIN, daemon_pod())) == [OpenWindow]
    assert kinds(kept(None, machine_, TOLERANT)) == []


def test_closing_the_window_of_a_kept_machine_restores_the_kept_taint() -> None:
    windows = kept(opened(), in_window(gpus=4, taints=KEPT), PLUGIN, daemon_pod(on="a"))

    assert windows.acts == (Close("a", "it is kept for large pods", kept=True),)
    assert kinds(kept(opened(seen=NOW - OPEN_SECONDS), in_window(gpus=4, taints=KEPT), PLUGIN)) == [Close]
    assert kept(windows.windows["a"], arriving(gpus=4, taints=KEPT), PLUGIN, daemon_pod(on="a")) == WindowFindings({})


def test_no_window_opens_on_a_kept_machine_of_others_and_an_open_one_is_closed() -> None:
    """Before the cloud has listed its machines after a restart, nothing else shows that a machine with a window is ours."""
    unlisted = frozenset({"a"})

    assert kept(None, arriving(gpus=4, taints=KEPT), PLUGIN, unlisted=unlisted) == WindowFindings({})
    assert kinds(kept(opened(), in_window(gpus=4, taints=KEPT), PLUGIN, daemon_pod(on="a"), unlisted=unlisted)) == [Close]


def test_a_window_of_a_kept_machine_opens_for_daemonsets_that_tolerate_only_the_arriving_taint() -> None:
    half = daemon("plugin", spec(requests={}, tolerations=(Toleration(ARRIVING_TAINT, "Exists"),)))

    assert kinds(observed(None, arriving(), half)) == []
    assert kinds(kept(None, arriving(gpus=4, taints=KEPT), half)) == [OpenWindow]


def test_no_window_opens_on_a_kept_machine_that_is_leaving_or_untainted() -> None:
    leaving = Ledger(leaving=(Removal("a", "i-a", KIND.key, "", NOW, NOW),))

    assert kept(None, arriving(gpus=4, taints=KEPT), PLUGIN, ledger=leaving) == WindowFindings({})
    assert kept(None, arriving(gpus=4, taints=()), PLUGIN) == WindowFindings({})
    assert observed(None, arriving(gpus=4, taints=KEPT), PLUGIN, ledger=Ledger()) == WindowFindings({}), "its pool keeps none"


def test_the_status_explains_a_window_and_the_missing_daemonsets() -> None:
    failed = (Attempt("default/plugin", 2, NOW + 110.0, "the DaemonSet controller created none"),)
    lacking = "it has no pod of DaemonSet default/plugin, which was tried 2 times: the DaemonSet controller created none; it is tried again"

    assert list(describe_window(Window("u-a", failed=failed), NOW)) == [f"{lacking} in 2 min"]
    opens, soon = describe_window(opened(failed=failed), NOW + 100.0)
    assert opens.startswith("it is cordoned by gpuscaler for a few seconds, so that DaemonSets that do not tolerate its taint")
    assert soon == f"{lacking} soon"

    (once,) = describe_window(Window("u-a", failed=(Attempt("default/plugin", 1, NOW, "the DaemonSet controller created none"),)), NOW)
    assert "which was tried once: the DaemonSet" in once


def test_without_arriving_machines_no_window_opens() -> None:
    assert observed(None, arriving(), PLUGIN, ledger=Ledger()) == WindowFindings({})
    assert GPU in KIND.allocatable
