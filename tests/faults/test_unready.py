"""F75: nodes that stop answering for good are reported, and their machines are ended, carefully."""

import msgspec
import pytest
from tests.control.world import World
from tests.faults.kit import all_bound, faulty, set_ready, status, taints, watch_of
from tests.objects import pod

from gpuscaler.clouds.protocol import MAINTENANCE, Notice
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.simulation.cloud.provider import provider_id

ONE = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    max: 1
"""
TWO = ONE.replace("max: 1", "max: 2")
FOUR = ONE.replace("max: 1", "max: 5")
MINUTE = 60.0


async def silence_nodes(here: World, *pods: str) -> list[str]:
    """Return the nodes that pods of these names run on, after they all stopped answering."""
    for name in pods:
        await here.submit(name)
    while not await all_bound(here):
        await here.sleep(1.0)
    bound = await here.bound()
    for name in pods:
        await set_ready(here, bound[name], "Unknown")
    return [bound[name] for name in pods]


async def test_f75_a_node_that_stays_not_ready_is_reported_and_replaced_after_45_minutes() -> None:
    async with faulty(ONE) as here:
        (name,) = await silence_nodes(here, "first")
        await here.user.delete(PODS, "first", namespace="default", grace=0)
        await here.submit("next")
        await here.sleep(4 * MINUTE)
        assert (await status(here)).troubles == ("",)
        await here.sleep(2 * MINUTE)
        (text,) = [trouble for trouble in (await status(here)).troubles if trouble]
        assert f"node {name} of pool gpu has not been Ready since 20" in text
        assert "and costs $0.53/h" in text
        assert "is ended 45m after it stopped being Ready (unready_after)" in text
        assert [(remark.node, name in remark.text) for remark in here.notes.remarks] == [(name, True)]
        await here.sleep(38 * MINUTE)
        assert watch_of(here).ended == []
        await here.sleep(6 * MINUTE)

        assert len(watch_of(here).ended) == 1
        assert (await here.bound())["next"] == here.cluster.core.list()[0].id != name
        assert (await status(here)).unready == ()


async def test_f75_a_node_that_becomes_ready_again_during_its_drain_stays() -> None:
    async with faulty(ONE) as here:
        (name,) = await silence_nodes(here, "first")
        while not any(LEAVING_TAINT in taints(node) for node in await here.nodes()):
            await here.sleep(1.0)
        await set_ready(here, name, "True")
        await here.sleep(5 * MINUTE)

        assert watch_of(here).ended == []
        assert [taints(node) for node in await here.nodes()] == [set()]
        assert ("it is Ready again") in [why for _, why in here.notes.kept]


async def test_f75_the_second_not_ready_node_of_a_pool_is_ended_ten_minutes_after_the_first() -> None:
    async with faulty(TWO) as here:
        await silence_nodes(here, "a", "b")
        while len(watch_of(here).ended) < 2:
            await here.sleep(1.0)
        first, second = sorted(machine.ended_at or 0.0 for machine in here.cluster.core.history() if machine.ended_at is not None)

        assert second - first >= 10 * MINUTE - 1.0


async def test_f75_no_machine_is_ended_while_most_nodes_of_its_zone_are_not_ready() -> None:
    async with faulty(FOUR) as here:
        await here.submit("fine")
        names = await silence_nodes(here, "a", "b", "c")
        await here.sleep(75 * MINUTE)
        assert watch_of(here).ended == []
        assert any("is not ended: most nodes of zone us-east-1a are not Ready" in trouble for trouble in (await status(here)).troubles)
        for name in names[1:]:
            await set_ready(here, name, "True")
        await here.sleep(5 * MINUTE)

        assert watch_of(here).ended == [f"simulated:///us-east-1a/{names[0]}"]


async def test_f75_no_machine_is_ended_while_too_many_nodes_of_the_cluster_are_not_ready() -> None:
    """Half of each zone, which alone says nothing about the zone."""
    zones = {"us-east-1a": 4, "us-east-1b": 4, "us-east-1c": 2}
    async with faulty(ONE.replace("[us-east-1a]", f"[{', '.join(zones)}]").replace("max: 1", "max: 12")) as here:
        for zone, many in zones.items():
            for number in range(many):
                made = pod(f"{zone}-{number}", 1, {})
                made["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
                await here.user.create(PODS, made, namespace="default")
        while not await all_bound(here):
            await here.sleep(1.0)
        silent = [node for name, node in sorted((await here.bound()).items()) if int(name[-1]) < 2]
        for name in silent:
            await set_ready(here, name, "Unknown")
        await here.sleep(75 * MINUTE)
        assert len(silent) == 6
        assert watch_of(here).ended == []
        assert any("is not ended: too many nodes are not Ready at once" in trouble for trouble in (await status(here)).troubles)
        for name in silent[1:]:
            await set_ready(here, name, "True")
        await here.sleep(5 * MINUTE)

        assert [machine.rpartition("/")[2] for machine in watch_of(here).ended] == silent[:1]


async def test_f75_a_machine_that_the_cloud_is_about_to_repair_is_left_to_the_cloud() -> None:
    async with faulty(ONE) as here:
        await silence_nodes(here, "first")
        (machine,) = here.cluster.core.list()
        here.announced.append(Notice(MAINTENANCE, provider_id(machine), here.now() + 115 * MINUTE))
        await here.sleep(54 * MINUTE)

        assert watch_of(here).ended == []
        assert any("the cloud has announced work on this machine" in trouble for trouble in (await status(here)).troubles)


@pytest.mark.parametrize("how", ["never", "annotated"])
async def test_f75_a_not_ready_machine_that_a_user_excluded_from_removal_stays(how: str) -> None:
    async with faulty(f"{ONE}    unready_after: 0\n" if how == "never" else ONE) as here:
        (name,) = await silence_nodes(here, "first")
        if how == "annotated":
            annotation = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
            await here.user.merge_patch(NODES, name, {"metadata": {"annotations": annotation}})
        await here.sleep(75 * MINUTE)

        assert watch_of(here).ended == []
        assert any(f"node {name} of pool gpu has not been Ready since" in trouble for trouble in (await status(here)).troubles)


async def test_f75_a_not_ready_condition_dated_hours_ago_by_a_wrong_clock_ends_no_machine_within_minutes() -> None:
    async with faulty(ONE) as here:
        await here.submit("first")
        while not await all_bound(here):
            await here.sleep(1.0)
        (node,) = await here.nodes()
        node["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}]
        await here.user.replace(NODES, node["metadata"]["name"], node, subresource="status")
        await here.sleep(4 * MINUTE)

        assert watch_of(here).ended == []
        assert msgspec.json.decode(await here.user.get(NODES, node["metadata"]["name"]))["spec"].get("taints") is None
