"""Machines that open for a moment for DaemonSets as shipped, and what goes wrong in that time."""

from itertools import pairwise

import pytest
from tests.control.test_windows import BIND, NODE, SHOWS, STEADY, is_closed, shows_gpus, watch_nodes
from tests.faults.guarding import Watch
from tests.faults.kit import faulty, status

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes.plugins import NAMESPACE, PLUGINS
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.transport import Request
from gpuscaler.simulation.cloud.delays import Delay, Delays

MAKING = f"/namespaces/{NAMESPACE}/pods"


def times_opened(seen: list[tuple[float, list[bool], list[bool]]]) -> int:
    return sum(before == [True] and after == [False] for (_, before, _), (_, after, _) in pairwise(seen))


async def test_f104_a_daemon_set_that_may_not_create_pods_is_reported_and_gets_windows_less_and_less_often() -> None:
    async with faulty(BIND, delays=STEADY) as here:
        refusal = Failure(403, "Forbidden", 'pods "nvidia" is forbidden: exceeded quota: few')
        here.cluster.api.faults.add(Fault("POST", MAKING, times=10_000, refusal=refusal))
        await here.submit("p")
        seen = await watch_nodes(here, NODE + 25.0)
        assert times_opened(seen) == 1
        assert sum(closed == [False] for _, closed, _ in seen) < 120, "no longer than ten seconds"
        assert times_opened(await watch_nodes(here, 100.0)) == 1, "after a minute, and then after two"
        (trouble,) = [trouble for trouble in (await status(here)).troubles if "DaemonSet" in trouble]
        assert f"DaemonSet {NAMESPACE}/{PLUGINS[0].name} has no pod on node" in trouble
        here.cluster.api.faults.clear()
        await here.sleep(120.0)
        assert all((await here.bound()).values())
        assert len(here.cluster.core.history()) == 1


class Deadly(Watch):
    """Kills the controller before it closes a machine again."""

    async def write(self, request: Request) -> None:
        await super().write(request)
        if b'"gpuscaler.io/arriving","effect":"NoSchedule"' in request.body.replace(b" ", b"") and request.method == "PATCH":
            self._here.deaths.dead.set()


async def test_f105_if_a_leader_dies_during_a_window_the_next_leader_closes_the_machine() -> None:
    async with faulty(BIND, delays=STEADY, watch=Deadly) as here:
        await here.submit("p")
        assert await here.until_dead(60.0)
        assert [is_closed(node) for node in await here.nodes()] == [False]
        here.watchman = Watch(here)
        here.start()
        await here.sleep(1.0)
        (node,) = await here.nodes()
        assert (is_closed(node), shows_gpus(node)) == (True, False)
        await here.sleep(30.0)

        assert here.notes.outcomes == {"Kept": 1}
        assert len(here.cluster.core.history()) == 1


async def test_f106_a_node_registered_without_our_taint_is_tainted_before_it_shows_its_gpus() -> None:
    async with faulty(BIND, delays=STEADY, steered=False) as here:
        await here.submit("p")
        seen = await watch_nodes(here, SHOWS + 10.0)

        assert all(closed == [True] for at, closed, gpus in seen if gpus == [False] and at > NODE + 2.0)
        assert here.notes.outcomes == {"Kept": 1}


async def test_f107_a_machine_whose_window_cannot_be_closed_still_gets_its_promised_pods() -> None:
    async with faulty(BIND, delays=STEADY) as here:
        await here.submit("p")
        while all(map(is_closed, await here.nodes())):
            await here.sleep(0.05)
        # Until its plugin runs, nothing but its kubelet writes to the node.
        here.cluster.api.faults.add(Fault("PATCH", r"/nodes/[^/]+\?", refusal=broken()))
        while not any(map(shows_gpus, await here.nodes())):
            await here.sleep(0.5)
        await here.sleep(5.0)
        (node,) = await here.nodes()
        assert (is_closed(node), node["spec"]["unschedulable"]) == (False, True)
        assert (await here.bound())["p"] == node["metadata"]["name"]
        here.cluster.api.faults.clear()
        await here.sleep(20.0)

        (node,) = await here.nodes()
        assert (is_closed(node), node["spec"].get("unschedulable")) == (False, None)
        assert len(here.cluster.core.history()) == 1


async def test_f108_a_node_that_a_user_cordons_stays_cordoned_and_has_no_window() -> None:
    async with faulty(BIND, delays=STEADY) as here:
        await here.submit("p")
        while not await here.nodes():
            await here.sleep(0.01)
        (node,) = await here.nodes()
        assert is_closed(node)
        await here.user.merge_patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})
        await here.sleep(30.0)

        (node,) = await here.nodes()
        assert (is_closed(node), node["spec"]["unschedulable"], shows_gpus(node)) == (True, True, False)


async def test_f108_a_machine_that_a_user_cordons_before_it_opens_stays_cordoned() -> None:
    async with faulty(BIND, delays=STEADY) as here:
        await here.submit("p")
        while not all((await here.bound()).values()):
            await here.sleep(0.1)
        (node,) = await here.nodes()
        assert is_closed(node)
        await here.user.merge_patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})
        await here.sleep(10.0)

        (node,) = await here.nodes()
        assert (is_closed(node), node["spec"]["unschedulable"]) == (False, True)


@pytest.mark.parametrize("watch_lag", [0.0, 3.0])
@pytest.mark.parametrize("steering", ["bind", "nominate"])
async def test_f128_machines_that_are_ready_before_a_busy_api_server_has_closed_them_are_not_bought_twice(
    steering: str, watch_lag: float
) -> None:
    quick = Delays(boot=Delay(20, 20, 20), device_plugin=Delay(0.5, 1.0, 4.0), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
    limits, pools = "limits: {gpus: 100, machines: 100, machines_per_minute: 100}\n", BIND.replace("bind", steering)
    async with faulty(limits + pools, delays=quick, steered=False, watch_lag=watch_lag) as here:
        here.cluster.api.faults.add(Fault("PATCH", r"/nodes/[^/]+\?", chance=0.7, delay=3.0))
        for number in range(40):
            await here.submit(f"p{number}")
        await here.sleep(120.0)

        assert all((await here.bound()).values())
        assert not any(map(is_closed, await here.nodes()))
        assert len(here.cluster.core.history()) == 40
