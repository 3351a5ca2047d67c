"""When a plan is made for pods that come one shortly after the other."""

import asyncio

from gpuscaler.control.loop.alarm import Alarm
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import PODS
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, PodSpec


def came(name: str) -> Batch:
    spec = PodSpec(digest="", namespace="default", requests={})
    pod = Pod(name=name, namespace="default", uid=name, labels=LabelSet(), spec=spec, unschedulable=True)
    return Batch(PODS, Pod, {f"default/{name}": pod})


def is_planned(alarm: Alarm, *, anyway: bool = False) -> bool:
    """Whether the look that begins now is followed by a plan."""
    return alarm.plans.take(alarm.looking(), urgent=anyway)


async def test_what_is_to_be_planned_anyway_waits_for_pods_that_come() -> None:
    alarm = Alarm(Pace(debounce=0.2, patience=0.6))
    assert is_planned(alarm)
    alarm.hear(came("first"))
    await asyncio.sleep(0.1)
    assert not is_planned(alarm, anyway=True)
    alarm.hear(came("second"))
    came_last = alarm.time()
    await alarm.wait()
    while not is_planned(alarm, anyway=True):
        await alarm.wait()
    assert 0.19 <= alarm.time() - came_last <= 0.3


async def test_where_no_pod_has_come_what_is_to_be_planned_anyway_is_planned_at_once() -> None:
    alarm = Alarm(Pace())
    assert is_planned(alarm)
    await asyncio.sleep(1.0)
    assert not is_planned(alarm)
    assert is_planned(alarm, anyway=True)
