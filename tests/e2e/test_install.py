"""The installation on a real API server: accepted strictly without a warning, with exactly the rights that the programs use."""

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
from tests.e2e.exporting import ACCOUNT as EXPORTER
from tests.e2e.exporting import HOLDER, export, kubelet, values
from tests.e2e.granting import asked, granted, refused, token, used
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.paging import without_streams
from tests.e2e.stage import ACCOUNT, CLOUD, NAMESPACE, ROLES, Json, Stage, stage, until
from tests.embedded.kubectl_building import kubectl
from tests.exporter.scraping import Scrape
from tests.objects import budget, node

from gpuscaler.kube.resources import DEPLOYMENTS, EVENTS, NODES, POD_DISRUPTION_BUDGETS, PODS, WATCHED

pytestmark = pytest.mark.e2e

MANIFEST = ROLES
OBJECTS = [obj for obj in yaml.load_all(MANIFEST.read_text(), yaml.CSafeLoader) if obj]
#: Seconds until the spot market of a new cloud runs dry. With this seed its first two machines have their images in 14 seconds.
DRY_AFTER, SEED = 45, 25255
POOL: Json = {"name": "spot", "types": ["g5.xlarge"], "markets": ["spot", "on-demand"], "zones": ["us-east-1a"], "idle_after": "2s"}
#: A pool of which nothing is ever bought.
OTHER: Json = {**POOL, "name": "other", "markets": ["on-demand"]}

#: The namespace in which the chart is installed for a dry run.
LOOKING_ON = "looking-on"


@dataclass(frozen=True)
class Seen:
    """The result of an installation: kubectl's output, the nodes of its pods, and each account's requests with their answers."""

    applied: str
    again: str
    warned: str
    nodes: frozenset[str]
    asked: list[Json]
    looked: list[Json]
    planned: str
    exported: list[Json]
    page: Scrape
    #: The objects that were rendered for the dry run and the exporter.
    objects: list[Json]


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


async def _play() -> Seen:
    # The controller itself simulates the kubelets of its machines.
    async with stage("install", audit=True) as made, made.kubelets(lambda node: not node.provider_id):
        for name, labels in NODE_LABELS.items():
            await made.admin.create(NODES, _node(name, labels))
        await until("all nodes are open", lambda: _open(made))
        message, warned = await _apply(made)
        again, _ = await _apply(made)
        await until("both copies are ready", lambda: _ready(made))
        nodes = frozenset(pod["spec"]["nodeName"] for pod in await made.pods(NAMESPACE))
        with kubelet() as fake:
            objects = await _install_observer(made, values(fake))
            (measures,) = (obj for obj in objects if obj["kind"] == "DaemonSet")
            with _run(made, *await _dry(made)) as dry:
                page = await export(made, measures, fake, "gpu")
                await _work(made)
        await _in_pages(made)
        looked, exported = (asked(made, account, LOOKING_ON) for account in (ACCOUNT, EXPORTER))
        return Seen(message, again, warned, nodes, asked(made, ACCOUNT, NAMESPACE), looked, dry.read_text(), exported, page, objects)


async def _apply(made: Stage, manifest: str = MANIFEST.read_text()) -> tuple[str, str]:
    words = ("apply", "--server-side", "--validate=strict", "--filename", "-", "--kubeconfig", str(made.plane.kubeconfig))
    command = (str(kubectl()), "--cache-dir", str(made.folder / "kubectl"), *words)
    done = await asyncio.to_thread(subprocess.run, command, input=manifest, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def _install_observer(made: Stage, more: Json) -> list[Json]:
    """Install the chart for a dry run, with the values ``more``; returns the objects."""
    await made.namespace(LOOKING_ON)
    manifest = text({**SMALL, "controller": {"dryRun": True}, **more}, namespace=LOOKING_ON)
    await _apply(made, manifest)
    return [obj for obj in yaml.safe_load_all(manifest) if obj]


async def _dry(made: Stage, server: str = "") -> tuple[Path, Path]:
    """Run file and kubeconfig for a dry run, with only the rights that the chart grants to one."""
    kubeconfig, run_file = made.folder / "dry.kubeconfig", made.folder / "dry.yaml"
    config = made.plane.config(token=await token(made, ACCOUNT, LOOKING_ON))
    config["clusters"][0]["cluster"]["server"] = server or made.plane.url
    kubeconfig.write_text(json.dumps(config))
    settings: Json = {"region": "us-east-1", "cloud": "simulated", "namespace": LOOKING_ON, "pools": [POOL], "http": {"enabled": False}}
    run_file.write_text(json.dumps(settings))
    return run_file, kubeconfig


@contextmanager
def _run(made: Stage, run_file: Path, kubeconfig: Path, *, name: str = "dry") -> Iterator[Path]:
    """Run a controller with ``--dry-run`` until the block ends; yields the path of its log."""
    words = (sys.executable, "-m", "gpuscaler", "run", "--dry-run", "--config", str(run_file), "--kubeconfig", str(kubeconfig))
    path = made.folder / f"{name}.log"
    with path.open("wb") as log, subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            yield path
        finally:
            process.terminate()
    assert process.returncode == 0


async def _in_pages(made: Stage) -> None:
    """Run controller and dry run again, behind a proxy without streamed lists, until both have listed everything."""
    lists = {("list", resource.group, resource.plural, "") for resource in WATCHED}

    async def listed() -> bool:
        return all(lists <= used(asked(made, ACCOUNT, namespace), set()) for namespace in (NAMESPACE, LOOKING_ON))

    async with without_streams(made.plane.url, made.plane.layout) as url:
        controller = made.start(made.folder / "run.yaml", await made.kubeconfig("pages", server=url), name="pages")
        with _run(made, *await _dry(made, url), name="dry-pages"):
            await until("everything was listed", listed)
        assert await controller.end() == 0


#: Two nodes that may run the controller's pods, and two that may not.
NODE_LABELS: Mapping[str, Mapping[str, str]] = {
    "plain-a": {},
    "plain-b": {"nvidia.com/gpu.present": "false"},
    "gpu": {"nvidia.com/gpu.present": "true"},
    "bought": {"gpuscaler.io/pool": "other"},
}


def _node(name: str, labels: Mapping[str, str]) -> Json:
    return node(name, labels={"kubernetes.io/os": "linux", **labels}, cpu="4", memory="16Gi")


async def _open(made: Stage) -> bool:
    """Whether all nodes are open. A node is closed from its creation until a controller has seen that it is ready."""
    return all(not node["spec"].get("taints") for node in await made.listed(NODES))


async def _ready(made: Stage) -> bool:
    deployment = await made.find(DEPLOYMENTS, ACCOUNT, NAMESPACE)
    return deployment is not None and deployment["status"].get("readyReplicas") == 2


async def _work(made: Stage) -> None:
    """A pod that must not be evicted gets a spot machine, loses it when the cloud reclaims it, moves, and is scaled down."""
    series = made.folder / "series.csv"
    rows = ["zone,instance_type,max_nodes_probed,t_s,nodes_available", "us-east-1a,g5.xlarge,9,0,9"]
    series.write_text("\n".join([*rows, f"us-east-1a,g5.xlarge,9,{DRY_AFTER},0", "us-east-1a,g5.xlarge,9,1000000,0", ""]))
    controller = made.start(_run_file(made, series), await made.kubeconfig())
    await made.namespace("work")
    name = "keep"
    await made.admin.create(POD_DISRUPTION_BUDGETS, budget(name, maxUnavailable=0), namespace="work")
    await made.create(deployment(name, 1, pod_spec("spot")), "work")
    (spot,) = (await made.bound("work", 1)).values()

    async def moved() -> bool:
        return any(
            pod["spec"].get("nodeName") not in {None, spot} and pod["status"]["phase"] == "Running" for pod in await made.pods("work")
        )

    telling = asyncio.create_task(_repeat_event(made))
    await until("the pod runs on another machine", moved)
    await made.scale("Deployment", name, "work", 0)
    await made.empty("spot")
    await telling
    assert await controller.end() == 0


async def _repeat_event(made: Stage) -> None:
    """Make the controller repeat an Event about a pod, with others in between, until the Event's count is raised a minute later."""
    gang = {"gpuscaler.io/gang": "two", "gpuscaler.io/gang-size": "2"}
    await made.create(pod("half", "other", annotations=gang), "work")

    async def reported() -> bool:
        return any("1 of 2 members exist" in event.get("note", "") for event in await made.listed(EVENTS, "work"))

    async def counted() -> bool:
        return ("patch", EVENTS.group, EVENTS.plural, "") in used(asked(made, ACCOUNT, NAMESPACE), set())

    async def change() -> None:
        while True:
            for market in ("reserved", None):
                await made.admin.merge_patch(PODS, "half", {"metadata": {"annotations": {"gpuscaler.io/market": market}}}, namespace="work")
                # This is longer than planning takes. Several repetitions become one Event.
                await asyncio.sleep(5)

    await until("an Event reports that a member is missing", reported)
    changing = asyncio.create_task(change())
    try:
        await until("the count of an Event is raised", counted)
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)


def _run_file(made: Stage, series: Path) -> Path:
    """The installed settings, with a fast cloud whose spot market runs dry."""
    (settings,) = (obj["data"]["run.yaml"] for obj in OBJECTS if obj["kind"] == "ConfigMap")
    run_settings: Json = yaml.safe_load(settings)
    reclaim: dict[str, Any] = {"after": "0s", "notice": "20s", "without_notice": 0}
    run_settings |= {
        "simulated": {**CLOUD, "kubelet": True, "seed": SEED, "dry": series.name, "reclaim": reclaim},
        "pools": [POOL, OTHER],
        "namespace": NAMESPACE,
        # A busy machine answers late, and the notice is short.
        "leader_election": {"lease": "60s", "renew": "40s"},
    }
    run_settings |= {
        "http": {"address": "127.0.0.1:0"},
        "pages": {"address": "127.0.0.1:0"},
        "history": {"folder": "history"},
        "pace": {"resync": "2s"},
    }
    path = made.folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_settings))
    (made.folder / "history").mkdir()
    return path


def test_the_api_server_accepts_every_object_strictly_without_a_warning(seen: Seen) -> None:
    assert len(seen.applied.splitlines()) == len(OBJECTS)
    assert seen.again.splitlines() == seen.applied.splitlines()
    assert "Warning" not in seen.warned


def test_both_controller_replicas_meet_the_restricted_standard_and_run_on_different_nodes_without_gpus(seen: Seen) -> None:
    assert seen.nodes == {"plain-a", "plain-b"}


def test_no_request_of_the_controller_lacks_a_permission(seen: Seen) -> None:
    assert len(seen.asked) > 100
    assert refused(seen.asked) == set()


def test_the_controller_uses_every_permission_that_it_is_granted(seen: Seen) -> None:
    allowed = granted(OBJECTS, ACCOUNT)

    assert used(seen.asked, allowed) == allowed


def test_a_dry_run_uses_exactly_its_permissions_which_are_all_read_only(seen: Seen) -> None:
    allowed = granted(seen.objects, ACCOUNT)

    assert refused(seen.looked) == set()
    assert used(seen.looked, allowed) == allowed
    assert {verb for verb, *_ in allowed} == {"get", "list", "watch"}
    assert "buys 1 machine" in seen.planned


def test_the_exporter_uses_exactly_its_permissions_to_read_what_the_node_lacks(seen: Seen) -> None:
    allowed = granted(seen.objects, EXPORTER)

    assert HOLDER in seen.page.pods("nvidia_gpu_duty_cycle")
    assert refused(seen.exported) == set()
    assert used(seen.exported, allowed) == allowed
    assert len(allowed) == 2
