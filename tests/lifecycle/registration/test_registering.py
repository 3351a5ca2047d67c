"""Which instance and node a machine of the ledger is, which machines are ready, and which never came."""

from typing import Any

import msgspec
import pytest
from tests.planning.building import GI, GPU, NOW, node, offering, pool

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.readiness import STARTUP_TAINTS, Lack, find_lack, is_startup
from gpuscaler.lifecycle.registration.registering import Arrivals, Waits, find_arrivals
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import PENDING, TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, DOUBTFUL, INTENDED, Ledger, Order, OrderedMachine

KIND, OTHER = offering("g.1"), offering("g.2", 2.0)
POOL = pool(KIND, OTHER, startup_taints=(Taint("acme.io/booting"),))
POLICY = Policy((POOL,))
ARRIVING = Taint("gpuscaler.io/arriving")


def coming(name: str = "a-0", **more: Any) -> OrderedMachine:
    """A machine that was requested two minutes ago."""
    return OrderedMachine(**{"id": name, "order": "a", "offerings": (KIND.key,), "price": 1.0, "asked": NOW - 120.0, **more})


def granted(name: str = "a-0", instance: str = "i-1", **more: Any) -> OrderedMachine:
    return coming(name, **{"instance": instance, "offering": KIND.key, "granted": NOW - 100.0, **more})


def order(state: str, *, at: float = NOW - 120.0, since: float = NOW - 110.0) -> Order:
    return Order("a", "main", (KIND.key,), 1, at, since, state)


def instance(name: str = "i-1", of: Any = KIND, **more: Any) -> Instance:
    return Instance(name, *of.key, **{"launched": NOW - 100.0, **more})


def machine(name: str = "n", instance: str = "i-1", *taints: Taint, **more: Any) -> Node:
    return node(name, KIND, provider_id=instance, **{"taints": (ARRIVING, *taints), "created": NOW - 10.0, **more})


def register(ledger: Ledger, *items: Node, listed: list[Instance] | None = None, age: float = 0.0, **waits: Any) -> Arrivals:
    inventory = None if listed is None else Inventory(NOW - age, tuple(listed))
    cluster = Cluster.of(items)
    return find_arrivals(ledger, cluster, inventory, POLICY, waits=Waits(**waits), now=NOW, index=MachineIndex.of(cluster, inventory))


def kinds(arrivals: Arrivals) -> list[str]:
    return [type(step).__name__ for step in arrivals.steps]


def test_a_node_that_is_not_ready_yet_has_a_stated_reason() -> None:
    ledger, here = Ledger(coming=(granted(node="n", registered=NOW - 5.0),)), Cluster.of([machine()])

    def lacks(listed: Instance, exposed: frozenset[str] = frozenset()) -> dict[str, str]:
        inventory = Inventory(NOW, (listed,))
        index = MachineIndex.of(here, inventory)
        return dict(find_arrivals(ledger, here, inventory, POLICY, waits=Waits(), now=NOW, index=index, exposed=exposed).lacks)

    assert lacks(instance()) == {}
    assert lacks(instance(doubt="a launch hook may still give it up")) == {"a-0": "a launch hook may still give it up"}
    assert lacks(instance(), frozenset({"i-1"})) == {"a-0": "its group balances zones, and it is not protected from scale-in"}


# Identity


def test_a_machine_of_an_order_with_a_lost_answer_is_found_by_its_token() -> None:
    current = Ledger((order(DOUBTFUL),), (coming(),))
    arrivals = register(current, listed=[instance("i-other", token="b"), instance("i-1", token="a")])

    assert arrivals.steps == (ledger.Found("a-0", "i-1", KIND.key, NOW, NOW - 100.0),)
    assert arrivals.breaker_events == (offering_events.Granted(KIND.key, NOW),)


@pytest.mark.parametrize(
    "stranger",
    [
        instance(token="b"),
        instance(of=OTHER),
        instance(launched=NOW - 120.0 - SKEW_SECONDS - 1.0),
        instance(state=TERMINATED),
    ],
    ids=["another order's", "another offering", "older than the order", "ended"],
)
def test_an_instance_that_cannot_be_the_ordered_machine_is_not_assigned_to_it(stranger: Instance) -> None:
    assert register(Ledger((order(ACCEPTED),), (coming(),)), listed=[stranger]).steps == ()


def test_without_tokens_the_oldest_unclaimed_machine_of_the_offering_is_assigned() -> None:
    current = Ledger((order(DOUBTFUL),), (coming(), granted("b-0", "i-taken", order="b")))
    listed = [instance("i-young", launched=NOW - 50.0), instance("i-old", launched=NOW - 90.0), instance("i-taken", launched=NOW - 99.0)]

    assert register(current, listed=listed, keeps_tokens=False).steps == (ledger.Found("a-0", "i-old", KIND.key, NOW, NOW - 90.0),)


def test_a_machine_from_before_the_order_is_not_assigned() -> None:
    ledger = Ledger((order(DOUBTFUL),), (coming(),), departed_ids=frozenset({"i-1"}))

    assert register(ledger, listed=[instance()], keeps_tokens=False, lag=90.0).steps == ()


@pytest.mark.parametrize(("created", "taken"), [(NOW - 125.0, False), (NOW - 120.0, False), (NOW - 119.0, True), (NOW - 60.0, True)])
def test_a_machine_that_was_a_node_before_the_order_is_not_assigned(created: float, taken: bool) -> None:
    current = Ledger((order(ACCEPTED),), (coming(),))
    booted_in_seconds = instance(launched=NOW - 130.0)

    steps = register(current, machine(created=created), listed=[booted_in_seconds], keeps_tokens=False).steps
    assert any(isinstance(step, ledger.Found) for step in steps) == taken


def test_an_order_that_has_not_been_sent_has_no_machine() -> None:
    assert register(Ledger((order(INTENDED),), (coming(),)), listed=[instance(token="a")]).steps == ()


def test_an_unclaimed_closed_node_of_the_ordered_type_is_not_assigned_before_the_cloud_lists_its_machine() -> None:
    """Another gpuscaler, with other pools in the cluster, sets the same taint."""
    before = register(Ledger((order(DOUBTFUL),), (coming(),)), machine(), listed=None)
    listed = register(Ledger((order(DOUBTFUL),), (coming(),)), machine(), listed=[instance()])

    assert before.steps == ()
    assert kinds(listed) == ["Found", "Registered", "Ready"]


# Giving up


def test_missing_machines_of_an_accepted_order_are_given_up_when_overdue() -> None:
    early = register(Ledger((order(ACCEPTED, since=NOW - 899.0),), (coming(),)), listed=[])
    late = register(Ledger((order(ACCEPTED, since=NOW - 900.0),), (coming(),)), listed=[])

    assert early == Arrivals()
    assert late.unfilled == ("a",)
    assert late.steps == (ledger.Settled("a"),)
    assert [type(fate) for fate in late.breaker_events] == [offering_events.Failed, offering_events.Dropped]


@pytest.mark.parametrize(
    ("age", "lag", "given_up"),
    [(0.0, 0.0, True), (0.0, 90.0, False), (85.0, 0.0, False)],
    ids=["a list after it", "a list that may be older", "an old list"],
)
def test_a_doubtful_order_without_tokens_is_given_up_once_a_list_would_show_its_machines(age: float, lag: float, given_up: bool) -> None:
    arrivals = register(Ledger((order(DOUBTFUL),), (coming(),)), listed=[], age=age, lag=lag, keeps_tokens=False)

    assert (arrivals.unfilled == ("a",)) is given_up


def test_a_doubtful_order_with_tokens_is_sent_again_instead_of_given_up() -> None:
    assert register(Ledger((order(DOUBTFUL),), (coming(),)), listed=[]) == Arrivals()


def test_a_machine_that_disappears_from_the_list_counts_as_lost() -> None:
    arrivals = register(Ledger(coming=(granted(),)), listed=[])

    assert arrivals.steps == (ledger.Lost("a-0"),)
    assert arrivals.breaker_events[-1] == offering_events.Failed(KIND.key, NOW, "it ended before it opened")


@pytest.mark.parametrize(
    ("fields", "counts"),
    [({}, True), ({"node": "n"}, False), ({"offering": KIND.key._replace(market="spot")}, False), ({"order": ""}, False)],
    ids=["on-demand", "it was a node", "spot", "not ordered here"],
)
def test_a_machine_that_ends_before_registration_counts_as_a_failure_of_its_pool(fields: dict[str, Any], counts: bool) -> None:
    arrivals = register(Ledger(coming=(granted(**fields),)), listed=[])

    assert [type(fate) for fate in arrivals.breaker_events] == ([offering_events.Absent] if counts else []) + [offering_events.Failed]


@pytest.mark.parametrize(("since", "lag"), [(20.0, 0.0), (100.0, 90.0)], ids=["just granted", "the list lags"])
def test_a_machine_too_new_to_be_listed_does_not_count_as_lost(since: float, lag: float) -> None:
    assert register(Ledger(coming=(granted(granted=NOW - since),)), listed=[], lag=lag) == Arrivals()


def test_without_a_cloud_list_no_machine_counts_as_lost() -> None:
    assert register(Ledger(coming=(granted(),)), listed=None) == Arrivals()


# Registering and becoming ready


def test_a_machine_is_ready_when_its_node_shows_all_promised_resources() -> None:
    arrivals = register(Ledger(coming=(granted(),)), machine(), listed=[instance(state=PENDING)])

    assert arrivals.steps == (ledger.Registered("a-0", "n", NOW), ledger.Ready("a-0", NOW))
    # The Node has the time of its creation, however late it was seen.
    assert [(arrived.boot, arrived.plugin) for arrived in arrivals.arrived] == [(90.0, 10.0)]


def test_boot_and_device_plugin_are_timed_separately() -> None:
    (arrived,) = register(Ledger(coming=(granted(node="n", registered=NOW - 30.0),)), machine(), listed=None).arrived

    assert (arrived.offering, arrived.boot, arrived.plugin) == (KIND.key, 70.0, 30.0)


def test_the_boot_time_counts_from_the_launch_if_the_instance_id_was_learned_late() -> None:
    ledger = Ledger((order(DOUBTFUL),), (coming(),))
    (arrived,) = register(ledger, machine(created=NOW - 5.0), listed=[instance(token="a", launched=NOW - 100.0)], began=NOW - 20.0).arrived

    assert (arrived.boot, arrived.plugin) == (95.0, 5.0)


def test_the_boot_time_counts_from_the_order_if_the_launch_is_dated_earlier() -> None:
    ledger = Ledger((order(DOUBTFUL),), (coming(),))
    (arrived,) = register(ledger, machine(created=NOW - 5.0), listed=[instance(token="a", launched=NOW - 9000.0)]).arrived

    assert arrived.boot == 115.0


def test_no_boot_time_is_recorded_for_a_machine_that_became_ready_unobserved() -> None:
    arrivals = register(Ledger(coming=(granted(),)), machine(created=NOW - 50.0), listed=[instance()], began=NOW - 1.0)

    assert kinds(arrivals) == ["Registered", "Ready"]
    assert arrivals.arrived == ()


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        ({"ready": False}, "it is not Ready"),
        ({"allocatable": {"cpu": 8000, "memory": 32 * GI, "pods": 110}}, f"it shows no {GPU}: is its device plugin running?"),
        ({"allocatable": {**KIND.allocatable, GPU: 0}}, f"it shows no {GPU}: is its device plugin running?"),
        ({"taints": (ARRIVING, Taint("acme.io/booting"))}, "it has the taint acme.io/booting:NoSchedule"),
        (
            {"taints": (ARRIVING, Taint("startup-taint.cluster-autoscaler.kubernetes.io/x"))},
            "it has the taint startup-taint.cluster-autoscaler.kubernetes.io/x:NoSchedule",
        ),
    ],
)
def test_a_registered_machine_reports_what_its_node_lacks(more: dict[str, Any], lacks: str) -> None:
    node = machine(**more)

    assert isinstance(lack := find_lack(node, KIND, POOL), Lack)
    assert lack.words == lacks
    assert kinds(register(Ledger(coming=(granted(),)), node, listed=None)) == ["Registered"]


@pytest.mark.parametrize("name", STARTUP_TAINTS)
def test_every_known_startup_taint_delays_readiness(name: str) -> None:
    taint = Taint(name + "x" if name.endswith("/") else name)

    assert is_startup(taint, ())
    assert not is_startup(msgspec.structs.replace(taint, effect="PreferNoSchedule"), ())


@pytest.mark.parametrize("taint", [ARRIVING, Taint("nvidia.com/gpu"), Taint("acme.io/booting", effect="NoExecute"), Taint("team", "ml")])
def test_permanent_taints_do_not_delay_readiness(taint: Taint) -> None:
    assert not is_startup(taint, POOL.startup_taints)


def test_an_amount_below_the_promised_one_is_learned_and_does_not_delay_readiness() -> None:
    assert find_lack(machine(allocatable={**KIND.allocatable, "memory": GI}), KIND, POOL) is None


def test_a_machine_of_a_removed_offering_is_ready_when_its_node_is_ready() -> None:
    assert find_lack(machine(), None, None) is None


# Time-outs


@pytest.mark.parametrize(
    ("overdue_machine", "items", "reason"),
    [
        (granted(granted=NOW - 900.0), (), "machine i-1 did not become a node within 900 s (pace.register_timeout)"),
        (
            granted(granted=NOW - 2000.0, node="n", registered=NOW - 900.0),
            (machine(ready=False),),
            "node n was not ready within 900 s (pace.ready_timeout): it is not Ready",
        ),
        (
            granted(granted=NOW - 2000.0, node="n", registered=NOW - 900.0),
            (),
            "node n was not ready within 900 s (pace.ready_timeout): its Node is gone",
        ),
    ],
)
def test_an_overdue_machine_is_ended_with_a_reason(overdue_machine: OrderedMachine, items: tuple[Node, ...], reason: str) -> None:
    arrivals = register(Ledger(coming=(overdue_machine,)), *items, listed=[instance()])

    assert [(entry.machine.instance, entry.reason) for entry in arrivals.overdue] == [("i-1", reason)]
    assert arrivals.steps[-1] == ledger.Lost("a-0")
    assert [type(fate) for fate in arrivals.breaker_events] == (
        [offering_events.Failed] if overdue_machine.node else [offering_events.Absent, offering_events.Failed]
    )


@pytest.mark.parametrize(
    "recent_machine",
    [
        granted(granted=NOW - 899.0),
        granted(granted=NOW - 2000.0, node="n", registered=NOW - 899.0),
        granted(granted=NOW - 9000.0, node="n", registered=NOW - 8000.0, ready=NOW - 7000.0),
        coming(asked=NOW - 9000.0),
    ],
    ids=["booting", "waiting for its GPUs", "ready and waiting for others", "without a name"],
)
def test_a_machine_that_is_not_overdue_is_not_ended(recent_machine: OrderedMachine) -> None:
    assert register(Ledger(coming=(recent_machine,)), machine(ready=False), listed=[instance()]).overdue == ()
