"""Kubelets that stop for good: only the Lease of their node shows it, which goes stale."""

from tests.control.leaving import run
from tests.control.world import ONE_GPU_MACHINES
from tests.faults.kit import bought, faulty

from gpuscaler.simulation.cloud.machines import CloudMachine


def is_over(machine: CloudMachine) -> bool:
    return machine.ended_at is not None


async def test_f75_pods_of_a_node_with_a_dead_kubelet_run_elsewhere_and_its_machine_is_ended_once() -> None:
    async with faulty(ONE_GPU_MACHINES) as here:
        await run(here, "web", 3)
        await bought(here, 3)
        await here.sleep(90.0)
        first, *_ = here.cluster.core.list()
        here.cluster.kubelets.stop(first.id)
        await here.sleep(60.0)
        (node,) = [node for node in await here.nodes() if node["metadata"]["name"] == first.id]
        assert {"node.kubernetes.io/unreachable"} <= {taint["key"] for taint in node["spec"]["taints"]}
        assert not is_over(first)
        # The pod is deleted after five minutes, but nothing ends it on the node; its successor needs a machine.
        await bought(here, 4, within=600.0)
        await here.sleep(3600.0)

        assert is_over(first)
        assert len(here.cluster.core.history()) == 4
        assert first.id not in {node["metadata"]["name"] for node in await here.nodes()}
        bound = await here.bound()
        assert len(bound) == 3
        assert set(bound.values()) == {machine.id for machine in here.cluster.core.list()}
