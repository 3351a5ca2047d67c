"""Which machines open for a moment for pods of DaemonSets, when they are closed again, and what is reported."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import GPU, NOW, daemon, node, offering, pod, pool, room, spec
from tests.shipped import SHIPPED, Shipped

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodSpec
from gpuscaler.model.pools import BIND, NOMINATE, OFF, Policy
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.acts import Bind, Close, Lift
from gpuscaler.planning.keeping import ARRIVING_TAINT, KEPT_TAINT
from gpuscaler.planning.state.entries import Leaving
from gpuscaler.planning.state.ledger import Coming, Ledger, Promise
from gpuscaler.planning.windows import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    OPEN_SECONDS,
    REPEAT_SECONDS,
    STUCK_SECONDS,
    Attempt,
    Window,
    Windows,
    ajar,
    explained,
    next_look,
    observe,
    recalled,
    reports,
)

KIND = offering("g.4", gpus=4)
POLICY = Policy((pool(KIND),), steering=BIND)
CLOSED = (Taint(ARRIVING_TAINT),)
#: What NVIDIA's device plugin tolerates as it is shipped, and asks for.
AS_SHIPPED = spec(requests={}, tolerations=(Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),))
PLUGIN = daemon("plugin", AS_SHIPPED)
TOLERANT = daemon("proxy", spec(requests={}, tolerations=(Toleration("", "Exists"),)))


def machine(**more: Any) -> Coming:
    fields: dict[str, Any] = {"offering": KIND.key, "instance": "i-a", "granted": 2.0, "node": "a", "registered": NOW - 5.0}
    return Coming("o-a", "o", (KIND.key,), 1.0, 1.0, pods=("default/p",), **(fields | more))


def arriving(*, gpus: int = 0, taints: tuple[Taint, ...] = CLOSED, **more: Any) -> Node:
    return node("a", KIND, **{"provider_id": "i-a", "uid": "u-a", "taints": taints, "allocatable": room(gpus=gpus), **more})


def of(plugin: str = "plugin", *, on: str = "", name: str = "", like: PodSpec = AS_SHIPPED, **more: Any) -> Pod:
    """A pod that the DaemonSet controller has made for node a."""
    field = NodeSelector((NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("a",)),)),))
    tied = replace(like, digest=f"{like.digest} {plugin} on a", node_affinity=field)
    return pod(name or f"{plugin}-x", tied, on=on, uid=f"uid-{plugin}", owner=Owner("DaemonSet", plugin, "u"), **more)


def look(
    before: Window | None = None, *items: Item, policy: Policy = POLICY, book: Ledger | None = None, now: float = NOW, **more: Any
) -> Windows:
    known = {"a": before} if before is not None else {}
    return observe(known, book or Ledger(coming=(machine(),)), Cluster.of(items), policy, now=now, **more)


def opened(**more: Any) -> Window:
    return Window("u-a", **{"opened": NOW - 2.0, "seen": NOW - 1.0, **more})


def kinds(found: Windows) -> list[type]:
    return [type(act) for act in found.acts]


def test_a_machine_opens_for_a_daemon_set_that_does_not_tolerate_its_taint() -> None:
    found = look(None, arriving(), PLUGIN, TOLERANT)

    assert found.acts == (Lift("a", "for seconds, until it has pods of DaemonSet default/plugin"),)
    assert found.windows == {"a": Window("u-a", opened=NOW)}


@pytest.mark.parametrize(
    "items",
    [
        (arriving(), TOLERANT),
        (arriving(), daemon("other", spec(requests={}, node_selector=(("no", "such"),)))),
        (arriving(taints=(*CLOSED, Taint("team", "a"))), PLUGIN),
        (arriving(), PLUGIN, of(on="a")),
        (arriving(gpus=4), PLUGIN),
        (arriving(gpus=1), PLUGIN),
        (arriving(allocatable={**room(), "nvidia.com/mig-1g.10gb": 7}), PLUGIN),
    ],
)
def test_a_machine_opens_for_nothing_else(items: tuple[Item, ...]) -> None:
    """Not where all tolerate it, or would not run there either way, or run already; and not once GPU pods could come."""
    found = look(None, *items)

    assert found == Windows({})


def test_machines_that_are_ready_or_leave_do_not_open() -> None:
    ready = Ledger(coming=(machine(ready=NOW - 1.0),))
    leaving = Ledger(coming=(machine(),), leaving=(Leaving("a", "i-a", KIND.key, "", NOW, NOW),))

    assert look(None, arriving(), PLUGIN, book=ready) == Windows({})
    assert look(None, arriving(), PLUGIN, book=leaving) == Windows({})


def test_it_is_closed_when_the_pod_is_there_and_the_pod_is_bound_by_us() -> None:
    still = look(opened(), arriving(taints=()), PLUGIN)
    assert (still.acts, still.windows["a"]) == ((), opened())

    found = look(opened(), arriving(taints=()), PLUGIN, of())
    assert kinds(found) == [Close, Bind]
    assert found.acts[1] == Bind("default/plugin-x", "uid-plugin", "a")
    assert found.windows["a"] == opened(closed=NOW, bound=NOW)
    assert found.remarks == ()

    bound = look(opened(), arriving(taints=()), PLUGIN, of(on="a"))
    assert kinds(bound) == [Close]


def test_once_it_is_seen_closed_nothing_is_left_to_remember() -> None:
    found = look(opened(closed=NOW - 1.0), arriving(), PLUGIN, of(on="a"))

    assert found == Windows({})


def test_a_close_that_does_not_show_is_sent_again() -> None:
    fresh = look(opened(closed=NOW - 1.0), arriving(taints=()), PLUGIN, of(on="a"))
    late = look(opened(closed=NOW - REPEAT_SECONDS), arriving(taints=()), PLUGIN, of(on="a"))

    assert (fresh.acts, kinds(late)) == ((), [Close])


def test_where_pods_are_not_bound_here_it_stays_open_until_the_scheduler_has() -> None:
    nominating = replace(POLICY, steering=NOMINATE)
    for found in (
        look(opened(), arriving(taints=()), PLUGIN, of(), policy=nominating),
        look(opened(), arriving(taints=()), PLUGIN, of(), unbinding=frozenset({"main"})),
    ):
        assert found.acts == ()
    assert kinds(look(opened(), arriving(taints=()), PLUGIN, of(on="a"), policy=nominating)) == [Close]


def test_after_ten_seconds_it_is_closed_and_the_daemon_set_is_named_and_tried_again_later() -> None:
    over = opened(seen=NOW - OPEN_SECONDS)
    found = look(over, arriving(taints=()), PLUGIN)

    assert kinds(found) == [Close]
    (failed,) = found.windows["a"].failed
    assert (failed.daemon, failed.times, failed.again) == ("default/plugin", 1, NOW + FIRST_PAUSE)
    (remark,) = found.remarks
    assert remark.text == (
        "DaemonSet default/plugin has no pod on node a, which opened for it: the DaemonSet controller made none; tried again in 1 min"
    )
    (said,) = reports(found.windows)
    assert said.startswith("DaemonSet default/plugin has no pod on node a, where it should run before the machine opens: ")

    closed = look(found.windows["a"], arriving(), PLUGIN)
    assert (closed.acts, closed.windows["a"]) == ((), Window("u-a", failed=(failed,)))
    assert kinds(look(closed.windows["a"], arriving(), PLUGIN, now=NOW + FIRST_PAUSE)) == [Lift]


def test_pauses_double_up_to_ten_minutes_and_what_was_said_is_not_said_again() -> None:
    window, times = opened(seen=NOW - OPEN_SECONDS), []
    for _ in range(6):
        found = look(replace(opened(seen=NOW - OPEN_SECONDS), failed=window.failed), arriving(taints=()), PLUGIN)
        assert len(found.remarks) == (not window.failed)
        window = replace(found.windows["a"], failed=tuple(replace(one, again=NOW) for one in found.windows["a"].failed))
        times.append(found.windows["a"].failed[0].again - NOW)

    assert times == [60.0, 120.0, 240.0, 480.0, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_daemon_set_that_is_tried_again_later_keeps_no_other_waiting() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 30.0, "it failed"),)
    other = daemon("other", spec(requests={}))

    found = look(Window("u-a", failed=failed), arriving(), PLUGIN, other)
    assert found.acts == (Lift("a", "for seconds, until it has pods of DaemonSet default/other"),)
    assert kinds(look(opened(failed=failed), arriving(taints=()), PLUGIN, other, of("other", on="a"))) == [Close]


def test_a_pod_for_which_there_is_no_room_is_not_bound_and_the_daemon_set_is_named() -> None:
    large = spec(cpu=100)
    big = daemon("plugin", large)
    over = opened(seen=NOW - OPEN_SECONDS)

    assert look(opened(), arriving(taints=()), big, of(like=large)).acts == ()
    found = look(over, arriving(taints=()), big, of(like=large))
    assert kinds(found) == [Close]
    assert "no room" in found.remarks[0].text


def test_of_two_pods_for_which_there_is_room_for_one_only_one_is_bound() -> None:
    half = spec(cpu=5)
    both = (daemon("plugin", half), daemon("other", half), of(like=half), of("other", like=half))

    assert kinds(look(opened(), arriving(), *both)) == [Bind, Lift]


def test_a_pod_that_was_made_while_the_node_had_no_taint_is_bound_also_later() -> None:
    found = look(None, arriving(), PLUGIN, of())
    assert kinds(found) == [Bind]
    assert look(found.windows["a"], arriving(), PLUGIN, of(), now=NOW + 1.0).acts == ()
    assert kinds(look(found.windows["a"], arriving(), PLUGIN, of(), now=NOW + REPEAT_SECONDS)) == [Bind]


def test_a_pod_that_only_says_that_a_daemon_set_owns_it_is_not_bound() -> None:
    assert look(None, arriving(), of()).acts == ()
    assert kinds(look(None, arriving(), PLUGIN, of(), of("none", like=AS_SHIPPED))) == [Bind]


def test_a_node_that_registers_without_the_taint_gets_it_once_its_daemon_sets_have_come() -> None:
    first = look(None, arriving(taints=()), PLUGIN)
    assert (first.acts, first.windows["a"]) == ((), Window("u-a", opened=NOW, seen=NOW))
    assert kinds(look(first.windows["a"], arriving(taints=()), PLUGIN, of(on="a"))) == [Close]
    assert kinds(look(None, arriving(taints=()), TOLERANT)) == [Close]
    assert look(None, arriving(taints=()), PLUGIN, policy=replace(POLICY, steering=OFF)) == Windows({})


def test_a_node_that_shows_gpus_is_closed_at_once() -> None:
    assert kinds(look(opened(), arriving(gpus=4, taints=()), PLUGIN)) == [Close]


def test_while_it_is_not_closed_again_it_is_not_ready() -> None:
    windows = {"a": opened()}
    shut, bare = Cluster.of([arriving()]), Cluster.of([arriving(taints=())])

    assert ajar(windows, bare, NOW) == {"a"}
    assert ajar(windows, shut, NOW) == frozenset()
    assert ajar({"a": opened(seen=0.0)}, shut, NOW) == {"a"}, "the taint is about to come off"
    assert ajar(windows, bare, NOW + STUCK_SECONDS) == frozenset()
    assert ajar({"a": Window("u-a")}, bare, NOW) == frozenset()


def test_a_taint_that_does_not_come_off_is_taken_off_again_and_no_daemon_set_is_named() -> None:
    window = Window("u-a", opened=NOW - REPEAT_SECONDS)
    found = look(window, arriving(), PLUGIN)

    assert (kinds(found), found.remarks, list(reports(found.windows))) == ([Lift], (), [])
    assert found.windows["a"] == Window("u-a", opened=NOW)
    assert look(replace(window, opened=NOW - 1.0), arriving(), PLUGIN).acts == ()
    shown = look(window, arriving(gpus=4), PLUGIN)
    assert shown == Windows({}), "what it was to come off for is there"


def test_another_node_of_the_name_begins_anew() -> None:
    failed = (Attempt("default/plugin", 3, NOW + 500.0, "it failed"),)

    assert kinds(look(Window("u-b", failed=failed), arriving(), PLUGIN)) == [Lift]


def test_the_next_look_is_soon_while_one_is_open_and_else_when_one_is_tried_again() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 30.0, "it failed"),)

    assert next_look({}, NOW) is None
    assert next_look({"a": Window("u-a", bound=NOW)}, NOW) is None
    assert next_look({"a": Window("u-a", failed=failed)}, NOW) == NOW + 30.0
    soon = next_look({"a": opened(), "b": Window("u-b", failed=failed)}, NOW)
    assert soon is not None
    assert soon < NOW + 1.0


def test_after_a_restart_what_was_under_way_is_done_again_at_once() -> None:
    failed = (Attempt("default/plugin", 1, NOW + 9000.0, "it failed"),)
    ahead = recalled({"a": opened(opened=NOW + 900.0, closed=NOW, bound=NOW, failed=failed)}, NOW)["a"]
    assert (ahead.opened, ahead.seen, ahead.failed[0].again) == (NOW, NOW - 1.0, NOW + LONGEST_PAUSE)
    assert kinds(look(ahead, arriving(taints=()), PLUGIN, of())) == [Close, Bind]

    opening = recalled({"a": Window("u-a", opened=NOW)}, NOW)["a"]
    assert kinds(look(opening, arriving(), PLUGIN)) == [Lift]


@pytest.mark.parametrize("shipped", SHIPPED, ids=[one.name for one in SHIPPED])
def test_a_machine_opens_for_those_that_are_shipped_without_a_toleration_of_everything(shipped: Shipped) -> None:
    found = decode_object(shipped.manifest(), Interner())
    assert isinstance(found, Workload)
    labels = {
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "g5.48xlarge",
    }
    labels |= {"feature.node.kubernetes.io/pci-10de.present": "true", "cloud.google.com/gke-accelerator": "nvidia-l4"}
    labels |= {f"nvidia.com/gpu.deploy.{part}": "true" for part in ("device-plugin", "mig-manager")}

    assert kinds(look(None, arriving(labels=labels), found)) == ([Lift] if shipped.waits else [])
    if shipped.selector or shipped.terms:
        assert kinds(look(None, arriving(labels={"kubernetes.io/os": "plan9"}), found)) == []


KEEPING = Policy((pool(KIND, min_gpus_per_pod=4),), steering=BIND)
KEPT = (Taint(KEPT_TAINT),)


def kept(before: Window | None = None, *items: Item, book: Ledger | None = None, now: float = NOW) -> Windows:
    return look(before, *items, policy=KEEPING, book=book or Ledger(), now=now)


def test_a_kept_machine_opens_for_a_daemon_set_that_is_new_updated_or_restarted_whatever_it_shows() -> None:
    machine_ = arriving(gpus=4, taints=KEPT)

    assert kinds(kept(None, machine_, PLUGIN, of(on="a"))) == []
    assert kinds(kept(None, machine_, PLUGIN)) == [Lift]
    assert kinds(kept(None, machine_, PLUGIN, of(on="a", deleted=NOW - 1.0))) == [Lift]
    assert kinds(kept(None, machine_, TOLERANT)) == []


def test_a_kept_machine_is_closed_again_with_its_own_taint() -> None:
    found = kept(opened(), arriving(gpus=4, taints=()), PLUGIN, of())

    assert found.acts[0] == Close("a", "it is kept for large pods", kept=True)
    assert kinds(found) == [Close, Bind]
    assert kinds(kept(opened(seen=NOW - OPEN_SECONDS), arriving(gpus=4, taints=()), PLUGIN)) == [Close]
    assert kept(found.windows["a"], arriving(gpus=4, taints=KEPT), PLUGIN, of(on="a")) == Windows({})


def test_a_daemon_set_that_tolerates_machines_on_their_way_and_no_kept_ones_has_kept_ones_open() -> None:
    half = daemon("plugin", spec(requests={}, tolerations=(Toleration(ARRIVING_TAINT, "Exists"),)))

    assert kinds(look(None, arriving(), half)) == []
    assert kinds(kept(None, arriving(gpus=4, taints=KEPT), half)) == [Lift]


def test_a_kept_machine_that_something_is_under_way_with_or_that_a_person_opened_is_left_alone() -> None:
    promised = Ledger(promises=(Promise("a", KIND.key, (), NOW),))
    leaving = Ledger(leaving=(Leaving("a", "i-a", KIND.key, "", NOW, NOW),))

    for book in (promised, leaving):
        assert kept(None, arriving(gpus=4, taints=KEPT), PLUGIN, book=book) == Windows({})
    assert kept(None, arriving(gpus=4, taints=()), PLUGIN) == Windows({})
    assert look(None, arriving(gpus=4, taints=KEPT), PLUGIN, book=Ledger()) == Windows({}), "its pool keeps none"


def test_people_are_told_why_a_machine_is_open_and_which_daemon_sets_it_lacks() -> None:
    failed = (Attempt("default/plugin", 2, NOW + 110.0, "the DaemonSet controller made none"),)
    lacking = "it has no pod of DaemonSet default/plugin, which was tried 2 times: the DaemonSet controller made none; it is tried again"

    assert list(explained(Window("u-a", failed=failed), NOW)) == [f"{lacking} in 2 min"]
    opens, soon = explained(opened(failed=failed), NOW + 100.0)
    assert opens.startswith("it opens for seconds, so that DaemonSets which do not tolerate our taint")
    assert soon == f"{lacking} soon"
    assert list(explained(Window("u-a", bound=NOW), NOW)) == []


def test_nothing_is_done_where_nothing_arrives() -> None:
    assert look(None, arriving(), PLUGIN, book=Ledger()) == Windows({})
    assert GPU in KIND.allocatable
