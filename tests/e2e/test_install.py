"""What is installed, on a real API server: taken strictly and without a warning, enough for the controller, and no more than it uses."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import SMALL, text
from tests.e2e.objects import deployment, pod_spec
from tests.e2e.stage import ACCOUNT, CLOUD, NAMESPACE, ROLES, Json, Stage, stage, until, version
from tests.embedded.kubectl_building import kubectl

from gpuscaler.kube.resources import DEPLOYMENTS, NODES, POD_DISRUPTION_BUDGETS, SERVICE_ACCOUNTS, WATCHED

pytestmark = pytest.mark.e2e

MANIFEST = ROLES
OBJECTS = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one]
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
#: The spot market is dry so many seconds after the cloud began. With this seed its first two machines have their images in 14 seconds.
DRY_AFTER, SEED = 45, 25255
POOL: Json = {"name": "spot", "types": ["g5.xlarge"], "markets": ["spot", "on-demand"], "zones": ["us-east-1a"], "idle_after": "2s"}

#: Verb, API group, resource (``pods/eviction``), name; an empty name stands for all.
Right = tuple[str, str, str, str]


#: Where the chart is installed to look on.
LOOKING_ON = "looking-on"


@dataclass(frozen=True)
class Seen:
    """What came of an installation: what kubectl said, where its pods ran, what each controller asked and was answered."""

    said: str
    again: str
    warned: str
    nodes: frozenset[str]
    asked: tuple[Json, ...]
    looked: tuple[Json, ...]
    planned: str


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


async def _play() -> Seen:
    # The controller itself plays the pods of its simulated machines.
    async with stage("install", audit=True) as made, made.kubelets(lambda node: not node.provider_id):
        for name, labels in NODE_LABELS.items():
            await made.admin.create(NODES, _node(name, labels))
        await until("all nodes are open", lambda: _open(made))
        said, warned = await _apply(made)
        again, _ = await _apply(made)
        await until("both copies are ready", lambda: _ready(made))
        nodes = frozenset(one["spec"]["nodeName"] for one in await made.pods(NAMESPACE))
        with _run(made, *await _look_on(made)):
            await _work(made)
        asked = [json.loads(line) for line in made.plane.layout.audit.read_text().splitlines()]
    return Seen(
        said,
        again,
        warned,
        nodes,
        tuple(one for one in asked if one["user"]["username"] == USER),
        tuple(one for one in asked if one["user"]["username"] == USER.replace(NAMESPACE, LOOKING_ON, 1)),
        (made.folder / "dry.log").read_text(),
    )


async def _apply(made: Stage, manifest: str = MANIFEST.read_text()) -> tuple[str, str]:
    words = ("apply", "--server-side", "--validate=strict", "--filename", "-", "--kubeconfig", str(made.plane.kubeconfig))
    command = (str(kubectl()), "--cache-dir", str(made.folder / "kubectl"), *words)
    done = await asyncio.to_thread(subprocess.run, command, input=manifest, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def _look_on(made: Stage) -> tuple[Path, Path]:
    """Run file and kubeconfig for a dry run, with no more rights than the chart gives it then."""
    await made.namespace(LOOKING_ON)
    values = {**SMALL, "controller": {"dryRun": True}, "exporter": {"enabled": True, "askApiServer": True, "hostPID": True}}
    await _apply(made, text(values, namespace=LOOKING_ON))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    found = await made.admin.create(SERVICE_ACCOUNTS, request, namespace=LOOKING_ON, name=ACCOUNT, subresource="token")
    kubeconfig, run_file = made.folder / "dry.kubeconfig", made.folder / "dry.yaml"
    kubeconfig.write_text(json.dumps(made.plane.config(token=json.loads(found)["status"]["token"])))
    told: Json = {"region": "us-east-1", "cloud": "simulated", "namespace": LOOKING_ON, "pools": [POOL], "http": {"enabled": False}}
    run_file.write_text(json.dumps(told))
    return run_file, kubeconfig


@contextmanager
def _run(made: Stage, run_file: Path, kubeconfig: Path) -> Iterator[None]:
    """A controller that only looks on, for as long as the one acts."""
    words = (sys.executable, "-m", "gpuscaler", "run", "--dry-run", "--config", str(run_file), "--kubeconfig", str(kubeconfig))
    with (made.folder / "dry.log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


#: Two nodes that may have the controller's pods, and two that may not.
NODE_LABELS: Mapping[str, Mapping[str, str]] = {
    "plain-a": {},
    "plain-b": {"nvidia.com/gpu.present": "false"},
    "gpu": {"nvidia.com/gpu.present": "true"},
    "bought": {"gpuscaler.io/pool": "other"},
}


def _node(name: str, labels: Mapping[str, str]) -> Json:
    room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    }


async def _open(made: Stage) -> bool:
    """A node is closed from its creation until a controller has seen that it is ready."""
    return all(not one["spec"].get("taints") for one in await made.listed(NODES))


async def _ready(made: Stage) -> bool:
    found = await made.find(DEPLOYMENTS, ACCOUNT, NAMESPACE)
    return found is not None and found["status"].get("readyReplicas") == 2


async def _work(made: Stage) -> None:
    """A pod that nobody may evict gets a spot machine, is taken along when the cloud takes the machine back, and is scaled away."""
    series = made.folder / "series.csv"
    rows = ["zone,instance_type,max_nodes_probed,t_s,nodes_available", "us-east-1a,g5.xlarge,9,0,9"]
    series.write_text("\n".join([*rows, f"us-east-1a,g5.xlarge,9,{DRY_AFTER},0", "us-east-1a,g5.xlarge,9,1000000,0", ""]))
    controller = made.start(_run_file(made, series), await made.kubeconfig())
    await made.namespace("work")
    name = "keep"
    budget: Json = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
    selector = {"matchLabels": {"app": name}}
    await made.admin.create(POD_DISRUPTION_BUDGETS, {**budget, "spec": {"maxUnavailable": 0, "selector": selector}}, namespace="work")
    await made.create(deployment(name, 1, pod_spec("spot")), "work")
    (spot,) = (await made.bound("work", 1)).values()

    async def moved() -> bool:
        return any(
            one["spec"].get("nodeName") not in {None, spot} and one["status"]["phase"] == "Running" for one in await made.pods("work")
        )

    await until("the pod runs on another machine", moved)
    await made.scale("Deployment", name, "work", 0)
    await made.empty("spot")
    assert await controller.end() == 0


def _run_file(made: Stage, series: Path) -> Path:
    """The installed settings, with a cloud that is quick and runs dry."""
    (settings,) = (one["data"]["run.yaml"] for one in OBJECTS if one["kind"] == "ConfigMap")
    told: Json = yaml.safe_load(settings)
    reclaim: dict[str, Any] = {"after": "0s", "notice": "20s", "without_notice": 0}
    told |= {
        "simulated": {**CLOUD, "kubelet": True, "seed": SEED, "dry": series.name, "reclaim": reclaim},
        "pools": [POOL],
        "namespace": NAMESPACE,
    }
    told |= {"http": {"address": "127.0.0.1:0"}, "history": {"folder": "history"}, "pace": {"resync": "2s"}}
    path = made.folder / "run.yaml"
    path.write_text(yaml.safe_dump(told))
    (made.folder / "history").mkdir()
    return path


def granted() -> set[Right]:
    """All that the roles allow."""
    return {
        (verb, group, resource, name)
        for one in OBJECTS
        for rule in one.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def right(asked: Json) -> Right:
    """What right a request asked for, with the object's name."""
    about = asked["objectRef"]
    resource = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
    return asked["verb"], about.get("apiGroup", ""), resource, about.get("name", "")


def test_the_api_server_takes_every_object_strictly_and_without_a_warning(seen: Seen) -> None:
    assert len(seen.said.splitlines()) == len(OBJECTS)
    assert seen.again.splitlines() == seen.said.splitlines()
    assert "Warning" not in seen.warned


def test_both_copies_are_admitted_under_the_restricted_standard_and_run_apart_off_gpus_and_own_pools(seen: Seen) -> None:
    assert seen.nodes == {"plain-a", "plain-b"}


def test_nothing_that_the_controller_asks_is_refused_for_want_of_a_right(seen: Seen) -> None:
    refused = {right(one) for one in seen.asked if one["responseStatus"]["code"] == 403}

    assert len(seen.asked) > 100
    assert refused == set()


def test_no_right_is_granted_that_the_controller_does_not_use(seen: Seen) -> None:
    asked = {right(one) for one in seen.asked}
    used = asked | {(verb, group, resource, "") for verb, group, resource, _ in asked}
    # A server with streaming lists (by default 1.32, and from 1.34 on) streams what others list, and what it does not have is not listed
    # at all. An Event is counted up only where the same happens again after a minute.
    minor = int(version().split(".")[1])
    streams = minor == 32 or minor >= 34
    others = {("list", one.group, one.plural, "") for one in WATCHED if streams or one.optional}

    assert granted() - used - others == {("patch", "events.k8s.io", "events", "")}


def test_a_dry_run_is_refused_nothing_and_asks_to_write_nothing(seen: Seen) -> None:
    assert {one["verb"] for one in seen.looked} <= {"get", "list", "watch"}
    assert {right(one) for one in seen.looked if one["responseStatus"]["code"] == 403} == set()
    assert "buys 1 machine" in seen.planned
