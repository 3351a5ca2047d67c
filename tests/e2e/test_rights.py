"""The controller with one right missing: it names the right, continues with everything else, and recovers once it has the right.

Every right that the chart grants has its case here. Several installations run side by side, each on its own pools: two that buy, one that
removes, one that simulates its nodes, one that loses rights to read, and one that starts with almost no rights.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import structlog
from tests.e2e.beginning import BEGINS, begins
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.reading import reads
from tests.e2e.rights import ELSEWHERE, NODE_LEASES, QUICK, Installed, Outcomes, Right, granted, installed, keep, limited_user
from tests.e2e.stage import CLOUD, Controller, Stage, stage, until

from gpuscaler.control.loop.cluster_writes import ClusterWriter
from gpuscaler.embedded.nodes.providers import naming_in
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import EVENTS, LEASES, NAMESPACES, PODS, WATCHED, Resource
from gpuscaler.lifecycle.actions import Act, Delete, Nominate
from gpuscaler.model.nodes import Node

pytestmark = pytest.mark.e2e

#: Number of pictures of the cluster that are taken at once.
ABREAST = 6
#: Rights to open machines, and rights to record what is done. Each says whether machines are bought without it. A controller that cannot
#: renew its lease leads until the lease has run out.
NAMING = Right("patch", "pods/status")
OPENING = [(Right("patch", "nodes"), True), (Right("create", "pods/binding"), True), (NAMING, True)]
WRITING = [
    (Right("update", "configmaps"), False),
    (Right("update", "leases", LEASES.group), True),
    (Right("create", "events", EVENTS.group), True),
]
#: Rights that the controller can do without, and rights for the first and the second step of a removal.
LOOKS = [Right("watch", "events"), Right("get", "configmaps", place=ELSEWHERE)]
MARKING, EVICTING = Right("get", "nodes"), Right("create", "pods/eviction")
COUNTING, DELETING = Right("patch", "events", EVENTS.group), Right("delete", "pods")
#: Rights to simulate nodes: their device plugins, and the Leases of their kubelets.
PLUGINS = Right("create", "daemonsets", "apps", place=ELSEWHERE)
BEGINNING, RENEWING = (Right(verb, "leases", LEASES.group, place=NODE_LEASES) for verb in ("create", "patch"))
PLAYS = "plays"
#: The namespaces of installations that buy.
OPENS, WRITES_DOWN = "opens", "writes"
#: The namespace of the installation that removes machines, the pools where it removes them, and another pool.
REMOVES, DRAINED, MARKED, BESIDE = "removes", "drained", "marked", "beside"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return asyncio.run(_play())


async def _play() -> Outcomes:
    outcomes_by_right: Outcomes = {}

    def ours(node: Node) -> bool:
        return not naming_in(BEGINS).is_ours(node.provider_id)

    with structlog.testing.capture_logs() as logs:
        async with stage("rights") as made, made.kubelets(ours):
            await asyncio.gather(
                _reading(made, outcomes_by_right),
                _buys(made, outcomes_by_right, OPENS, *OPENING),
                _buys(made, outcomes_by_right, WRITES_DOWN, *WRITING),
                _removes(made, outcomes_by_right),
                _plays(made, outcomes_by_right),
                begins(made, outcomes_by_right),
                _alone(made, outcomes_by_right, logs),
            )
    return outcomes_by_right


# Reading


async def _reading(made: Stage, outcomes: Outcomes) -> None:
    # One after the other: everything that a controller receives passes through this process, which is busy enough.
    await _all_reads(made, outcomes)
    await reads(made, outcomes)


async def _all_reads(made: Stage, outcomes: Outcomes) -> None:
    slots = asyncio.Semaphore(ABREAST)

    async def read(number: int, right: Right, resource: Resource) -> None:
        async with slots:
            await keep(outcomes, [right], _reads(made, f"reader-{number}", right, resource))

    reads = [(Right(verb, resource.plural, resource.group), resource) for resource in WATCHED for verb in ("list", "watch")]
    await asyncio.gather(*(read(number, *right) for number, right in enumerate(reads)))


async def _reads(made: Stage, name: str, right: Right, resource: Resource) -> None:
    """Take a picture of this resource and of another one, as a user with every right except the one to read this resource."""
    async with limited_user(made, name, [right]) as reader:
        other = next(item for item in (NAMESPACES, *WATCHED) if item.label != resource.label)
        picture = Picture(reader.client, clock=asyncio.get_running_loop().time, random=Random(1), resources=(resource, other))
        async with _living(picture.run()):
            mine, others = picture.reflectors

            async def reported() -> bool:
                # If the server streams lists, the right to list is never needed.
                named = any(right.denial in trouble for trouble in picture.troubles)
                return others.synced and (named or (right.verb == "list" and mine.synced))

            await until("the missing right is named, or not needed", reported)
            assert not others.trouble
            await reader.may()

            async def well() -> bool:
                return mine.synced and not mine.trouble

            if not resource.optional:
                await until("what could not be read is read", well)


@asynccontextmanager
async def _living(life: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(life)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Two that buy


async def _buys(made: Stage, outcomes: Outcomes, home: str, *cases: tuple[Right, bool]) -> None:
    here = await installed(made, home)
    pools = {right: f"{home}-{number}" for number, (right, _) in enumerate(cases)}
    steering = {right: {"steering": "nominate"} if right == NAMING else {} for right in pools}
    pool_settings = [{"name": pool, "types": ["g4dn.xlarge"], **steering[right]} for right, pool in pools.items()]
    controller = here.stage.start(here.stage.run_file(home, pool_settings, **QUICK), await here.stage.kubeconfig(), name=home)
    for right, buys in cases:
        await keep(outcomes, [right], _writes(here, controller, pool=pools[right], right=right, buys=buys))
    controller.check()


async def _writes(here: Installed, controller: Controller, *, pool: str, right: Right, buys: bool) -> None:
    made = here.stage
    await made.namespace(pool)

    async def ordered() -> bool:
        return bool(controller.logged("ordered", pool=pool))

    async with here.without(right):
        await made.create(deployment("serve", 1, pod_spec(pool)), pool)
        await here.named(controller, right)
        if buys:
            await until("a machine is ordered", ordered)
        else:
            assert not await ordered()
    await made.bound(pool, 1)
    assert len(controller.logged("ordered", pool=pool)) == 1
    await made.scale("Deployment", "serve", pool, 0)
    await made.empty(pool)


# One that simulates its nodes


async def _plays(made: Stage, outcomes: Outcomes) -> None:
    here = await installed(made, PLAYS)
    await here.take(PLUGINS, BEGINNING, RENEWING)
    cloud = {**CLOUD, "kubelet": True}
    run_file = here.stage.run_file(PLAYS, [{"name": PLAYS, "types": ["g4dn.xlarge"]}], cloud=cloud, **QUICK)
    controller = here.stage.start(run_file, await here.stage.kubeconfig(), name=PLAYS)
    await keep(outcomes, [PLUGINS, BEGINNING, RENEWING], _is_played(here, controller))
    controller.check()


async def _is_played(here: Installed, controller: Controller) -> None:
    """Machines are bought and become nodes without these rights. Their pods run once plugins can be created and Leases renewed."""
    await here.stage.create(deployment("serve", 1, pod_spec(PLAYS)), PLAYS)
    for right in (PLUGINS, BEGINNING):
        await here.named(controller, right)
    await here.give(PLUGINS, BEGINNING)
    await here.named(controller, RENEWING)
    await here.give(RENEWING)
    await here.stage.bound(PLAYS, 1)
    assert len(controller.logged("ordered", pool=PLAYS)) == 1


# One that removes


async def _removes(made: Stage, outcomes: Outcomes) -> None:
    here = await installed(made, REMOVES)
    await here.take(*LOOKS)
    pools = [{"name": DRAINED, "types": ["g4dn.12xlarge"]}, *({"name": name, "types": ["g4dn.xlarge"]} for name in (BESIDE, MARKED))]
    controller = here.stage.start(here.stage.run_file(REMOVES, pools, **QUICK), await here.stage.kubeconfig(), name=REMOVES)
    await asyncio.gather(
        keep(outcomes, LOOKS, _looks(here, controller)),
        keep(outcomes, [EVICTING], _evicts(here, controller)),
    )
    await keep(outcomes, [MARKING], _marks(here, controller))
    controller.check()


async def _looks(here: Installed, controller: Controller) -> None:
    """Without these rights the controller still acts, which another test checks at the same time."""
    for right in LOOKS:
        await here.named(controller, right)
    await here.give(*LOOKS)
    await here.well(*LOOKS)


async def _evicts(here: Installed, controller: Controller) -> None:
    """Two machines, of which one is enough once a pod with three of the four GPUs is gone."""
    made = here.stage
    for pool in (DRAINED, BESIDE):
        await made.namespace(pool)
    await made.create(deployment("goes", 1, pod_spec(DRAINED, gpus=3), movable=True), DRAINED)
    await made.create(deployment("small", 1, pod_spec(DRAINED), movable=True), DRAINED)
    await made.bound(DRAINED, 2)
    await made.create(deployment("other", 1, pod_spec(DRAINED, gpus=2), movable=True), DRAINED)
    before = await made.bound(DRAINED, 3)
    assert len(set(before.values())) == 2
    async with here.without(EVICTING):
        await made.scale("Deployment", "goes", DRAINED, 0)
        await here.named(controller, EVICTING)
        await made.create(deployment("serve", 1, pod_spec(BESIDE)), BESIDE)
        await made.bound(BESIDE, 1)
        # The machine cannot be drained, so it is not ended.
        after = await made.bound(DRAINED, 2)
        assert after == {name: node for name, node in before.items() if not name.startswith("goes")}
        assert {node["metadata"]["name"] for node in await made.nodes(DRAINED)} == set(before.values())

    async def emptied() -> bool:
        return len(await made.nodes(DRAINED)) == 1

    await until("one of the machines is gone", emptied)
    assert set((await made.bound(DRAINED, 2)).values()) == {node["metadata"]["name"] for node in await made.nodes(DRAINED)}
    assert len(controller.logged("ordered", pool=DRAINED)) == 2


async def _marks(here: Installed, controller: Controller) -> None:
    """A machine that is not needed stays while its Node cannot be read, which happens before each write. Orders continue."""
    made = here.stage
    await made.namespace(MARKED)
    await made.create(deployment("serve", 1, pod_spec(MARKED)), MARKED)
    await made.bound(MARKED, 1)

    async def is_open() -> bool:
        return not any(node["spec"].get("taints") for node in await made.nodes(MARKED))

    # Its pod is bound while the machine is closed.
    await until("the machine is open", is_open)
    async with here.without(MARKING):
        await made.scale("Deployment", "serve", MARKED, 0)
        await here.named(controller, MARKING)
        await made.scale("Deployment", "serve", BESIDE, 2)

        async def ordered() -> bool:
            return len(controller.logged("ordered", pool=BESIDE)) == 2

        await until("another machine is ordered", ordered)
        (node,) = await made.nodes(MARKED)
        assert not node["spec"].get("taints")
    await made.empty(MARKED)
    await made.bound(BESIDE, 2)


# Parts that are rarely reached, tested alone


async def _alone(made: Stage, outcomes: Outcomes, logs: list[Any]) -> None:
    await keep(outcomes, [COUNTING], _counts(made, logs))
    await keep(outcomes, [DELETING], _deletes(made))


async def _counts(made: Stage, logs: list[Any]) -> None:
    """Without the right, a repeated Event is written only once, and other Events are written. With the right, its count is raised."""
    about, other = Reference("Node", "one", uid="one"), Reference("Node", "another", uid="another")
    async with limited_user(made, "counter", [COUNTING]) as teller:
        recorder = EventRecorder(teller.client, now=time.time)
        for reference in (about, about, other):
            recorder.record(reference, "Tested", "it happened", action="Test")
            await recorder.flush()
        assert (recorder.written, recorder.dropped) == (2, 1)
        assert any(COUNTING.denial in str(log.get("problem")) for log in logs)
        await teller.may()

        async def counted() -> bool:
            recorder.record(about, "Tested", "it happened", action="Test")
            await recorder.flush()
            events = [event for event in await made.listed(EVENTS, "default") if event["regarding"].get("name") == about.name]
            return [event.get("series", {}).get("count", 1) > 2 for event in events] == [True]

        await until("the Event says how often it happened", counted)


async def _deletes(made: Stage) -> None:
    """Without the right, a pod that has to be deleted stays, and other actions are done. With the right, the pod is deleted."""
    space = "deletes"
    await made.namespace(space)
    await made.create(pod("held", "nowhere"), space)
    await made.create(pod("waits", "nowhere"), space)
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await made.pods(space)}
    acts: list[Act] = [Delete(f"{space}/held", uids["held"], "n", 1), Nominate(f"{space}/waits", uids["waits"], "n")]
    async with limited_user(made, "deleter", [DELETING]) as actor:

        async def refused() -> bool:
            held, waits = await ClusterWriter(actor.client).carry_out(acts)
            return DELETING.denial in held.detail and not waits.detail

        await until("one action is refused, and the other one is done", refused)
        assert await made.find(PODS, "held", space) is not None
        await actor.may()

        async def is_gone() -> bool:
            # A new actor each time, because an actor does not retry a forbidden action at once.
            await ClusterWriter(actor.client).carry_out(acts)
            return await made.find(PODS, "held", space) is None

        await until("the pod is gone", is_gone)


@pytest.mark.parametrize("right", granted(), ids=str)
def test_the_controller_names_a_missing_permission_continues_with_the_rest_and_recovers_once_it_is_granted(
    outcomes: Outcomes, right: Right
) -> None:
    assert right in outcomes, f"the chart grants a right that no test takes away: {right}"
    failure = outcomes[right]
    if failure is not None:
        raise failure


def test_every_permission_that_these_tests_remove_is_granted_by_the_chart(outcomes: Outcomes) -> None:
    assert set(outcomes) - set(granted()) == set()
