"""How soon a machine is ready with NVIDIA's device plugin as shipped, a real scheduler and a real DaemonSet controller."""

import asyncio

import pytest
from tests.e2e.objects import pod
from tests.e2e.stage import CLOUD, Stage, free_port, stage, until, version
from tests.objects import Json

from gpuscaler.embedded.nodes.plugins import NAMESPACE, PLUGINS
from gpuscaler.kube.errors import Conflict, NotFound
from gpuscaler.kube.resources import DAEMON_SETS, NODES
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT

pytestmark = pytest.mark.e2e
#: A cloud whose machines all take equally long.
EVEN: Json = {**CLOUD, "boot": ["4s", "4s", "4s"], "device_plugin_delay": ["2s", "2s", "2s"]}
#: Pools: without our taint, with the taint from the kubelet, and with a kubelet that does not set it.
FREE, SET, UNSET = "free", "set", "unset"
POOLS: list[Json] = [
    {"name": FREE, "types": ["g4dn.xlarge"], "idle_after": "10m", "steering": "off"},
    {"name": SET, "types": ["g4dn.xlarge"], "idle_after": "10m"},
    {"name": UNSET, "types": ["g4dn.xlarge"], "idle_after": "10m"},
]
#: Seconds more that still count as equally fast.
MORE = 2.0


def is_closed(node: Json) -> bool:
    return any(taint["key"] == ARRIVING_TAINT for taint in node["spec"].get("taints") or ())


async def bare(made: Stage, pool: str) -> None:
    """Remove our taint from each node of ``pool`` once, as soon as the node exists, as if its kubelet had not set it."""
    done: set[str] = set()
    while True:
        for node in await made.nodes(pool):
            name, version_ = node["metadata"]["name"], node["metadata"]["resourceVersion"]
            if name in done or not is_closed(node):
                continue
            left = [taint for taint in node["spec"]["taints"] if taint["key"] != ARRIVING_TAINT]
            try:
                body = {"metadata": {"resourceVersion": version_}, "spec": {"taints": left or None}}
                await made.admin.merge_patch(NODES, name, body)
            except (Conflict, NotFound):
                continue
            done.add(name)
        await asyncio.sleep(0.05)


def test_a_machine_with_our_taint_is_ready_as_fast_as_one_without_it() -> None:
    asyncio.run(measured())


async def measured() -> None:
    async with stage("windows") as made, made.kubelets():
        await made.install()
        port = free_port()
        made.start(made.run_file("run", POOLS, cloud=EVEN, port=port), await made.kubeconfig(), port=port)
        await made.namespace("w")
        stripping = [asyncio.create_task(bare(made, pool)) for pool in (FREE, UNSET)]
        for pool in (FREE, SET, UNSET):
            await made.create(pod(pool, pool), "w")
        clock = asyncio.get_running_loop().time
        arrived: dict[str, float] = {}
        shown: dict[str, float] = {}
        bound: dict[str, float] = {}
        open_for: dict[str, int] = {SET: 0, UNSET: 0}

        async def all_run() -> bool:
            for pool in (FREE, SET, UNSET):
                for node in await made.nodes(pool):
                    arrived.setdefault(pool, clock())
                    has = node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") != "0"
                    if has:
                        shown.setdefault(pool, clock())
                    elif pool in open_for and not is_closed(node):
                        open_for[pool] += 1
            for bound_pod in await made.pods("w"):
                if bound_pod["spec"].get("nodeName"):
                    bound.setdefault(bound_pod["metadata"]["name"], clock())
            return len(bound) == len(shown) == len(arrived) == 3

        await until("all pods are bound", all_run, 120.0)
        for task in stripping:
            task.cancel()
        took = {pool: (round(shown[pool] - arrived[pool], 1), round(bound[pool] - arrived[pool], 1)) for pool in arrived}
        print(f"\nKubernetes {version()}: seconds from node to GPUs, and to the pod bound: {took}; seen open without GPUs: {open_for}")

        daemons = [pod for pod in await made.pods(NAMESPACE) if pod["metadata"]["name"].startswith(PLUGINS[0].name)]
        assert len(daemons) == 3
        assert all(toleration["key"] != ARRIVING_TAINT for pod_ in daemons for toleration in pod_["spec"]["tolerations"])
        for pool in (SET, UNSET):
            assert took[pool][0] <= took[FREE][0] + MORE
            assert took[pool][1] <= took[FREE][1] + MORE


def test_a_kept_machine_gets_the_new_device_plugin_after_an_update() -> None:
    asyncio.run(updated())


async def updated() -> None:
    async with stage("windows-kept") as made, made.kubelets():
        await made.install()
        port = free_port()
        pool: Json = {"name": "kept", "types": ["g4dn.12xlarge"], "idle_after": "10m", "min_gpus_per_pod": 4}
        made.start(made.run_file("run", [pool], cloud=EVEN, port=port), await made.kubeconfig(), port=port)
        await made.namespace("w")
        await made.create(pod("large", "kept", gpus=4), "w")
        await made.bound("w", 1)

        async def node() -> Json:
            (current,) = await made.nodes("kept")
            return current

        async def kept() -> bool:
            return [taint["key"] for taint in (await node())["spec"].get("taints") or ()] == [KEPT_TAINT]

        async def plugin() -> Json | None:
            owned = [pod for pod in await made.pods(NAMESPACE) if pod["metadata"]["name"].startswith(PLUGINS[0].name)]
            return owned[0] if len(owned) == 1 and "deletionTimestamp" not in owned[0]["metadata"] else None

        await until("the machine has the taint of kept machines", kept, 30.0)
        before = await until("the device plugin runs", plugin, 30.0)
        template = {"spec": {"template": {"spec": {"containers": [{"name": "plugin", "image": "nvidia-device-plugin-ds:2"}]}}}}
        await made.admin.merge_patch(DAEMON_SETS, PLUGINS[0].name, template, namespace=NAMESPACE)
        began = asyncio.get_running_loop().time()

        async def anew() -> bool:
            current = await plugin()
            same = current is None or current["metadata"]["uid"] == before["metadata"]["uid"]
            return not same and current is not None and current["status"].get("phase") == "Running"

        async def whole() -> bool:
            return await kept() and (await node())["status"]["allocatable"].get("nvidia.com/gpu") == "4"

        await until("the new device plugin runs", anew, 60.0)
        await until("the machine is closed again and shows its GPUs", whole, 60.0)
        took = asyncio.get_running_loop().time() - began
        print(f"\nKubernetes {version()}: {took:.1f} s from the update until a kept machine shows its GPUs again")
