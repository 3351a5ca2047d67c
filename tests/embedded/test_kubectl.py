"""The real kubectl's everyday verbs against the embedded API server, over HTTP."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.kubectl_building import kubectl

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.embedded.serving.server import serve
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays

pytestmark = [pytest.mark.conformance, pytest.mark.looptime(False)]

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
    "spec": {"taints": [{"key": "old", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "8", "pods": "110"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "8", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        "nodeInfo": {"kubeletVersion": "v1.35.0"},
    },
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p1", "labels": {"app": "one"}},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


@dataclass
class Kubectl:
    """kubectl with a home directory of its own, so that it reads no other configuration and leaves no caches."""

    program: Path
    url: str
    home: Path

    async def begin(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = (str(self.program), "--server", self.url, "--cache-dir", str(self.home), *words)
        environment = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)

    async def run(self, *words: str, given: object = None) -> tuple[int, str, str]:
        process = await self.begin(*words)
        out, err = await asyncio.wait_for(process.communicate(json.dumps(given).encode()), 60)
        return process.returncode or 0, out.decode(), err.decode()

    async def __call__(self, *words: str, given: object = None) -> str:
        code, out, err = await self.run(*words, given=given)
        assert code == 0, (words, out, err)
        return out

    async def read(self, *words: str) -> Any:
        return json.loads(await self("get", *words, "--output", "json"))


@pytest.fixture(scope="module")
def program() -> Path:
    return kubectl()


@pytest.fixture
async def ask(program: Path, tmp_path: Path) -> AsyncIterator[Kubectl]:
    serving = await serve(ApiServer(time.time))
    yield Kubectl(program, serving.url, tmp_path)
    await serving.close()


async def test_kubectl_apply_creates_new_objects_and_does_not_write_unchanged_ones(ask: Kubectl) -> None:
    everything = {"apiVersion": "v1", "kind": "List", "items": [NODE, POD]}
    assert await ask("apply", "-f", "-", given=everything) == "node/n1 created\npod/p1 created\n"
    assert await ask("apply", "-f", "-", given=everything) == "node/n1 unchanged\npod/p1 unchanged\n"
    await ask("apply", "-f", "-", given={**NODE, "spec": {"taints": [{"key": "new", "effect": "NoSchedule"}]}})
    assert [taint["key"] for taint in (await ask.read("node", "n1"))["spec"]["taints"]] == ["new"]
    assert "serverside-applied" in await ask("apply", "--server-side", "--force-conflicts", "-f", "-", given=NODE)


async def test_kubectl_get_prints_tables(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    await ask("create", "-f", "-", given=POD)
    table = [line.split() for line in (await ask("get", "nodes")).splitlines()]
    assert table[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert (table[1][:3], table[1][4]) == (["n1", "Ready", "<none>"], "v1.35.0")
    assert "p1     0/1     Pending" in await ask("get", "pods")
    assert "n1" in await ask("get", "pods", "-o", "wide", "-A", "-l", "app=one")
    assert (await ask("get", "po,no", "-o", "name")).split() == ["pod/p1", "node/n1"]
    _, _, err = await ask.run("get", "pods", "-n", "kube-system")
    assert err == "No resources found in kube-system namespace.\n"
    code, _, err = await ask.run("get", "pod", "absent")
    assert (code, err) == (1, 'Error from server (NotFound): pods "absent" not found\n')


async def test_kubectl_describe_shows_nodes_and_pods(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    await ask("create", "-f", "-", given=POD)
    uid = (await ask.read("pod", "p1"))["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", "name": "p1", "namespace": "default", "uid": uid},
        "reason": "TriggeredScaleUp",
        "message": "a machine was ordered",
        "type": "Normal",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    await ask("create", "-f", "-", given=event)
    description = await ask("describe", "node", "n1")
    assert "old:NoSchedule" in description
    assert "nvidia.com/gpu     1         1" in description
    assert "a machine was ordered" in await ask("describe", "pod", "p1")
    assert "TriggeredScaleUp" in await ask("events", "--for", "pod/p1")


async def test_kubectl_create_makes_objects_from_arguments(ask: Kubectl) -> None:
    await ask("create", "namespace", "team")
    await ask("create", "configmap", "settings", "--from-literal", "a=b", "-n", "team")
    assert (await ask.read("configmap", "settings", "-n", "team"))["data"] == {"a": "b"}
    await ask("create", "deployment", "web", "--image", "nginx", "--replicas", "0")
    spec = (await ask.read("deployment", "web"))["spec"]
    assert (spec["replicas"], spec["template"]["spec"]["containers"][0]["image"]) == (0, "nginx")
    await ask("create", "job", "train", "--image", "busybox", "--", "sleep", "1")
    assert (await ask.read("job", "train"))["spec"]["template"]["spec"]["containers"][0]["command"] == ["sleep", "1"]
    await ask("create", "poddisruptionbudget", "web", "--selector", "app=web", "--min-available", "1")
    assert (await ask.read("pdb", "web"))["spec"]["minAvailable"] == 1
    await ask("create", "secret", "generic", "key", "--from-literal", "a=b")
    code, _, err = await ask.run("create", "namespace", "team")
    assert (code, "already exists" in err) == (1, True)


async def test_kubectl_scale_sets_replicas(ask: Kubectl) -> None:
    await ask("create", "deployment", "web", "--image", "nginx")
    assert await ask("scale", "deployment", "web", "--replicas", "4") == "deployment.apps/web scaled\n"
    assert (await ask.read("deployment", "web"))["spec"]["replicas"] == 4
    code, _, _ = await ask.run("scale", "deployment", "web", "--current-replicas", "3", "--replicas", "5")
    assert code == 1


async def test_kubectl_cordon_taint_label_and_annotate_change_their_fields(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    await ask("cordon", "n1")
    assert (await ask.read("node", "n1"))["spec"]["unschedulable"] is True
    assert "Ready,SchedulingDisabled" in await ask("get", "node", "n1")
    await ask("uncordon", "n1")
    assert "unschedulable" not in (await ask.read("node", "n1"))["spec"]
    await ask("taint", "node", "n1", "gpu=yes:NoSchedule", "old-")
    assert [taint["key"] for taint in (await ask.read("node", "n1"))["spec"]["taints"]] == ["gpu"]
    await ask("label", "node", "n1", "a=b", "kubernetes.io/hostname-")
    await ask("annotate", "node", "n1", "gpuscaler.io/x=y")
    metadata = (await ask.read("node", "n1"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]["gpuscaler.io/x"]) == ({"a": "b"}, "y")


async def test_kubectl_delete_waits_until_the_object_is_gone(ask: Kubectl) -> None:
    waiting = {**POD, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    await ask("create", "-f", "-", given=waiting)
    assert 'pod "p1" deleted' in await ask("delete", "pod", "p1")
    await ask("create", "-f", "-", given=POD)
    await ask("delete", "pod", "p1", "--wait=false")
    assert "Terminating" in await ask("get", "pod", "p1")
    await ask("delete", "pod", "p1", "--force", "--grace-period", "0")
    assert (await ask.run("get", "pod", "p1"))[0] == 1


async def test_kubectl_drain_evicts_pods_and_respects_disruption_budgets(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    await ask("create", "-f", "-", given=POD)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await ask("patch", "pod", "p1", "--subresource", "status", "--type", "merge", "-p", json.dumps(running))
    await ask("create", "pdb", "one", "--selector", "app=one", "--min-available", "1")
    met = {"status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1}}
    await ask("patch", "pdb", "one", "--subresource", "status", "--type", "merge", "-p", json.dumps(met))
    code, _, err = await ask.run("drain", "n1", "--force", "--timeout", "1s")
    assert (code, "violate the pod's disruption budget" in err) == (1, True)
    await ask("delete", "pdb", "one")
    await ask.run("drain", "n1", "--force", "--timeout", "1s")
    assert "Terminating" in await ask("get", "pod", "p1")


async def test_kubectl_get_watch_prints_changes_as_they_happen(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    watching = await ask.begin("get", "nodes", "--watch", "--no-headers")
    assert watching.stdout is not None
    lines = [await asyncio.wait_for(watching.stdout.readline(), 30)]
    await ask("cordon", "n1")
    lines.append(await asyncio.wait_for(watching.stdout.readline(), 30))
    watching.terminate()
    await watching.communicate()
    assert [line.split()[1] for line in lines] == [b"Ready", b"Ready,SchedulingDisabled"]


async def test_unsupported_kubectl_requests_are_refused_with_a_reason(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=NODE)
    await ask("create", "-f", "-", given=POD)
    code, _, err = await ask.run("logs", "p1")
    assert (code, "log of pod p1: pods of this cluster are only simulated" in err) == (1, True), err
    code, _, err = await ask.run("exec", "p1", "--", "ls")
    assert (code, "exec of pod p1: pods of this cluster are only simulated" in err) == (1, True), err
    _, _, err = await ask.run("create", "cronjob", "c", "--image=x", "--schedule=* * * * *")
    assert "Warning: no controller of this cluster creates Jobs for a CronJob" in err


async def test_kubectl_auth_can_i_and_explain_work(ask: Kubectl) -> None:
    assert await ask("auth", "can-i", "delete", "pods") == "yes\n"
    assert "gpuscaler-embedded" in await ask("auth", "whoami")
    assert "*.*" in await ask("auth", "can-i", "--list")
    assert "see https://kubernetes.io/docs/reference/kubernetes-api/" in " ".join((await ask("explain", "deployment")).split())


async def test_kubectl_diff_shows_no_difference_for_a_quantity_applied_as_a_number(ask: Kubectl) -> None:
    given = json.loads(json.dumps(POD))
    given["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 1
    await ask("create", "-f", "-", given=given)
    assert await ask("diff", "--server-side", "-f", "-", given=given) == ""


async def test_kubectl_wait_returns_when_a_condition_is_met(ask: Kubectl) -> None:
    await ask("create", "-f", "-", given=POD)
    waiting = asyncio.create_task(ask("wait", "pod", "p1", "--for", "condition=Ready", "--timeout", "30s"))
    await asyncio.sleep(0.3)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await ask("patch", "pod", "p1", "--subresource", "status", "--type", "merge", "-p", json.dumps(ready))
    assert await waiting == "pod/p1 condition met\n"


async def test_kubectl_api_resources_lists_the_kinds_with_their_short_names(ask: Kubectl) -> None:
    lines = [line.split() for line in (await ask("api-resources", "--no-headers")).splitlines()]
    assert ["pods", "po", "v1", "true", "Pod"] in lines
    assert ["poddisruptionbudgets", "pdb", "policy/v1", "true", "PodDisruptionBudget"] in lines


@pytest.fixture
async def living(program: Path, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """A cluster that also runs the scheduler, kubelets and controllers."""
    conditions = Conditions(delays=Delays(image_pull=Delay(0, 0, 0)))
    cluster = EmbeddedCluster(Policy(pools=()), now=time.time, conditions=conditions)
    serving = await serve(cluster.api)
    life = asyncio.create_task(cluster.run())
    ask = Kubectl(program, serving.url, tmp_path)
    await ask("create", "-f", "-", given={**NODE, "spec": {}})
    yield ask
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    await serving.close()


DB: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "db", "annotations": {"kubernetes.io/change-cause": "first"}},
    "spec": {
        "replicas": 1,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "db:1"}]}},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
            }
        ],
    },
}


async def test_a_stateful_set_has_claims_a_history_and_can_be_rolled_back(living: Kubectl) -> None:
    ask = living
    await ask("create", "-f", "-", given=DB)
    assert "complete" in await ask("rollout", "status", "statefulset/db", "--timeout=30s")
    assert [line.split()[:3] for line in (await ask("get", "pvc", "--no-headers")).splitlines()] == [
        ["data-db-0", "Bound", "default-data-db-0"]
    ]
    await ask("set", "image", "statefulset/db", "db=db:2")
    assert "complete" in await ask("rollout", "status", "statefulset/db", "--timeout=30s")
    history = (await ask("rollout", "history", "statefulset/db")).splitlines()
    assert [line.split() for line in history[2:] if line] == [["1", "first"], ["2", "first"]]
    assert "db:1" in await ask("rollout", "history", "statefulset/db", "--revision=1")
    revisions = [line.split()[1:3] for line in (await ask("get", "controllerrevisions", "--no-headers")).splitlines()]
    assert sorted(revisions) == [["statefulset.apps/db", "1"], ["statefulset.apps/db", "2"]]
    await ask("rollout", "undo", "statefulset/db")
    assert "complete" in await ask("rollout", "status", "statefulset/db", "--timeout=30s")
    (pod,) = (await ask.read("pods"))["items"]
    assert pod["spec"]["containers"][0]["image"] == "db:1"
    await ask("delete", "statefulset", "db")
    await ask("wait", "--for=delete", "pods", "-l", "app=db", "--timeout=30s")


async def test_a_deployment_is_created_scaled_rolled_out_and_rolled_back(living: Kubectl) -> None:
    ask = living
    await ask("create", "deployment", "web", "--image=web:1", "--replicas=2")
    assert "successfully rolled out" in await ask("rollout", "status", "deployment/web", "--timeout=30s")
    await ask("scale", "deployment/web", "--replicas=3")
    await ask("wait", "deployment/web", "--for=jsonpath={.status.availableReplicas}=3", "--timeout=30s")
    table = [line.split() for line in (await ask("get", "deploy,rs,pods")).splitlines() if line]
    assert [row[1] for row in table if "/" in row[0]] == ["3/3", "3", "1/1", "1/1", "1/1"]
    await ask("set", "image", "deployment/web", "web=web:2")
    assert "successfully rolled out" in await ask("rollout", "status", "deployment/web", "--timeout=30s")
    history = (await ask("rollout", "history", "deployment/web")).splitlines()
    assert [line.split()[0] for line in history[2:] if line] == ["1", "2"]
    await ask("rollout", "undo", "deployment/web")
    assert "successfully rolled out" in await ask("rollout", "status", "deployment/web", "--timeout=30s")
    images = {
        pod["spec"]["containers"][0]["image"] for pod in (await ask.read("pods"))["items"] if "deletionTimestamp" not in pod["metadata"]
    }
    assert images == {"web:1"}
    assert "NewReplicaSetAvailable" in await ask("describe", "deployment", "web")
    await ask("delete", "deployment", "web")
    await ask("wait", "--for=delete", "pods", "-l", "app=web", "--timeout=30s")


async def test_kubectl_wait_returns_when_a_job_is_complete(living: Kubectl) -> None:
    template = {"metadata": {"annotations": {"gpuscaler.io/run-for": "1s"}}, "spec": {**POD["spec"], "restartPolicy": "Never"}}
    del template["spec"]["nodeName"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"completions": 3, "template": template}}
    await living("create", "-f", "-", given=job)
    await living("wait", "job/train", "--for=condition=complete", "--timeout=60s")
    assert (await living("get", "job", "train", "--no-headers")).split()[:3] == ["train", "Complete", "3/3"]
    assert "Completed" in await living("get", "pods")


async def test_kubectl_drain_evicts_pods_with_a_controller_and_keeps_daemon_set_pods(living: Kubectl) -> None:
    ask = living
    labels = {"app": "agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "agent:1"}]}}
    agent = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}}
    await ask("create", "-f", "-", given={**agent, "spec": {"selector": {"matchLabels": labels}, "template": template}})
    await ask("create", "deployment", "web", "--image=web:1", "--replicas=2")
    await ask("rollout", "status", "deployment/web", "--timeout=30s")
    await ask("rollout", "status", "daemonset/agent", "--timeout=30s")
    await ask("drain", "n1", "--ignore-daemonsets", "--timeout=30s")
    pods = {pod["metadata"]["name"].split("-")[0]: pod for pod in (await ask.read("pods"))["items"]}
    assert pods["agent"]["spec"]["nodeName"] == "n1"
    assert "nodeName" not in pods["web"]["spec"]
    await ask("uncordon", "n1")
    await ask("rollout", "status", "deployment/web", "--timeout=30s")
