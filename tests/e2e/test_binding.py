"""Pods that are promised machines are bound to them, beside a real scheduler that has others for the same room."""

import asyncio
from collections import Counter

import pytest
from tests.e2e.objects import Json, pod
from tests.e2e.stage import ACCOUNT, CLOUD, KINDS, Stage, free_port, stage, until, version
from tests.e2e.steering import measure

from gpuscaler.kube.resources import NODES, PRIORITY_CLASSES
from gpuscaler.planning.keeping import ARRIVING_TAINT

pytestmark = pytest.mark.e2e
MACHINES = 10
#: All of them are ready at about the same moment.
TOGETHER: Json = {**CLOUD, "boot": ["8s", "8s", "9s"], "device_plugin_delay": ["500ms", "600ms", "700ms"]}
POOL: Json = {"name": "b", "types": ["g5.48xlarge"], "max": MACHINES, "idle_after": "10m"}


async def grant(made: Stage) -> None:
    """What the chart grants beside the rest where pods are to be bound."""
    group, name = "rbac.authorization.k8s.io", "gpuscaler-binding"
    rule = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
    await made.apply(
        KINDS["ClusterRole"], {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    )
    whom = {"subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": made.home}]}
    role = {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name}}
    made_of = {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, **role, **whom}
    await made.apply(KINDS["ClusterRoleBinding"], made_of)


@pytest.mark.parametrize(("rivals", "gpus"), [(150, 8), (300, 1)])
def test_of_many_that_wait_those_that_were_promised_ten_machines_have_them(rivals: int, gpus: int) -> None:
    asyncio.run(promised(rivals, gpus))


async def promised(rivals: int, gpus: int) -> None:
    async with stage(f"binding-{gpus}") as made, made.kubelets():
        await made.install()
        await grant(made)
        first: Json = {"metadata": {"name": "first"}, "value": 1000, "preemptionPolicy": "Never"}
        await made.admin.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **first})
        port = free_port()
        made.start(made.run_file("run", [POOL], cloud=TOGETHER, port=port, steering="bind"), await made.kubeconfig(), port=port)
        await made.namespace("b")
        names = {f"p{number}": 3 if number % 2 else 5 for number in range(2 * MACHINES)}
        for name, many in names.items():
            one = pod(name, "b", gpus=many)
            one["spec"]["priorityClassName"] = "first"
            await made.create(one, "b")
        for number in range(rivals):
            await made.create(pod(f"rival{number}", "b", gpus=gpus), "b")

        async def ready() -> list[Json]:
            found = [one for one in await made.nodes("b") if one["status"].get("allocatable", {}).get("nvidia.com/gpu") == "8"]
            return found if len(found) == MACHINES else []

        async def bound() -> dict[str, str]:
            found = {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in await made.pods("b")}
            mine = {name: found[name] for name in names}
            return mine if all(mine.values()) else {}

        async def opened() -> bool:
            return not any(taint["key"] == ARRIVING_TAINT for one in await made.listed(NODES) for taint in one["spec"].get("taints", ()))

        await until("all machines show their GPUs", ready, 120.0)
        began = asyncio.get_running_loop().time()
        where = await until("all promised pods are bound", bound, 60.0)
        late = asyncio.get_running_loop().time() - began
        await until("all machines are open", opened, 60.0)
        await asyncio.sleep(3.0)
        print(f"\nKubernetes {version()}: {len(where)} pods on {MACHINES} machines among {rivals} that ask for {gpus}: {late:.1f} s")

        used = Counter[str]()
        for one in await made.pods("b"):
            if one["spec"].get("nodeName"):
                used[one["spec"]["nodeName"]] += int(one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        assert set(used.values()) == {8}
        assert await bound() == where


def test_random_workloads_are_bound_without_a_further_purchase_also_when_the_controller_is_killed_meanwhile() -> None:
    found = asyncio.run(measure(6, seed=1, apart=20.0, restart=True, steering="bind", grant=grant))
    print(f"\nKubernetes {version()}, 6 random workloads, bound: {found}")

    assert found.bound == found.planned
    assert found.further == 0
    assert found.broken == 0
