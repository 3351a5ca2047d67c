"""F85 to F89: running pods, and what happens to them for the sake of others."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.control.leaving import run
from tests.control.records.test_service import events
from tests.control.test_replacing import BOTH, without_spot
from tests.control.world import BEGAN, World
from tests.faults.kit import all_bound, faulty, latest, markets, recorded, watch_of
from tests.faults.test_removals import dear, offer_spot
from tests.objects import pod, workload

from gpuscaler.clouds.protocol import INTERRUPTION, Notice
from gpuscaler.control.records.service import Service
from gpuscaler.control.records.status.pages import pod_events
from gpuscaler.control.records.status.why import why_node, why_pod
from gpuscaler.embedded.nodes import machines
from gpuscaler.kube.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS, STATEFUL_SETS, Resource
from gpuscaler.model.pods import Owner
from gpuscaler.simulation.cloud.machines import CloudMachine
from gpuscaler.simulation.cloud.provider import provider_id

#: Everything but the limits is left at its default.
SERVING = """
region: us-east-1
limits: {gpus: 80, machines: 80, machines_per_minute: 80, dollars_per_hour: 200}
pools:
  - name: gpu
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


async def deploy(here: World, name: str, replicas: int, **more: Any) -> None:
    """Create a Deployment of pods of one GPU without any annotation about being moved."""
    await here.user.create(DEPLOYMENTS, workload("Deployment", name, pod(name, **more), replicas=replicas), namespace="default")


async def uids(here: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await here.pods()}


@pytest.mark.parametrize("steering", ["bind", "nominate"])
async def test_f85_running_replicas_are_not_moved_while_their_deployment_grows(steering: str) -> None:
    """Machines bought for the new replicas are promised to these, however well the running replicas would fit there."""
    async with faulty(f"steering: {steering}\n{SERVING}") as here:
        await deploy(here, "web", 10)
        await here.sleep(690.0)
        assert await all_bound(here)
        first = await uids(here)

        await here.user.merge_patch(DEPLOYMENTS, "web", {"spec": {"replicas": 60}}, namespace="default")
        await here.sleep(300.0)

        assert len(first) == 10
        assert first <= await uids(here)
        assert not watch_of(here).to("/eviction")
        assert len(here.cluster.core.history()) == 60
        assert await all_bound(here)


async def annotate(here: World, resource: Resource, name: str, value: str | None) -> None:
    namespace = "default" if resource.namespaced else ""
    patch = {"metadata": {"annotations": {"gpuscaler.io/disruption": value}}}
    await here.user.merge_patch(resource, name, patch, namespace=namespace)


NOTEBOOK = {"name": "nb", "resource": STATEFUL_SETS, "annotations": {}}


async def test_f86_a_notebook_stays_on_its_expensive_machine_until_its_namespace_allows_disruption() -> None:
    async with dear(NOTEBOOK) as here:
        offer_spot(here)
        await here.sleep(1200.0)

        answer = why_node(await latest(here), "sim-00001", (), here.now())
        assert any(
            "sole-replica: pod default/nb-0 holds a GPU and no other replica of StatefulSet default/nb" in text for text in answer.now
        )
        assert (markets(here), watch_of(here).to("/eviction")) == (["on-demand"], [])

        await annotate(here, NAMESPACES, "default", "allow")
        await here.sleep(1200.0)

        assert markets(here) == ["on-demand", "spot"]
        assert len(watch_of(here).to("/eviction")) == 1
        assert await all_bound(here)


async def test_f86_an_annotation_added_to_the_owner_of_a_pod_cancels_a_removal_in_progress() -> None:
    """The annotation is added after the plan, when the replacement is open: the pod stays anyway."""
    async with dear({**NOTEBOOK, "annotations": {"gpuscaler.io/disruption": "allow"}}) as here:
        offer_spot(here)
        while markets(here) == ["on-demand"]:
            await here.sleep(1.0)
        await annotate(here, STATEFUL_SETS, "nb", "never")
        await here.user.merge_patch(PODS, "nb-0", {"metadata": {"annotations": {"gpuscaler.io/disruption": None}}}, namespace="default")
        await here.sleep(600.0)

        assert watch_of(here).to("/eviction") == []
        assert await here.bound() == {"nb-0": "sim-00001"}


ALLOWED = {"gpuscaler.io/disruption": "allow"}


@asynccontextmanager
async def recorded_move(**workload: Any) -> AsyncIterator[tuple[World, Service]]:
    """A world with full recording and a pod with a GPU on an expensive machine."""
    async with recorded(BOTH) as (here, service):
        assert here.controller is not None
        full = here.policy
        here.controller.set_policy(without_spot(full))
        await (deploy(here, "web", 1) if not workload else run(here, **workload))
        await here.sleep(240.0)
        here.controller.set_policy(full)
        yield here, service


async def evictions(here: World) -> dict[str, str]:
    """Return the Event notes about evictions, by their objects."""
    return {about: note for about, reason, note in await events(here) if reason == "Evicted"}


async def evictions_reported(service: Service, pod: str, top: Owner) -> list[str]:
    """Return the evictions that `gpuscaler why pod` lists."""
    await service.history_writer.flush()
    return [event.text for event in pod_events(service.history_writer.history, f"default/{pod}", top) if event.kind == "evicted"]


async def test_f87_an_eviction_is_reported_on_the_pod_and_its_owner_with_the_saving() -> None:
    async with recorded_move(name="nb", resource=STATEFUL_SETS, annotations=ALLOWED) as (here, service):
        await here.sleep(1200.0)
        notes = await evictions(here)
        text = (await evictions_reported(service, "nb-0", Owner("StatefulSet", "nb")))[0]

    assert notes.keys() == {"Pod nb-0", "StatefulSet nb"}
    assert set(notes.values()) == {text}
    assert text.startswith("pod default/nb-0 was evicted from node sim-00001 to move it to a machine that was bought for it; ")
    assert "runs cheaper on 1 x g4dn.xlarge (spot" in text
    assert "which saves $0." in text


async def test_f87_a_replacement_pod_with_a_new_name_shows_why_the_old_pod_was_evicted() -> None:
    async with recorded_move() as (here, service):
        await annotate(here, DEPLOYMENTS, "web", "allow")
        await here.sleep(1200.0)
        (new,) = [name for name in await here.bound() if name.startswith("web-")]
        notes = await evictions(here)
        reported = await evictions_reported(service, new, Owner("Deployment", "web"))

    assert len(notes) == 2
    assert "Deployment web" in notes
    assert f"Pod {new}" not in notes
    assert reported == [notes["Deployment web"]]


async def test_f87_the_event_of_an_eviction_says_that_the_machine_is_interrupted() -> None:
    async with recorded_move(name="nb", resource=STATEFUL_SETS, annotations={}) as (here, _):
        (machine,) = here.cluster.core.list()
        here.announced.append(Notice(INTERRUPTION, provider_id(machine), here.now() + 120.0))
        await here.sleep(300.0)
        notes = await evictions(here)

    assert notes.keys() == {"Pod nb-0", "StatefulSet nb"}
    assert "was evicted from node sim-00001: its machine is taken away: " in notes["Pod nb-0"]


LABELLED = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    labels: {team: ml}
"""


@contextmanager
def nodes_that(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Let machines register with Nodes changed by ``change`` within this context."""
    register = machines.node_of

    def node_of(machine: CloudMachine, now: float, **more: Any) -> dict[str, Any]:
        node = register(machine, now, **more)
        change(node)
        return node

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "node_of", node_of)
        yield


def selecting(name: str, **wants: str) -> dict[str, Any]:
    """A pod of one GPU that selects by the label ``team``, with further requests."""
    body = pod(name)
    body["spec"]["nodeSelector"] = {"team": "ml"}
    body["spec"]["containers"][0]["resources"]["requests"] |= wants
    body["spec"]["containers"][0]["resources"]["limits"] |= {key: amount for key, amount in wants.items() if key.startswith("hugepages")}
    return body


async def test_f88_a_node_that_lacks_the_label_its_pods_select_is_reported_and_not_bought_again() -> None:
    def forget(node: dict[str, Any]) -> None:
        del node["metadata"]["labels"]["team"]

    with nodes_that(forget):
        async with recorded(LABELLED) as (here, service):
            await here.user.create(PODS, selecting("a"), namespace="default")
            reported_at, opened = 0.0, 0.0
            while not (reported_at and opened):
                assert here.now() < BEGAN + 600.0, await events(here)
                await here.sleep(1.0)
                happened = await events(here)
                reported_at = reported_at or here.now() * any(
                    about == "Pod a" and reason == "PromiseBroken" for about, reason, _ in happened
                )
                if reported_at and not opened:
                    # Another kind of pod that selects by the label: the lesson from the machine holds for it, too.
                    await here.user.create(PODS, selecting("b", memory="2Gi"), namespace="default") if reported_at == here.now() else None
                opened = opened or here.now() * any(reason == "NodeOpened" for _, reason, _ in happened)
            await here.sleep(2400.0)
            (text,) = {note for about, reason, note in await events(here) if (about, reason) == ("Pod a", "PromiseBroken")}
            lines = why_pod(service.latest, "default/a", (), here.now()).now

    assert reported_at <= opened
    assert "and does not admit the pod: label team=ml wanted, node has no label team" in text
    assert len(here.cluster.core.history()) == 1
    assert any("the label team=ml is on none of its 1 node" in line for line in lines)


async def test_f88_a_machine_stays_closed_until_a_label_that_is_set_seconds_after_registration() -> None:
    late: list[str] = []

    def forget(node: dict[str, Any]) -> None:
        del node["metadata"]["labels"]["team"]
        late.append(node["metadata"]["name"])

    with nodes_that(forget):
        async with faulty(LABELLED) as here:
            await here.user.create(PODS, selecting("a"), namespace="default")
            while not late:
                assert here.now() < BEGAN + 600.0
                await here.sleep(1.0)
            await here.sleep(15.0)
            await here.user.merge_patch(NODES, late[0], {"metadata": {"labels": {"team": "ml"}}})
            await here.sleep(120.0)

            assert await here.bound() == {"a": late[0]}
            assert len(here.cluster.core.history()) == 1


async def test_f89_plans_use_resources_that_existing_nodes_have_beyond_their_node_template() -> None:
    """Huge pages, which no tag announces, and memory that the rule reserves for the hypervisor."""

    def more(node: dict[str, Any]) -> None:
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts |= {"hugepages-2Mi": "5120Mi", "memory": str(int(amounts["memory"]) + 2**30)}

    with nodes_that(more):
        async with faulty(LABELLED) as here:
            await here.user.create(PODS, selecting("first"), namespace="default")
            await here.sleep(200.0)
            await here.user.create(PODS, selecting("huge", **{"hugepages-2Mi": "5120Mi"}), namespace="default")
            await here.sleep(200.0)

            assert await all_bound(here)
            assert len(here.cluster.core.history()) == 2
