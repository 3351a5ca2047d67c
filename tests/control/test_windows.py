"""Windows of machines for DaemonSets without a matching toleration, as seen from outside the controller."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.control.world import ONE_GPU_MACHINES, DeathPlan, World, world
from tests.objects import pod

from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes import scheduling
from gpuscaler.embedded.nodes.plugins import NAMESPACE, PLUGINS
from gpuscaler.kube.resources import DAEMON_SETS, PODS
from gpuscaler.model.well_known import CLOSING_TAINTS, KEPT_TAINT
from gpuscaler.simulation.cloud.delays import Delay, Delays

pytestmark = pytest.mark.looptime(noop_cycles=1)

BIND = f"steering: bind\n{ONE_GPU_MACHINES}"
GPU = "nvidia.com/gpu"
#: How long after its order a machine is a node, and how long after its device plugin runs it shows GPUs, in seconds.
STEADY = Delays(boot=Delay(20, 20, 20), device_plugin=Delay(5, 5, 5), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
NODE, SHOWS = 21.0, 26.0


def is_closed(node: Mapping[str, Any]) -> bool:
    return any(taint["key"] in CLOSING_TAINTS and taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints") or ())


def shows_gpus(node: Mapping[str, Any]) -> bool:
    return str(node["status"]["allocatable"].get(GPU, "0")) != "0"


async def plugin_pods(here: World) -> list[dict[str, Any]]:
    """The pods of NVIDIA's device plugin."""
    wire_pods = [msgspec.json.decode(body) for body in await here.user.list_all(PODS, namespace=NAMESPACE)]
    return [wire_pod for wire_pod in wire_pods if wire_pod["metadata"]["ownerReferences"][0]["name"] == PLUGINS[0].name]


async def watch_nodes(here: World, seconds: float) -> list[tuple[float, list[bool], list[bool]]]:
    """For each tenth of a second: the time, which nodes are closed, and which show GPUs."""
    began, seen = here.now(), []
    for _ in range(int(seconds * 10)):
        await here.sleep(0.1)
        nodes = await here.nodes()
        seen.append((here.now() - began, [is_closed(node) for node in nodes], [shows_gpus(node) for node in nodes]))
    return seen


@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("steering", ["bind", "nominate"])
async def test_an_unmodified_device_plugin_runs_before_the_machine_opens(steering: str, steered: bool) -> None:
    async with world(BIND.replace("bind", steering), delays=STEADY, steered=steered) as here:
        here.start()
        await here.submit("p")
        seen = await watch_nodes(here, 45.0)

        shown = next(at for at, _, gpus in seen if all(gpus) and gpus)
        assert shown < SHOWS + 2.0
        open_early = [at for at, closed, gpus in seen if closed == [False] and gpus == [False]]
        assert len(open_early) < 10, "it is open for less than a second"
        assert all(closed == [True] for at, closed, gpus in seen if NODE + 2.0 < at <= shown)
        assert all((await here.bound()).values())
        assert here.notes.outcomes == {"Kept": 1}
        assert len(here.cluster.core.history()) == 1


async def test_pending_pods_without_gpus_are_not_scheduled_during_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    # kube-scheduler tries them at once when a taint is removed; the embedded one tries them at each change, so they would be backed off.
    monkeypatch.setattr(scheduling, "LONGEST_BACKOFF", 0.05)
    async with world(BIND, delays=STEADY) as here:
        here.start()
        for number in range(20):
            await here.user.create(PODS, pod(f"small{number}", 0, cpu="3"), namespace="default")
        await here.user.create(PODS, pod("large", cpu="3"), namespace="default")
        seen = await watch_nodes(here, 120.0)

        assert any(closed == [False] and gpus == [False] for _, closed, gpus in seen)
        bound = await here.bound()
        assert [name for name, node in bound.items() if node] == ["large"]
        assert len(here.cluster.core.history()) == 1


async def test_an_updated_device_plugin_runs_again_before_a_waiting_gang_is_bound() -> None:
    gang: Any = {"gpuscaler.io/gang": "all", "gpuscaler.io/gang-size": "2"}
    async with world(BIND, delays=STEADY) as here:
        here.start()
        for name in ("p0", "p1"):
            await here.submit(name, **gang)
        await here.sleep(NODE + 2.0)
        first, second = (machine.id for machine in here.cluster.core.history())
        here.cluster.machines.devices.restart(second, seconds=60.0)
        await here.sleep(8.0)

        async def has_gpus() -> bool:
            return any(shows_gpus(node) for node in await here.nodes() if node["metadata"]["name"] == first)

        assert await has_gpus()
        for plugin_pod in await plugin_pods(here):
            if plugin_pod["spec"].get("nodeName") == first:
                await here.user.delete(PODS, plugin_pod["metadata"]["name"], namespace=NAMESPACE, grace=0)
        await here.sleep(2.0)
        assert not await has_gpus()
        await here.sleep(8.0)
        assert await has_gpus()
        assert not any((await here.bound()).values())
        await here.sleep(60.0)

        assert all((await here.bound()).values())
        assert here.notes.outcomes == {"Kept": 2}
        assert len(here.cluster.core.history()) == 2


async def test_a_pod_scheduled_during_a_window_is_counted_and_pods_that_no_longer_fit_are_planned_again() -> None:
    async with world(BIND, delays=STEADY) as here:
        here.start()
        await here.user.create(PODS, pod("large", cpu="3"), namespace="default")
        await here.sleep(NODE + 2.0)
        (first,) = here.cluster.core.list()
        await here.user.create(PODS, pod("small", 0, cpu="2"), namespace="default")
        await here.user.bind("default", "small", first.id)
        await here.sleep(90.0)

        assert (await here.bound())["large"] not in ("", first.id)
        assert len(here.cluster.core.history()) == 2


async def test_a_daemon_set_whose_pods_are_refused_is_reported_and_gets_another_window() -> None:
    async with world(BIND, delays=STEADY) as here:
        refusal = Failure(403, "Forbidden", 'pods "nvidia-device-plugin-daemonset-x" is forbidden: exceeded quota: few')
        here.cluster.api.faults.add(Fault("POST", f"/namespaces/{NAMESPACE}/pods", times=10_000, refusal=refusal))
        here.start()
        await here.submit("p")
        await here.sleep(NODE + 20.0)

        remarks = [remark.text for remark in here.notes.remarks if "DaemonSet" in remark.text]
        assert len(remarks) == 1
        assert f"DaemonSet {NAMESPACE}/{PLUGINS[0].name} has no pod on node" in remarks[0]
        assert [is_closed(node) for node in await here.nodes()] == [True]
        here.cluster.api.faults.clear()
        seen = await watch_nodes(here, 80.0)
        assert any(all(gpus) for _, _, gpus in seen)
        assert all((await here.bound()).values())
        assert here.controller is not None
        assert here.controller.memory.windows == {}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("steps", range(5, 14))
async def test_a_window_is_finished_by_the_next_controller_if_the_first_one_dies(steps: int, before: bool) -> None:
    async with world(BIND, delays=STEADY) as here:
        here.start(DeathPlan(steps, before=before))
        await here.submit("p")
        await here.until_dead(60.0)
        here.start()
        seen = await watch_nodes(here, 90.0)

        assert all((await here.bound()).values())
        assert set(here.notes.outcomes) == {"Kept"}
        assert len(here.cluster.core.history()) == 1
        assert sum(closed == [False] and gpus == [False] for _, closed, gpus in seen) < 15


async def test_no_machine_has_a_window_if_no_daemon_set_needs_one() -> None:
    async with world(BIND, delays=STEADY) as here:
        tolerant = PLUGINS[0].manifest()
        tolerant["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        await here.user.create(DAEMON_SETS, tolerant, namespace=NAMESPACE)
        here.start()
        await here.submit("p")
        seen = await watch_nodes(here, 45.0)

        assert not any(closed == [False] and gpus == [False] for _, closed, gpus in seen)
        assert all((await here.bound()).values())


async def test_a_kept_machine_has_a_window_for_an_updated_device_plugin_and_gets_no_small_pods() -> None:
    async with world(BIND.replace("g4dn.xlarge", "g4dn.12xlarge") + "    min_gpus_per_pod: 4\n    idle_after: 1h\n", delays=STEADY) as here:
        here.start()
        await here.submit("first", 4, **{"gpuscaler.io/run-for": "20s"})
        await here.sleep(SHOWS + 40.0)
        (node,) = await here.nodes()
        assert [taint["key"] for taint in node["spec"]["taints"]] == [KEPT_TAINT]
        (before,) = await plugin_pods(here)
        template = {"spec": {"template": {"spec": {"containers": [{"name": "plugin", "image": "nvidia:2"}]}}}}
        await here.user.merge_patch(DAEMON_SETS, PLUGINS[0].name, template, namespace=NAMESPACE)
        began, states = here.now(), []
        for _ in range(400):
            await here.sleep(0.1)
            (node,) = await here.nodes()
            states.append(not is_closed(node))
            assert is_closed(node) == (not node["spec"].get("unschedulable")), "only pods of DaemonSets may come"
        (after,) = await plugin_pods(here)

        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert (shows_gpus(node), is_closed(node)) == (True, True)
        assert 0 < sum(states) < 20
        assert here.now() - began < 41.0
        await here.submit("second", 4)
        await here.sleep(20.0)
        assert (await here.bound())["second"] == node["metadata"]["name"]
        assert len(here.cluster.core.history()) == 1
