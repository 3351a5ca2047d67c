"""When a plan is made while pods keep arriving one after the other."""

import asyncio

from gpuscaler.control.loop.alarm import Alarm
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.scheduled_events import ScheduledEvent


def pod_batch(name: str) -> Batch:
    spec = PodSpec(digest="", namespace="default", requests={})
    pod = Pod(name=name, namespace="default", uid=name, labels=LabelSet(), spec=spec, unschedulable=True)
    return Batch(PODS, Pod, {f"default/{name}": pod})


def is_planned(alarm: Alarm, *, anyway: bool = False) -> bool:
    """Whether the turn that begins now makes a plan."""
    return alarm.plans.take(alarm.begin_turn(), urgent=anyway)


async def test_a_due_plan_is_delayed_while_pods_are_still_arriving() -> None:
    alarm = Alarm(Pace(debounce=0.2, patience=0.6))
    assert is_planned(alarm)
    alarm.note_changes(pod_batch("first"))
    await asyncio.sleep(0.1)
    assert not is_planned(alarm, anyway=True)
    alarm.note_changes(pod_batch("second"))
    came_last = alarm.time()
    await alarm.wait()
    while not is_planned(alarm, anyway=True):
        await alarm.wait()
    assert 0.19 <= alarm.time() - came_last <= 0.3


async def test_a_due_plan_is_made_at_once_if_no_pod_has_arrived() -> None:
    alarm = Alarm(Pace())
    assert is_planned(alarm)
    await asyncio.sleep(1.0)
    assert not is_planned(alarm)
    assert is_planned(alarm, anyway=True)


def node_batch(event: ScheduledEvent | None) -> Batch:
    return Batch(NODES, Node, {"n": Node("n", {}, {}, scheduled_event=event)})


async def test_an_event_that_is_scheduled_for_a_machine_causes_a_turn_soon_and_heartbeats_of_its_node_do_not() -> None:
    alarm, event = Alarm(Pace(resync=60.0)), ScheduledEvent("Preempt", "e-1")
    alarm.nodes = {"n": Node("n", {}, {})}
    alarm.begin_turn()
    alarm.note_changes(node_batch(None))
    came = alarm.time()
    await asyncio.sleep(5.0)
    alarm.note_changes(node_batch(event))
    await alarm.wait()
    assert 5.0 < alarm.time() - came < 5.2
    alarm.nodes = {"n": Node("n", {}, {}, scheduled_event=event)}
    alarm.begin_turn()
    alarm.note_changes(node_batch(event))
    await alarm.wait()
    assert alarm.time() - came > 60.0
