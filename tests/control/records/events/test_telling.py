"""Events about machines that change faster than they are observed, and about failed acts."""

import asyncio
from random import Random

import pytest
import structlog
from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.clouds.protocol import AccountReport
from gpuscaler.control.loop.cloud import OrderAnswer
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.logging import LogLines
from gpuscaler.control.records.events.records import Records, Sink
from gpuscaler.control.records.events.telling import observation_events
from gpuscaler.lifecycle.actions import Nominate
from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.promises import Broken

KIND = offering("g.1", memory=32)
POLICY = Policy((pool(KIND),))
WAITS = pod("p", unschedulable=True)


class EventCollector(Sink):
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []

    def happened(self, what: HistoryEvent, /) -> None:
        self.events.append(what)

    def of_machines(self) -> list[tuple[str, str]]:
        return [(event.kind, event.node) for event in self.events if event.machine == "i-1"]


class ObservedMachine:
    """A controller with a machine that was ordered for a pod; the test triggers its observations."""

    def __init__(self) -> None:
        self.kept = EventCollector()
        self.records = Records((self.kept,))
        self.memory = Memory()
        self.observe(WAITS, at=0.0)
        cluster, state = Cluster.of([WAITS]), state_of(self.memory, POLICY, NOW)
        decided = plan(cluster, state, POLICY, NOW)
        self.memory, (self.order,) = place_orders(self.memory, decided, cluster, POLICY, state=state, now=NOW)
        self.records.sent(self.order, self.memory.ledger.coming, self.memory, NOW)

    def observe(self, *items: Item, at: float, there: bool = True) -> None:
        now, cluster = NOW + at, Cluster.of(items)
        machines = (Instance("i-1", *KIND.key, launched=NOW, token=self.order.token),) if at and there else ()
        seen = reconcile(self.memory, cluster, POLICY, Facts(inventory=Inventory(now, machines)), now)
        self.memory = seen.memory
        self.records.observed(seen, cluster, now)

    def answer(self, *, at: float) -> None:
        self._answered(ledger.Answered(self.order.token, NOW + at, (("i-1", KIND.key),)), NOW + at)

    def lose_the_answer(self, *, at: float) -> None:
        self._answered(ledger.Doubted(self.order.token, NOW + at), NOW + at)

    def _answered(self, step: ledger.Event, now: float) -> None:
        self.memory = Memory(ledger=ledger.step(self.memory.ledger, step))
        self.records.answered(OrderAnswer(self.order, (step,), ()), now)


OPEN_AT_ONCE = [(kinds.GRANTED, ""), (kinds.REGISTERED, "n"), (kinds.READY, "n"), (kinds.OPENED, "n")]


@pytest.mark.parametrize("pools", [(KIND.pool,), ("other",)])
async def test_the_cloud_says_what_to_do_about_a_node_without_our_taint(pools: tuple[str, ...]) -> None:
    life, report = ObservedMachine(), AccountReport(taint_advice=dict.fromkeys(pools, "add it elsewhere"))
    account = DiscoveredPools(lambda: asyncio.sleep(0, report), random=Random(0))
    await account.read_until_known()
    life.records.set_discovered_pools(account)
    life.answer(at=1.0)
    life.observe(WAITS, node("n", KIND, provider_id="i-1", created=NOW + 50.0, ready=False), at=60.0)

    (text,) = (event.text for event in life.kept.events if "registered without the taint" in event.text)
    assert text.endswith(
        "was bought for; add it elsewhere" if KIND.pool in pools else "configure the pool's nodes to register with the taint"
    )


def test_a_machine_that_registers_and_opens_between_two_turns_is_reported_as_open_and_not_as_lost() -> None:
    life = ObservedMachine()
    life.answer(at=1.0)
    life.observe(WAITS, at=2.0)
    life.observe(WAITS, node("n", KIND, provider_id="i-1", created=NOW + 50.0), at=60.0)

    assert life.kept.of_machines() == OPEN_AT_ONCE
    assert life.kept.events[-1].text == "node n is open for default/p"


def test_a_machine_that_registers_before_the_answer_to_its_order_is_reported_as_open() -> None:
    life = ObservedMachine()
    life.observe(WAITS, at=2.0, there=False)
    life.answer(at=59.0)
    life.observe(WAITS, node("n", KIND, provider_id="i-1", created=NOW + 50.0), at=60.0)

    assert life.kept.of_machines() == OPEN_AT_ONCE


def test_a_machine_that_opens_before_the_next_turn_after_its_order_is_reported_as_open() -> None:
    life = ObservedMachine()
    life.answer(at=1.0)
    life.observe(WAITS, node("n", KIND, provider_id="i-1", created=NOW + 50.0), at=60.0)

    assert life.kept.of_machines() == OPEN_AT_ONCE


def test_if_the_answer_to_an_order_is_lost_its_open_machine_is_reported_by_name() -> None:
    life = ObservedMachine()
    life.lose_the_answer(at=1.0)
    life.observe(WAITS, node("n", KIND, provider_id="i-1", created=NOW + 50.0), at=60.0)

    assert life.kept.of_machines() == OPEN_AT_ONCE
    assert "machine i-1 registered as node n," in next(event.text for event in life.kept.events if event.kind == kinds.REGISTERED)


@pytest.mark.parametrize("node_came", [False, True])
def test_a_machine_that_ends_before_opening_is_reported_as_lost(node_came: bool) -> None:
    life = ObservedMachine()
    life.answer(at=1.0)
    closed = node("n", KIND, provider_id="i-1", created=NOW + 50.0, ready=False, taints=(Taint("gpuscaler.io/arriving"),))
    life.observe(WAITS, *([closed] if node_came else []), at=60.0)
    life.observe(WAITS, at=120.0, there=False)

    events = [event for event in life.kept.events if event.kind in (kinds.LOST, kinds.OPENED)]
    assert [(event.kind, event.machine, event.node) for event in events] == [(kinds.LOST, "i-1", "n" if node_came else "")]
    assert events[0].text.endswith("is lost: it ended before it opened")


def answer_events(
    *, asked: int, granted: int = 0, pending: int = 0, refused: tuple[offering_events.Refused, ...] = ()
) -> list[tuple[str, str, str]]:
    """The events of one answer to an order of ``asked`` machines."""
    collector = EventCollector()
    order = ledger.Order("t", KIND.pool, (KIND.key,), asked, at=NOW, since=NOW)
    step = ledger.Answered("t", NOW, tuple((f"i-{number}", KIND.key) for number in range(granted)), pending)
    Records((collector,), Latest(policy=POLICY)).answered(OrderAnswer(order, (step,), refused), NOW)
    return [(event.kind, event.text, event.cause) for event in collector.events]


def test_one_log_line_counts_the_granted_and_refused_machines_of_an_order() -> None:
    (kind, text, cause), *rest = answer_events(asked=10, granted=3, refused=(offering_events.Refused(KIND.key, NOW, detail="none left"),))
    where = f"g.1 on-demand in {KIND.zone}"

    assert (kind, cause) == (kinds.ANSWERED, "capacity")
    assert text.startswith(f"3 of 10 machines granted: 3 x {where}, $1.00/h each, ready in about 4m")
    assert text.endswith(f"; 7 not granted: {where} refused: no capacity (none left)")
    assert [kind for kind, *_ in rest] == [kinds.GRANTED] * 3 + [kinds.REFUSED]


def test_machines_granted_without_an_id_are_counted_separately() -> None:
    (summary,) = [text for kind, text, _ in answer_events(asked=3, granted=1, pending=2) if kind == kinds.ANSWERED]

    assert summary.startswith("1 of 3 machines granted: 1 x g.1")
    assert summary.endswith("; 2 more accepted, ids follow")


def test_answers_in_parts_count_all_machines_of_their_order() -> None:
    life = ObservedMachine()
    machines = tuple(ledger.OrderedMachine(f"m{number}", "t", (KIND.key,), 1.0, NOW) for number in range(3))
    order = ledger.Order("t", KIND.pool, (KIND.key,), 3, at=NOW, since=NOW)
    life.records.sent(order, machines, Memory(), NOW)
    for step in (ledger.Answered("t", NOW, (("i-1", KIND.key),), 2), ledger.Answered("t", NOW + 5, (("i-2", KIND.key),))):
        fates = () if step.pending else (offering_events.Refused(KIND.key, NOW),)
        life.records.answered(OrderAnswer(order, (step,), fates), NOW)

    assert [event.text.partition(", ready")[0] for event in life.kept.events if event.kind == kinds.ANSWERED] == [
        f"1 of 3 machines granted: 1 x g.1 on-demand in {KIND.zone}",
        f"2 of 3 machines granted: 2 x g.1 on-demand in {KIND.zone}",
    ]


@pytest.mark.parametrize(("step", "words"), [(ledger.Answered("t", NOW), ()), (ledger.Doubted("t", NOW), (kinds.ANSWER_LOST,))])
def test_an_answer_without_grants_or_refusals_is_logged_without_a_count(step: ledger.Event, words: tuple[str, ...]) -> None:
    collector = EventCollector()
    order = ledger.Order("t", KIND.pool, (KIND.key,), 1, at=NOW, since=NOW)
    Records((collector,)).answered(OrderAnswer(order, (step,), ()), NOW)

    assert tuple(event.kind for event in collector.events) == words


def test_the_answer_to_an_order_is_logged_at_info_or_warning_and_its_parts_at_debug() -> None:
    events = [(kinds.ANSWERED, ""), (kinds.ANSWERED, "capacity"), (kinds.GRANTED, ""), (kinds.REFUSED, "capacity"), (kinds.INSTEAD, "")]
    with structlog.testing.capture_logs() as lines:
        for kind, cause in events:
            LogLines().happened(HistoryEvent(NOW, kind, "x", offering=KIND.key, order="t", cause=cause))

    assert [line["log_level"] for line in lines] == ["info", "warning", "debug", "debug", "debug"]
    assert [line.get("cause") for line in lines] == [None, "capacity", None, "capacity", None]


def test_a_forbidden_act_is_reported_at_each_attempt_and_not_during_the_pause_between() -> None:
    collector, act = EventCollector(), Nominate("default/p", "u", "n")
    records = Records((collector,))
    for tried in (True, False, False, True):
        records.acted(Outcome(act, "pods is forbidden", 10.0, tried=tried), NOW)

    assert [(event.kind, event.text) for event in collector.events] == [(kinds.ACTED, "nominate failed: pods is forbidden")] * 2


def test_a_broken_promise_is_reported_on_each_pod_with_its_reason_even_if_its_offering_is_paused() -> None:
    broken = {"p": ("a", "0/1 nodes: Insufficient cpu."), "q": ("b", "0/2 nodes: node a lies."), "r": ("c", "")}
    outcomes = tuple(Broken(KIND.key, WAITS.spec.digest, NOW, pod=pod_name, node=on, why=why) for pod_name, (on, why) in broken.items())
    after = ledger.Ledger(broken=tuple((pod_name, on) for pod_name, (on, _) in broken.items()))

    events = observation_events(Memory(), Reconciliation(Memory(ledger=after), outcomes=outcomes), Cluster(), {}, NOW)

    assert [(event.kind, event.node, event.text) for event in events] == [
        (
            kinds.BROKEN,
            "a",
            "node a was meant for pod p, which did not run there: 0/1 nodes: Insufficient cpu.; the pod is planned again",
        ),
        (kinds.BROKEN, "b", "node b was meant for pod q, which did not run there: 0/2 nodes: node a lies.; the pod is planned again"),
        (kinds.BROKEN, "c", "node c was meant for pod r, which did not run there; the pod is planned again"),
    ]
