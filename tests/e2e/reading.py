"""A running installation that loses rights to read, one at a time: which rights it needs, and which it can do without."""

from tests.e2e.cutting import Wire, wire
from tests.e2e.objects import deployment, pod_spec
from tests.e2e.rights import QUICK, Installed, Outcomes, Right, installed, keep
from tests.e2e.stage import Controller, Stage, until

from gpuscaler.kube.resources import LEASES, RESOURCE_SLICES

#: The installation's namespace.
READS = "reads"
#: Without the first two, new machines and new pods are unknown. Few nodes have resources that need the third.
NODES, PODS, SLICES = Right("watch", "nodes"), Right("watch", "pods"), Right("watch", RESOURCE_SLICES.plural, RESOURCE_SLICES.group)
#: A pool for each case, and one (the last) for a controller that starts without being able to watch pods.
SPARED, NODELESS, PODLESS, BLIND = POOLS = "spared", "nodeless", "podless", "blind"
#: After this many renewals of its lease, a process has had the time for anything that it would do.
RENEWALS = 3


async def reads(made: Stage, outcomes: Outcomes) -> None:
    here = await installed(made, READS)
    pools = [{"name": name, "types": ["g4dn.xlarge"]} for name in POOLS]
    run_file = here.stage.run_file(READS, pools, **QUICK)
    async with wire(made.plane.url) as line:
        kubeconfig = await here.stage.kubeconfig(server=line.url)
        controller = here.stage.start(run_file, kubeconfig, name=READS)
        await keep(outcomes, [SLICES], _goes_without(here, controller, line))
        await keep(outcomes, [NODES], _loses(here, controller, line, NODES, NODELESS))
        await keep(outcomes, [PODS], _loses(here, controller, line, PODS, PODLESS))
        controller.check()
        assert await controller.end() == 0
        await here.take(PODS)
        controller = here.stage.start(run_file, kubeconfig, name=READS)
        await keep(outcomes, [PODS], _waits(here, controller, PODS, BLIND))
        await keep(outcomes, [NODES, PODS, SLICES], _gives_back(here, controller))


async def _goes_without(here: Installed, controller: Controller, line: Wire) -> None:
    """Without this right, a machine is still bought and opened."""
    async with here.without(SLICES):
        line.cut()
        await here.named(controller, SLICES)
        await _submit(here, SPARED)
        await here.stage.bound(SPARED, 1)
    await here.well(SLICES)
    await _has_one(here, controller, SPARED)


async def _loses(here: Installed, controller: Controller, line: Wire, right: Right, pool: str) -> None:
    """Lose a right while running. A running watch is not ended by that, so cut it: new watches are refused."""
    await here.take(right)
    line.cut()
    await _waits(here, controller, right, pool)


async def _waits(here: Installed, controller: Controller, right: Right, pool: str) -> None:
    """Without the right, nothing opens for a new pod, and nothing is bought if the pod cannot be seen. Other machines stay."""
    made = here.stage
    try:
        await here.named(controller, right)
        there = await made.nodes(SPARED)
        await _submit(here, pool)
        await _renewed(here)
        assert len(controller.logged("ordered", pool=pool)) <= (right != PODS)
        assert not any(pod["spec"].get("nodeName") for pod in await made.pods(pool))
        assert [node["metadata"]["uid"] for node in await made.nodes(SPARED)] == [node["metadata"]["uid"] for node in there]
        assert not any(node["spec"].get("taints") for node in await made.nodes(SPARED))
    finally:
        await here.give(right)
    await made.bound(pool, 1)
    await here.well(right)
    await _has_one(here, controller, pool)


async def _gives_back(here: Installed, controller: Controller) -> None:
    for pool in POOLS:
        await here.stage.scale("Deployment", "serve", pool, 0)
    for pool in POOLS:
        await here.stage.empty(pool)
    controller.check()


async def _submit(here: Installed, pool: str) -> None:
    """Create a pod, and wait until the scheduler has tried it without success."""
    made = here.stage
    await made.namespace(pool)
    await made.create(deployment("serve", 1, pod_spec(pool)), pool)

    async def tried() -> bool:
        conditions = [condition for pod in await made.pods(pool) for condition in pod["status"].get("conditions", [])]
        return any(condition["type"] == "PodScheduled" for condition in conditions)

    await until(f"the pod of {pool} is tried", tried)


async def _renewed(here: Installed) -> None:
    """Wait until the lease has been renewed several times from now on."""
    seen: set[str] = set()

    async def often() -> bool:
        lease = await here.stage.find(LEASES, "gpuscaler", here.stage.home)
        assert lease is not None
        seen.add(lease["spec"]["renewTime"])
        return len(seen) > RENEWALS

    await until("the lease is renewed", often)


async def _has_one(here: Installed, controller: Controller, pool: str) -> None:
    assert len(await here.stage.nodes(pool)) == len(controller.logged("ordered", pool=pool)) == 1
