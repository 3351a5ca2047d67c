"""An installation that starts with almost no rights and is granted one right after the other."""

import asyncio

from tests.e2e.objects import deployment, pod_spec
from tests.e2e.rights import QUICK, Installed, Outcomes, Right, installed, keep
from tests.e2e.stage import PATIENCE, Controller, Stage, until

from gpuscaler.embedded.nodes.plugins import NAMESPACE as PLUGINS
from gpuscaler.kube.resources import LEASES

#: Rights that the controller cannot start without, and rights that it finds missing one after the other until a pod runs.
FIRST = [Right("list", "nodes"), Right("list", "pods"), Right("get", "configmaps"), Right("get", "leases", LEASES.group)]
NEXT = [
    Right("get", "namespaces"),
    Right("create", "leases", LEASES.group),
    Right("create", "configmaps"),
    Right("create", "nodes"),
    Right("get", "pods"),
    Right("patch", "nodes/status"),
    Right("delete", "nodes"),
]
#: Its namespace and its pools. It simulates the kubelets of its machines itself.
BEGINS, SMALL, OTHER = "begins", "small", "other"
#: With this seed, the first machine has its image within 11 seconds.
SEED = 80087
#: The exit status of a command that lacks a right that it needs.
FORBIDDEN = 5


async def begins(made: Stage, outcomes: Outcomes) -> None:
    here = await installed(made, BEGINS)
    pools = [{"name": name, "types": ["g4dn.xlarge"]} for name in (SMALL, OTHER)]
    cloud = {"boot": "1s", "device_plugin_delay": "1s", "capacity_error_delay": "300ms", "seed": SEED}
    words = (here.stage.run_file(BEGINS, pools, cloud=cloud, **QUICK), await here.stage.kubeconfig())
    for right in FIRST:
        async with here.without(right):
            await keep(outcomes, [right], _ends(here, here.stage.start(*words, name=BEGINS), right))
    await here.take(*NEXT)
    await made.namespace(SMALL)
    await made.create(deployment("serve", 1, pod_spec(SMALL)), SMALL)
    controller = here.stage.start(*words, name=BEGINS)
    steps = [_sees_no_namespace, _leads, _remembers, _registers, _runs, _shows, _clears]
    for right, step in zip(NEXT, steps, strict=True):
        await keep(outcomes, [right], step(here, controller, right))
        await here.give(right)
    controller.check()


async def _ends(here: Installed, controller: Controller, right: Right) -> None:
    """Without this right, the controller exits and reports why. Later steps have this right."""
    code = await asyncio.to_thread(controller.process.wait, PATIENCE)
    assert code == FORBIDDEN, controller.log.read_text()
    await here.named(controller, right)


async def _sees_no_namespace(here: Installed, controller: Controller, right: Right) -> None:
    """The namespace may exist even if it cannot be read, so the controller continues without this right."""
    await here.named(controller, right)


async def _leads(here: Installed, controller: Controller, right: Right) -> None:
    await here.named(controller, right)
    assert not _leading(controller)
    await here.give(right)

    async def leads() -> bool:
        return _leading(controller)

    await until("it leads", leads)


def _leading(controller: Controller) -> bool:
    return any(line["message"] == "this process leads" for line in controller.lines())


async def _remembers(here: Installed, controller: Controller, right: Right) -> None:
    """An order that cannot be saved is never sent, however often saving is tried."""
    await here.named(controller, right)
    assert not controller.logged("ordered")
    await here.give(right)

    async def ordered() -> bool:
        return bool(controller.logged("ordered", pool=SMALL))

    await until("a machine is ordered", ordered)


async def _registers(here: Installed, controller: Controller, right: Right) -> None:
    await here.named(controller, right)
    assert await here.stage.nodes(SMALL) == []
    await here.give(right)
    await until("the machine is a node", lambda: here.stage.nodes(SMALL))


async def _runs(here: Installed, controller: Controller, right: Right) -> None:
    """The device plugin's pod is the first that has to run on the machine."""
    await here.named(controller, right)
    (node,) = await here.stage.nodes(SMALL)

    async def phases() -> set[str]:
        pods = await here.stage.pods(PLUGINS)
        return {pod["status"]["phase"] for pod in pods if pod["spec"].get("nodeName") == node["metadata"]["name"]}

    assert await phases() == {"Pending"}
    await here.give(right)

    async def runs() -> bool:
        return await phases() == {"Running"}

    await until("the device plugin runs", runs)


async def _shows(here: Installed, controller: Controller, right: Right) -> None:
    await here.named(controller, right)
    (node,) = await here.stage.nodes(SMALL)
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]
    await here.give(right)
    await _placed(here, SMALL)
    await here.stage.bound(SMALL, 1)


async def _placed(here: Installed, space: str) -> None:
    async def observed() -> bool:
        return any(pod["spec"].get("nodeName") for pod in await here.stage.pods(space))

    await until(f"the pod of {space} has a node", observed)


async def _clears(here: Installed, controller: Controller, right: Right) -> None:
    """The Node of a terminated machine stays. Other machines are still bought."""
    made = here.stage
    await made.scale("Deployment", "serve", SMALL, 0)
    await here.named(controller, right)
    await made.namespace(OTHER)
    await made.create(deployment("serve", 1, pod_spec(OTHER)), OTHER)
    await _placed(here, OTHER)
    assert len(await made.nodes(SMALL)) == 1
    await here.give(right)
    await made.empty(SMALL)
    assert [len(controller.logged("ordered", pool=pool)) for pool in (SMALL, OTHER)] == [1, 1]
