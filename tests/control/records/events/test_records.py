"""The records of a controller in the embedded cluster."""

from collections.abc import Callable

import pytest
import structlog
from tests.control.records.deciding import removal_decision
from tests.control.world import World, world
from tests.objects import pod

from gpuscaler.clouds.protocol import BuyResult, LostAnswerError, Order
from gpuscaler.control.loop.ending import EndResult
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.logging import LogLines
from gpuscaler.control.records.events.records import Decision, Records, Sink
from gpuscaler.kube.resources import PODS
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state.ledger.ledger import Ledger, Removal
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import CallFaults

IDLE_SOON = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 60s
"""

DRY = OfferingKey("gpu", "on-demand", "g4dn.xlarge", "us-east-1a")


class EventCollector(Sink):
    """Keeps everything."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.decisions: list[Decision] = []

    def happened(self, what: HistoryEvent, /) -> None:
        self.events.append(what)

    def decided(self, decision: Decision, /) -> None:
        self.decisions.append(decision)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def of(self, kind: str) -> list[HistoryEvent]:
        return [event for event in self.events if event.kind == kind]


def connect_recorder(here: World, *sinks: Sink) -> Records:
    """Connect the world's controller to a recorder over ``sinks``."""
    records = Records(sinks)
    here.notes = records  # type: ignore[assignment]  # the world only asks for a recorder
    here.start()
    return records


async def test_each_step_of_a_machine_from_order_to_termination_is_recorded_once() -> None:
    async with world(IDLE_SOON) as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.user.create(PODS, pod("a", 1, {"gpuscaler.io/run-for": "60s"}), namespace="default")
        await here.sleep(600.0)

    ours = [kind for kind in collector.kinds() if kind != kinds.ACTED]
    assert ours == [
        kinds.PLANNED,
        kinds.ORDERED,
        kinds.ANSWERED,
        kinds.GRANTED,
        kinds.REGISTERED,
        kinds.READY,
        kinds.OPENED,
        kinds.PLANNED,
        kinds.DECIDED,
        kinds.MARKED,
        kinds.ENDING,
        kinds.REMOVED,
    ]


async def test_the_record_of_an_order_states_offering_price_and_expected_ready_time() -> None:
    async with world() as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(120.0)
        await here.submit("b")
        await here.sleep(10.0)

    first, second = collector.of(kinds.ORDERED)
    assert first.pods == ("default/a",)
    assert first.text == (
        "g4dn.xlarge on-demand in us-east-1a ordered: ready in about 4m, p95 5m (assumed; none of its kind observed yet), $0.53/h"
    )
    assert "assumed" not in second.text
    assert second.text.startswith("g4dn.xlarge on-demand in us-east-1a ordered: ready in about ")


async def test_events_name_the_decision_that_caused_them() -> None:
    async with world() as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(120.0)

    decision = collector.decisions[0].id
    assert [event.decision for event in collector.events if event.kind in (kinds.PLANNED, kinds.ORDERED, kinds.GRANTED, kinds.OPENED)] == [
        decision
    ] * 4


async def test_decision_numbers_continue_after_a_restart() -> None:
    async with world() as here:
        first, second = EventCollector(), EventCollector()
        connect_recorder(here, first)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(5.0)
        await here.submit("b")
        await here.sleep(5.0)
        await here.kill()
        connect_recorder(here, second)
        await here.sleep(10.0)
        await here.submit("c")
        await here.sleep(5.0)

    assert [decision.id.split("-")[1] for decision in (*first.decisions, *second.decisions)] == ["1", "2", "3"]


async def test_events_still_name_their_decision_after_a_restart() -> None:
    async with world(IDLE_SOON) as here:
        first, second = EventCollector(), EventCollector()
        connect_recorder(here, first)
        await here.sleep(3.0)
        await here.user.create(PODS, pod("a", 1, {"gpuscaler.io/run-for": "60s"}), namespace="default")
        await here.sleep(12.0)
        await here.kill()
        connect_recorder(here, second)
        await here.sleep(600.0)

    opened, removed = second.of(kinds.OPENED), second.of(kinds.REMOVED)
    assert [event.decision for event in (*opened, *removed)] == [first.decisions[0].id, second.decisions[-1].id]


async def test_the_forecast_of_a_boot_time_is_compared_with_the_actual_time() -> None:
    delays = Delays(boot=Delay(30.0, 30.0, 30.0), device_plugin=Delay(0, 0, 0), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
    async with world(delays=delays) as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(120.0)
        await here.submit("b")
        await here.sleep(120.0)

    first, second = collector.of(kinds.READY)
    assert first.late is not None
    assert not first.seen
    assert first.late < -200.0
    assert second.late is not None
    assert second.seen
    assert abs(second.late) < 5.0


async def test_the_reason_of_an_unplaced_pod_is_reported_once_per_change() -> None:
    async with world() as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.user.create(PODS, pod("big", gpus=8), namespace="default")
        await here.sleep(120.0)
        once = collector.of(kinds.UNPLACED)
        changed = pod("big", gpus=8)
        changed["spec"]["nodeSelector"] = {"color": "blue"}
        await here.user.delete(PODS, "big", namespace="default", grace=0)
        await here.user.create(PODS, changed, namespace="default")
        await here.sleep(120.0)

    assert [event.pods for event in once] == [("default/big",)]
    assert "pool gpu: g4dn.xlarge in us-east-1a: 8 nvidia.com/gpu requested" in once[0].text
    assert [event.pods for event in collector.of(kinds.UNPLACED)] == [("default/big",)] * 2
    assert "color" in collector.of(kinds.UNPLACED)[1].text


async def test_a_refused_order_is_reported_on_pending_pods_with_the_message_of_the_cloud() -> None:
    async with world(markets=Markets({DRY: Steps([0.0], [0.0])})) as here:
        collector = EventCollector()
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(30.0)

    refused = collector.of(kinds.REFUSED)
    assert refused
    assert refused[0].pods == ("default/a",)
    assert refused[0].text.startswith("g4dn.xlarge on-demand in us-east-1a refused: no capacity (")


async def test_if_the_answer_to_an_order_is_lost_the_grant_is_reported_when_the_cloud_lists_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(calls=CallFaults(tokens=False)) as here:
        collector = EventCollector()
        real = here.cluster.provider.buy

        async def buy(order: Order) -> BuyResult:
            await real(order)
            raise LostAnswerError("the connection broke")

        monkeypatch.setattr(here.cluster.provider, "buy", buy)
        connect_recorder(here, collector)
        await here.sleep(3.0)
        await here.submit("a")
        await here.sleep(300.0)

    assert collector.of(kinds.ANSWER_LOST)
    (granted,) = collector.of(kinds.GRANTED)
    assert granted.text.endswith("granted: g4dn.xlarge on-demand in us-east-1a, as the cloud's list shows")
    assert collector.kinds().index(kinds.GRANTED) < collector.kinds().index(kinds.OPENED)


async def test_a_failing_event_sink_affects_neither_other_sinks_nor_the_controller() -> None:
    class Broken(Sink):
        def happened(self, what: HistoryEvent, /) -> None:
            raise RuntimeError(what.kind)

        def planned(self, _plan: Plan, /) -> None:
            raise OSError("the disk is full")

    with structlog.testing.capture_logs() as logs:
        async with world() as here:
            collector = EventCollector()
            records = connect_recorder(here, Broken(), collector)
            await here.sleep(3.0)
            await here.submit("a")
            await here.sleep(120.0)
            assert (await here.bound())["a"]

    assert kinds.OPENED in collector.kinds()
    assert records.failures > 5
    complaints = [log["record"] for log in logs if log["event"] == "a record was not kept"]
    assert "a plan" in complaints
    assert len(complaints) == len(set(complaints))


async def test_a_decision_is_logged_in_one_line_that_names_only_a_few_of_many_pods() -> None:
    with structlog.testing.capture_logs() as logs:
        async with world() as here:
            connect_recorder(here, LogLines())
            await here.sleep(3.0)
            for number in range(12):
                await here.user.create(PODS, pod(f"p{number}", gpus=4), namespace="default")
            await here.sleep(60.0)

    lines = [log for log in logs if log.get("kind") == kinds.UNPLACED]
    assert sum(line["pod_count"] for line in lines) == 12
    assert all(len(line["pods"]) <= 3 and line["log_level"] == "warning" for line in lines)
    assert len(lines) <= 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda records: records.ended(EndResult("i-1", "n-1", "not permitted"), 5.0), "machine i-1 could not be ended: not permitted"),
        (lambda records: records.failed("the memory could not be written", OSError("no route"), 5.0), "could not be written: no route"),
    ],
)
def test_failed_acts_are_reported_with_the_error_text(call: Callable[[Records], None], text: str) -> None:
    collector = EventCollector()
    call(Records((collector,)))

    assert [event.at for event in collector.events] == [5.0]
    assert text in collector.events[0].text


def test_a_repeated_failure_is_reported_once_a_minute() -> None:
    collector = EventCollector()
    records = Records((collector,))
    for second in range(90):
        records.failed("the memory could not be written", OSError("no route"), 1_000.0 + second)
    records.failed("the memory could not be written", OSError("refused"), 1_090.0)

    assert [(event.at, event.text.rpartition(": ")[2]) for event in collector.events] == [
        (1_000.0, "no route"),
        (1_060.0, "no route"),
        (1_090.0, "refused"),
    ]


def test_a_repeated_decision_is_recorded_again_only_after_an_act() -> None:
    collector, decision = EventCollector(), removal_decision()
    records = Records((collector,))

    def plan() -> None:
        records.planned(decision.plan, decision.cluster, decision.state, decision.policy, 1_000.0)

    plan()
    plan()
    assert len(collector.decisions) == 1
    leaving = Removal("n1", "i-1", DRY, "idle", 1_000.0, 1_000.0)
    records.observed(Reconciliation(Memory(ledger=Ledger(leaving=(leaving,)))), decision.cluster, 1_001.0)
    records.observed(Reconciliation(Memory()), decision.cluster, 1_002.0)
    plan()
    assert len(collector.decisions) == 2
    assert len({decision.id for decision in collector.decisions}) == 2
