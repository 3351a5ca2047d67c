"""The manifest applied by the real kubectl, and the chart installed by the real helm, on an embedded cluster that simulates pods."""

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import objects
from tests.charts.manifest import FILE
from tests.charts.rendering import CHART, ROOT, SMALL, call, kubeconfig, merge_values
from tests.embedded.kubectl_building import kubectl
from tests.embedded.test_kubectl import Kubectl

from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.embedded.serving.server import serve
from gpuscaler.lifecycle.node_marks.soft_taints import SOFT_TAINTS
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import CLOSING_TAINTS, EXCLUDE_LABEL, EXCLUDE_VALUE, KEPT_TAINT, LEAVING_TAINT
from gpuscaler.simulation.cloud.delays import Delay, Delays

pytestmark = [pytest.mark.charts, pytest.mark.looptime(False)]

OBJECTS = [obj for obj in yaml.load_all(FILE.read_text(), yaml.CSafeLoader) if obj]


def node(name: str, **labels: str) -> dict[str, Any]:
    return objects.node(name, labels={"kubernetes.io/os": "linux", **labels})


NODES = [
    node("bought", **{"gpuscaler.io/pool": "cpu"}),
    node("nvidia", **{"nvidia.com/gpu.present": "true"}),
    node("amd", **{"amd.com/gpu.product-name": "MI300X"}),
    node("plain", **{"nvidia.com/gpu.present": "false"}),
    node("other"),
]


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Kubectl]:
    conditions = Conditions(delays=Delays(image_pull=Delay(0, 0, 0)))
    cluster = EmbeddedCluster(Policy(pools=()), now=time.time, conditions=conditions)
    serving = await serve(cluster.api)
    life = asyncio.create_task(cluster.run())
    ask = Kubectl(kubectl(), serving.url, tmp_path)
    await ask("create", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": NODES})
    yield ask
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    await serving.close()


@pytest.mark.parametrize("how", [(), ("--server-side",)])
async def test_the_manifest_can_be_applied_and_applying_it_again_changes_nothing(ask: Kubectl, how: tuple[str, ...]) -> None:
    first = await ask("apply", *how, "-f", str(FILE))
    before = json.loads(await ask("get", "deployment,clusterrole,role,configmap", "-A", "-o", "json"))
    second = await ask("apply", *how, "-f", str(FILE))
    after = json.loads(await ask("get", "deployment,clusterrole,role,configmap", "-A", "-o", "json"))

    assert len(first.splitlines()) == len(second.splitlines()) == len(OBJECTS)
    assert [item.get("spec", item.get("rules", item.get("data"))) for item in before["items"]] == [
        item.get("spec", item.get("rules", item.get("data"))) for item in after["items"]
    ]


async def test_both_replicas_run_on_different_nodes_that_were_not_bought_and_have_no_gpus(ask: Kubectl) -> None:
    await ask("apply", "-f", str(FILE))
    await ask("rollout", "status", "--namespace", "gpuscaler", "deployment/gpuscaler-controller", "--timeout=55s")
    pods = json.loads(await ask("get", "pods", "--namespace", "gpuscaler", "-o", "json"))["items"]

    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["other", "plain"]
    assert {pod["spec"]["priority"] for pod in pods} == {2_000_000_000}


async def test_the_documented_commands_remove_everything_that_uninstalling_leaves_on_nodes(ask: Kubectl) -> None:
    ours = [taint.key for taint in SOFT_TAINTS] + [*CLOSING_TAINTS, LEAVING_TAINT]
    for name, keys in (("plain", [LEAVING_TAINT]), ("other", [*ours, "example.com/own"])):
        await ask("taint", "nodes", name, *(f"{key}:NoSchedule" for key in keys))
    await ask("label", "nodes", "plain", f"{EXCLUDE_LABEL}={EXCLUDE_VALUE}")
    await ask("label", "nodes", "other", f"{EXCLUDE_LABEL}=true")
    page = (ROOT / "docs" / "how-to" / "install.md").read_text().partition("## Uninstall it")[2]
    for line in page.splitlines():
        if line.startswith("kubectl "):
            await ask.run(*shlex.split(line)[1:])
    nodes = {item["metadata"]["name"]: item for item in (await ask.read("nodes"))["items"]}

    assert [taint["key"] for node in nodes.values() for taint in node.get("spec", {}).get("taints", ())] == ["example.com/own"]
    assert EXCLUDE_LABEL not in nodes["plain"]["metadata"]["labels"]
    assert nodes["other"]["metadata"]["labels"][EXCLUDE_LABEL] == "true"


async def helm(ask: Kubectl, *words: str, values: dict[str, Any] | None = None) -> None:
    # The command waits for an API server in this process.
    access = ask.home / "kubeconfig"
    access.write_text(kubeconfig(ask.url))
    place = ("--namespace", "gpuscaler", "--kubeconfig", str(access))
    done = await asyncio.to_thread(call, *words, *place, values=values)
    assert done.returncode == 0, done.stderr


async def uids(ask: Kubectl) -> set[str]:
    """Return the pods once all of them are of the newest revision."""
    await ask("rollout", "status", "--namespace", "gpuscaler", "deployment/gpuscaler-controller", "--timeout=55s")
    pods = json.loads(await ask("get", "pods", "--namespace", "gpuscaler", "-o", "json"))["items"]
    return {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


async def test_a_release_is_installed_upgraded_without_a_needless_restart_and_uninstalled(ask: Kubectl) -> None:
    other_pools = {"config": {"pools": [{"name": "other", "types": ["g5.xlarge"]}]}}
    other_limit = {"config": {"rate_limit": {"qps": 10}}}
    quick = merge_values(SMALL, {"controller": {"terminationGracePeriodSeconds": 5}})
    await helm(ask, "install", "gpuscaler", str(CHART), "--create-namespace", values=quick)
    first = await uids(ask)
    await helm(ask, "upgrade", "gpuscaler", str(CHART), values=merge_values(quick, other_pools))
    second = await uids(ask)
    settings = json.loads(await ask("get", "configmap", "gpuscaler-controller", "--namespace", "gpuscaler", "-o", "json"))
    await helm(ask, "upgrade", "gpuscaler", str(CHART), values=merge_values(quick, other_limit))
    third = await uids(ask)
    await ask("taint", "node", "other", f"{KEPT_TAINT}=:NoSchedule", f"{LEAVING_TAINT}=:NoSchedule")
    running = asyncio.create_task(run_job(ask))
    await helm(ask, "uninstall", "gpuscaler")
    output = await running
    taints = json.loads(await ask("get", "node", "other", "-o", "json"))["spec"]["taints"]
    left = await ask(
        "get", "deployments,services,configmaps,serviceaccounts,roles,clusterroles,clusterrolebindings,jobs", "-A", "-o", "name"
    )

    assert "name: other" in settings["data"]["run.yaml"]
    assert (len(first), second == first, third & first) == (2, True, set())
    assert [name for name in left.splitlines() if "gpuscaler" in name] == []
    assert (output, [taint["key"] for taint in taints]) == ("Node other is open.\n", [LEAVING_TAINT])


async def run_job(ask: Kubectl) -> str:
    """Run the container of the chart's uninstall Job as a kubelet would; return its output."""
    chosen = ("--namespace", "gpuscaler", "--selector", "app.kubernetes.io/component=uninstall")
    await ask("wait", "pods", *chosen, "--for=create", "--timeout=60s")
    (pod,) = json.loads(await ask("get", "pods", *chosen, "-o", "json"))["items"]
    (container,) = pod["spec"]["containers"]
    access = ("--kubeconfig", str(ask.home / "kubeconfig"))
    command = (sys.executable, "-c", "from gpuscaler.cli import run; run()", *container["args"], *access)
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = json.dumps({"status": {"phase": "Succeeded"}})
    await ask("patch", "pod", pod["metadata"]["name"], "--namespace", "gpuscaler", "--subresource=status", "--type=merge", "-p", ended)
    return done.stdout
