"""F71 to F74: ownership of machines by the cloud's list alone, and machines that groups launch by themselves."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.clouds.aws.accounts import CLUSTER, DISCOVERED
from tests.control.aws_stage import Stage, aws_stage
from tests.control.leaving import run
from tests.control.world import BEGAN, World
from tests.faults.kit import IDLE, SPOT_FIRST, all_bound, faulty, status, taints, watch_of
from tests.faults.test_people import launch
from tests.lifecycle.registration.test_unregistered import KIND, noticed, reconciled
from tests.objects import budget, pod, workload
from tests.planning.building import NOW

from gpuscaler.clouds.protocol import INTERRUPTION, Notice
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes import machines
from gpuscaler.kube.resources import DEPLOYMENTS, NODES, POD_DISRUPTION_BUDGETS, PODS
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, Order, OrderedMachine
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Faults
from gpuscaler.simulation.cloud.machines import LOST, RECLAIMED
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import provider_id

MINIMUM = f"{IDLE}    min: 1\n"
SPOT = IDLE.replace("on-demand", "spot")
#: Spot is reclaimed at once and without notice, and pools replace lost machines.
REPLACING = Faults(
    never_registers=0.0,
    partial_grants=0.0,
    gpu_hours_between_failures=0.0,
    reclaim=Delay(0.0, 0.0, 0.0),
    without_notice=1.0,
    group_replaces=True,
)
SPOT_KEYS = [offering.key for pool in parse_policy(SPOT_FIRST).pools for offering in pool.offerings if offering.market == "spot"]


@pytest.fixture(autouse=True)
def _nodes_without_our_label(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machines.node_of

    def node_of(*what: Any, **more: Any) -> dict[str, Any]:
        node = made(*what, **more)
        node["metadata"]["labels"].pop(POOL_LABEL, None)
        return node

    monkeypatch.setattr(machines, "node_of", node_of)


async def closed(here: World) -> list[str]:
    return [node["metadata"]["name"] for node in await here.nodes() if ARRIVING_TAINT in taints(node)]


async def test_f71_machines_that_registered_while_no_controller_ran_are_opened_used_and_ended() -> None:
    async with faulty(IDLE) as here:
        await here.kill()
        await launch(here, 2)
        await here.sleep(3600.0)
        assert len(await closed(here)) == 2
        here.start()
        await run(here, "web")
        await here.sleep(60.0)
        assert await closed(here) == []
        assert await all_bound(here)
        await here.sleep(600.0)

        assert len(here.cluster.core.list()) == 1
        assert here.notes.orders == []


async def test_f71_a_closed_node_that_the_cloud_does_not_list_is_reported() -> None:
    async with faulty(IDLE) as here:
        await launch(here)
        await here.sleep(60.0)
        (ours,) = await here.nodes()
        labels = {**ours["metadata"]["labels"], POOL_LABEL: "gpu"}
        spec = {"providerID": "simulated:///us-east-1a/theirs", "taints": [{"key": ARRIVING_TAINT, "effect": "NoSchedule"}]}
        await here.user.create(NODES, {**ours, "metadata": {"name": "theirs", "labels": labels}, "spec": spec})
        await here.sleep(1200.0)

        assert await closed(here) == ["theirs"]
        assert watch_of(here).to("/nodes/theirs") == []
        (warning,) = (await status(here)).warnings
        assert warning.startswith(f"node theirs is closed by the taint {ARRIVING_TAINT}, and gpuscaler neither opens nor removes it")


async def test_f72_an_unlisted_node_does_not_count_for_a_pools_minimum() -> None:
    async with faulty(MINIMUM) as here:
        await here.sleep(60.0)
        (ours,) = await here.nodes()
        labels = {**ours["metadata"]["labels"], POOL_LABEL: "gpu", "kubernetes.io/hostname": "theirs"}
        body = {"metadata": {"name": "theirs", "labels": labels}, "spec": {"providerID": "simulated:///us-east-1a/theirs"}}
        await here.user.create(NODES, {**ours, **body})
        await here.sleep(1200.0)

        assert len(here.cluster.core.history()) == 1, "the only machine of the minimum was removed"
        assert watch_of(here).ended == []
        assert [pool.machines for pool in (await status(here)).pools] == [1]


async def reclaim_machine(here: World) -> str:
    """Take the only machine back without notice, and delete its Node; return its id."""
    (machine,) = here.cluster.core.list()
    at = here.now()
    here.cluster.core._schedule(at, LOST, machine.id, why=RECLAIMED)
    here.cluster.provider._changed.set()
    return machine.id


async def test_f73_a_reclaimed_machine_that_its_group_replaces_is_not_also_replaced_by_a_purchase() -> None:
    """Neither in the offering that has just been reclaimed, nor in another one."""
    async with faulty(IDLE.replace("on-demand", "spot, on-demand"), faults=REPLACING) as here:
        await run(here, "web")
        await here.sleep(120.0)
        for _ in range(3):
            await reclaim_machine(here)
            await here.sleep(900.0)
            assert await all_bound(here)
            assert len(here.cluster.core.list()) == 1
        assert len(here.notes.orders) == 1


async def test_f73_a_machine_reclaimed_from_a_group_at_its_minimum_is_not_replaced_by_a_purchase() -> None:
    async with faulty(f"{SPOT}    min: 2\n", faults=REPLACING) as here:
        await here.sleep(120.0)
        machines_ordered = sum(order.count for order in here.notes.orders)
        first, second = here.cluster.core.list()
        here.announced.append(Notice(INTERRUPTION, provider_id(first), here.now() + 120.0))
        await here.sleep(1200.0)

        assert second.id in {machine.id for machine in here.cluster.core.list()}
        assert len(here.cluster.core.list()) == 2
        assert (sum(order.count for order in here.notes.orders), machines_ordered) == (2, 2)


def test_f73_a_machine_that_a_group_launched_before_an_order_does_not_count_for_that_order() -> None:
    ours = Order("a", "main", (KIND.key,), 1, NOW + 1.0, NOW + 1.0, ACCEPTED)
    coming = OrderedMachine("a-0", "a", (KIND.key,), 1.0, NOW + 1.0)
    ledger = replace(noticed().ledger, orders=(ours,), coming=(coming,))

    assert [upcoming.id for upcoming in reconciled(Memory(ledger=ledger), at=NOW + 2.0, keeps_tokens=False).unordered] == ["found-i-1"]


async def test_f73_if_a_group_cannot_replace_its_reclaimed_spot_machine_the_pods_run_on_demand() -> None:
    dry = Markets({key: Steps((0.0, 200.0), (5.0, 0.0)) for key in SPOT_KEYS}, began=BEGAN)
    async with faulty(SPOT_FIRST, faults=REPLACING, markets=dry) as here:
        await run(here, "web")
        await here.sleep(150.0)
        assert await all_bound(here)
        await here.sleep(130.0)

        assert await all_bound(here)
        assert {machine.offering.market for machine in here.cluster.core.list()} == {"on-demand"}


async def test_f73_after_an_interruption_notice_a_group_gets_time_to_replace_the_machine(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpu-spot", market="spot", CapacityRebalance=True)
        here.group("gpu-on-demand")
        here.start(here.settings(queue_url=here.queue()))
        await here.deploy("serve")
        await here.sleep(240.0)
        (machine,) = here.machines()
        here.interrupt(machine)
        await here.sleep(300.0)

        assert all((await here.bound()).values())
        assert [len(here.machines(name)) for name in ("gpu-spot", "gpu-on-demand")] == [2, 0]
        assert here.wrote()["LaunchInstances"] == 1


MANAGED = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "system", **DISCOVERED}


async def system(here: Stage, machines: int) -> list[str]:
    """Start a managed node group for the system, without GPUs and taints, and return the names of its nodes."""
    here.group("eks-system", instance_type="m5.xlarge", tags=MANAGED, MinSize=1, DesiredCapacity=machines)
    await here.sleep(60.0)
    names = [node["metadata"]["name"] for node in await here.nodes()]
    for name in names:
        await here.user.merge_patch(NODES, name, {"spec": {"taints": None}})
    return names


async def test_f74_a_managed_node_group_without_accelerators_is_not_managed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        await system(here, 3)
        here.start()
        await here.sleep(1000.0)

        assert here.desired("eks-system") == 3
        assert [name for node in await here.nodes() for name in taints(node)] == []
        assert (await here.status()).pools == ()


async def test_f74_a_group_that_is_no_longer_managed_is_reported_at_startup_and_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with aws_stage(tmp_path) as here:
        await system(here, 1)
        here.group("gpus")
        here.start()
        await here.sleep(60.0)
        message = "it has no accelerator; name it in aws.groups to adopt it"

        assert any(
            "skipped in the account" in line and "eks-system" in line and message in line for line in capsys.readouterr().out.splitlines()
        )
        assert {entry.about: entry.text for entry in (await here.status()).set_aside}["AutoScalingGroup us-east-1/eks-system"] == message


async def test_f74_an_excluded_group_is_left_alone_while_other_groups_are_managed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("theirs", MinSize=1, DesiredCapacity=2)
        here.group("gpus")
        here.start(here.settings(exclude='["the*"]'))
        await here.submit("train")
        await here.sleep(1000.0)

        assert (here.desired("theirs"), here.desired("gpus")) == (2, 1)
        assert {entry.text for entry in (await here.status()).set_aside} == {"it matches 'the*' in aws.exclude and is ignored"}
        assert [name for node in await here.nodes() for name in taints(node)].count("gpuscaler.io/arriving") == 2


async def test_f74_orders_and_removals_of_an_older_version_are_finished_in_a_group_no_longer_managed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        await system(here, 3)
        here.start(here.settings(groups="[eks-system]"))

        async def leaves() -> bool:
            return any("gpuscaler.io/leaving" in taints(node) for node in await here.nodes())

        await here.until(leaves, 1200.0)
        await here.stop()
        left = [node["metadata"]["name"] for node in await here.nodes() if "gpuscaler.io/leaving" in taints(node)]
        here.start()
        await here.sleep(900.0)

        names = {node["metadata"]["name"] for node in await here.nodes()}
        assert names.isdisjoint(left)
        assert len(names) == here.desired("eks-system") == 3 - len(left)
        assert [name for node in await here.nodes() for name in taints(node)] == []


async def everywhere(here: Stage) -> dict[str, str]:
    """Return the nodes of the pods of Deployments, in all namespaces."""
    pods = [msgspec.json.decode(pod) for pod in await here.user.list_all(PODS)]
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods if pod["metadata"]["name"].startswith(("app-", "coredns-"))
    }


async def test_f74_consolidation_does_not_move_the_last_ready_replica_of_a_system_workload(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        first, second = await system(here, 2)
        for name, namespace, away_from in (("app", "default", second), ("coredns", "kube-system", first)):
            await here.user.merge_patch(NODES, away_from, {"spec": {"taints": [{"key": "example.com/closed", "effect": "NoSchedule"}]}})
            body = pod(name, 0, {"karpenter.sh/do-not-disrupt": "true"} if name == "app" else {})
            await here.user.create(DEPLOYMENTS, workload("Deployment", name, body, replicas=1), namespace=namespace)
            await here.user.create(POD_DISRUPTION_BUDGETS, budget(name, maxUnavailable=1), namespace=namespace)
            await here.sleep(10.0)
            await here.user.merge_patch(NODES, away_from, {"spec": {"taints": None}})
        before = await everywhere(here)
        here.start(here.settings(groups="[eks-system]"))
        await here.sleep(1300.0)

        assert set(before.values()) == {first, second}
        assert await everywhere(here) == before
        assert here.desired("eks-system") == 2


def label_of(node: dict[str, Any]) -> str | None:
    label: str | None = node["metadata"]["labels"].get(POOL_LABEL)
    return label


async def test_f71_only_nodes_of_managed_pools_get_the_label_of_their_pool() -> None:
    async with faulty(IDLE) as here:
        await launch(here)
        await here.sleep(60.0)
        await run(here, "web")
        await here.sleep(30.0)
        (ours,) = await here.nodes()
        theirs = {"name": "theirs", "labels": {"kubernetes.io/hostname": "theirs", POOL_LABEL: "other-team"}}
        await here.user.create(NODES, {**ours, "metadata": theirs, "spec": {"providerID": "simulated:///us-east-1a/theirs"}})
        await here.user.merge_patch(NODES, ours["metadata"]["name"], {"metadata": {"labels": {POOL_LABEL: "wrong"}}})
        await here.sleep(30.0)

        assert label_of(ours) == "gpu"
        assert sorted(str(label_of(node)) for node in await here.nodes()) == ["gpu", "other-team"]
        # A write that conflicts with another at the same moment is repeated.
        written = watch_of(here).to("/nodes/", "PATCH")
        assert len({at for at, request in written if POOL_LABEL.encode() in request.body}) == 2


async def test_f71_if_labelling_nodes_is_forbidden_it_is_retried_less_and_less_often() -> None:
    async with faulty(IDLE) as here:
        message = 'nodes "sim-00001" is forbidden: User "gpuscaler" cannot patch resource "nodes" in API group "" at the cluster scope'
        await launch(here, 3)
        await here.sleep(90.0)
        for node in await here.nodes():
            await here.user.merge_patch(NODES, node["metadata"]["name"], {"metadata": {"labels": {POOL_LABEL: None}}})
        here.cluster.api.faults.add(Fault(method="PATCH", path=r"/nodes/[^/?]+\?", refusal=Failure(403, "Forbidden", message)))
        since = here.now()
        await run(here, "web", replicas=3)
        await here.sleep(300.0)

        tried = [at for at, request in watch_of(here).to("/nodes/", "PATCH") if at > since and POOL_LABEL.encode() in request.body]
        assert 2 <= len(tried) <= 8
        assert tried[-1] - tried[-2] >= 50.0
        assert await all_bound(here)
