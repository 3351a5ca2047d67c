"""When a plan is made for pods that come one shortly after the other."""

import asyncio

from gpuscaler.control.loop.alarm import Alarm, Pace
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import PODS
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, PodSpec


def came(name: str) -> Batch:
    spec = PodSpec(digest="", namespace="default", requests={})
    pod = Pod(name=name, namespace="default", uid=name, labels=LabelSet(), spec=spec, unschedulable=True)
    return Batch(PODS, Pod, {f"default/{name}": pod})


async def test_what_is_to_be_planned_anyway_waits_for_pods_that_come() -> None:
    alarm = Alarm(Pace(debounce=0.2, patience=0.6))
    assert alarm.plans(alarm.looking(), anyway=False)
    alarm.hear(came("first"))
    await asyncio.sleep(0.1)
    assert not alarm.plans(alarm.looking(), anyway=True)
    alarm.hear(came("second"))
    came_last = alarm.time()
    await alarm.wait()
    while not alarm.plans(alarm.looking(), anyway=True):
        await alarm.wait()
    assert 0.19 <= alarm.time() - came_last <= 0.3


async def test_where_no_pod_has_come_what_is_to_be_planned_anyway_is_planned_at_once() -> None:
    alarm = Alarm(Pace())
    assert alarm.plans(alarm.looking(), anyway=False)
    await asyncio.sleep(1.0)
    assert not alarm.plans(alarm.looking(), anyway=False)
    assert alarm.plans(alarm.looking(), anyway=True)
