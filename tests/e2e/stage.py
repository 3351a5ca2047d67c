"""The stage of the end-to-end tests: a real control plane, simulated kubelets, and controllers as separate processes."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import yaml

from gpuscaler.embedded.controlplane.building import API_SERVER, ASSETS, DEFAULT, Programs, Progress, programs
from gpuscaler.embedded.controlplane.plane import ControlPlane
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.leases import Leases
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    Resource,
)
from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import POOL_LABEL

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "e2e"
ROLES = ROOT / "deploy" / "gpuscaler.yaml"
#: The namespace of the controller's own objects, and its service account.
NAMESPACE, ACCOUNT = "gpuscaler", "gpuscaler-controller"
_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
KINDS = {
    resource.kind: resource
    for resource in (
        SERVICE_ACCOUNTS,
        CLUSTER_ROLES,
        Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        Resource(_RBAC, "v1", "roles", "Role"),
        Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    )
}
WORKLOADS = {resource.kind: resource for resource in (DEPLOYMENTS, STATEFUL_SETS, JOBS, DAEMON_SETS)}
#: Seconds to pull an image. Machines are fast as well, because the tests are about order, not duration.
PULL = 0.1
#: Seconds that anything may take. The slowest machine that runs these tests is several times slower than the one they were written on.
PATIENCE = 240.0
#: A pace with which pods that are submitted together are planned together, even if creating them is slow.
AT_ONCE: Mapping[str, Any] = {"resync": "2s", "debounce": "1s", "patience": "20s"}
CLOUD: Mapping[str, Any] = {
    "boot": ["1s", "2s", "4s"],
    "device_plugin_delay": ["500ms", "1s", "2s"],
    "capacity_error_delay": ["200ms", "300ms", "500ms"],
    "kubelet": False,
    "seed": 1,
}
POOL: Mapping[str, Any] = {"markets": ["on-demand"], "zones": ["us-east-1a"], "idle_after": "2s"}

Json = dict[str, Any]


def built(version: str) -> Programs:
    """The programs of a Kubernetes release, compiled if necessary."""
    return programs(version, environ=os.environ, progress=Progress(print))


def version() -> str:
    """The Kubernetes version to test. If ``KUBEBUILDER_ASSETS`` is set, it is the version of the programs there."""
    if os.environ.get(ASSETS):
        return _release_of(built(DEFAULT).folder / API_SERVER)
    return os.environ.get("KUBERNETES") or DEFAULT


@cache
def _release_of(program: Path) -> str:
    """The version that a Kubernetes program prints, such as ``Kubernetes v1.36.3``."""
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    assert words[:1] == ["Kubernetes"], f"{program} --version printed {words}, expected a release of Kubernetes"
    return words[1].removeprefix("v")


def roles(home: str = NAMESPACE) -> list[Json]:
    """The controller's account and roles, as the chart installs them in a namespace."""
    objects = [obj for obj in yaml.load_all(ROLES.read_text(encoding="utf-8"), yaml.CSafeLoader) if obj and obj["kind"] in KINDS]
    return objects if home == NAMESPACE else [_moved(obj, home) for obj in objects]


def _moved(content: Any, home: str) -> Any:
    """An object as the chart renders it for namespace ``home``. Names of cluster-scoped objects start with the namespace."""
    if isinstance(content, list):
        return [_moved(item, home) for item in content]
    if isinstance(content, dict):
        if content.get("resources") == ["namespaces"] and "resourceNames" in content:
            return {**content, "resourceNames": [home]}
        return {key: home if (key, value) == ("namespace", NAMESPACE) else _moved(value, home) for key, value in content.items()}
    return (
        f"{home}:{content.removeprefix(f'{NAMESPACE}:')}" if isinstance(content, str) and content.startswith(f"{NAMESPACE}:") else content
    )


async def until(what: str, seen: Callable[[], Awaitable[Any]], within: float = PATIENCE) -> Any:
    """Wait until ``seen()`` returns a true value, and return it."""
    end = time.monotonic() + within
    while True:
        result = await seen()
        if result:
            return result
        assert time.monotonic() < end, f"not within {within:g} s: {what}; last seen {result!r}"
        await asyncio.sleep(0.2)


@dataclass
class Controller:
    """``gpuscaler run`` as a process, with its log."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def lines(self) -> Iterator[Json]:
        for line in self.log.read_text(encoding="utf-8").splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def logged(self, *kinds: str, pool: str = "") -> list[Json]:
        """The log lines of some kinds, optionally only those of a pool."""
        return [line for line in self.lines() if line.get("kind") in kinds and (not pool or line.get("pool") == pool)]

    def check(self) -> None:
        code = self.process.poll()
        assert code is None, f"the controller ended with {code}:\n{self.log.read_text()[-2000:]}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def end(self) -> int:
        """Terminate the process as Kubernetes does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, 60)
        finally:
            self.process.kill()


@dataclass
class Stage:
    """A control plane in ``folder``, with an ``admin`` client that may do everything. gpuscaler is installed in the namespace ``home``."""

    plane: ControlPlane
    folder: Path
    admin: Client
    controllers: list[Controller] = field(default_factory=list)
    home: str = NAMESPACE

    # The controller

    def run_file(self, name: str, pools: list[Json], *, port: int = 0, cloud: Mapping[str, Any] = CLOUD, **more: Any) -> Path:
        """Write a run file for ``pools``, with the defaults of these tests."""
        settings: Json = {"region": "us-east-1", "cloud": "simulated", "simulated": dict(cloud), "namespace": self.home}
        settings |= {"pools": [{**POOL, **pool} for pool in pools], "http": {"address": f"127.0.0.1:{port}"}, "limits": "none"}
        settings |= {"pages": {"address": "127.0.0.1:0"}, "pace": {"resync": "2s"}, **more}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        return path

    async def token(self) -> str:
        """A token of the controller's service account."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        reply = await self.admin.create(SERVICE_ACCOUNTS, request, namespace=self.home, name=ACCOUNT, subresource="token")
        token: str = msgspec.json.decode(reply)["status"]["token"]
        return token

    async def kubeconfig(self, name: str = ACCOUNT, *, server: str = "") -> Path:
        """A kubeconfig of the controller's service account. ``server`` is the address of a proxy for the API server."""
        config = self.plane.config(token=await self.token())
        if server:
            config["clusters"][0]["cluster"]["server"] = server
        path = self.folder / f"{self.home}-{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def start(self, run_file: Path, kubeconfig: Path, *, name: str = "controller", port: int = 0, changed: str = "") -> Controller:
        """Start a controller. ``changed`` has lines of Python that modify the program before it runs."""
        log = self.folder / f"{name}-{len(self.controllers)}.log"
        program = ["-c", f"{changed}\nfrom gpuscaler.cli import run\nrun()"] if changed else ["-m", "gpuscaler"]
        words = [sys.executable, *program, "run", "--config", str(run_file), "--kubeconfig", str(kubeconfig)]
        with log.open("wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
        self.controllers.append(Controller(process, log, port))
        return self.controllers[-1]

    async def metrics(self, controller: Controller) -> dict[str, float]:
        """The controller's metrics, by name and labels. Waits for a controller that has just been started."""
        url = f"http://127.0.0.1:{controller.port}/metrics"

        async def reported() -> str:
            controller.check()
            try:
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return await answer.text()
            except aiohttp.ClientConnectorError:
                return ""

        text: str = await until(f"{url} answers", reported)
        rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    # The cluster

    async def install(self) -> None:
        """Create the namespace, and apply the service account and roles as an operator would."""
        await self.namespace(self.home)
        for document in roles(self.home):
            await self.apply(KINDS[document["kind"]], document)

    async def apply(self, resource: Resource, body: Json) -> None:
        metadata = body["metadata"]
        await self.admin.apply(resource, metadata["name"], body, namespace=metadata.get("namespace", ""))

    async def namespace(self, name: str) -> None:
        await self.admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await until(f"the account of {name}", lambda: self.find(SERVICE_ACCOUNTS, "default", name))

    async def find(self, resource: Resource, name: str, namespace: str = "") -> Json | None:
        try:
            obj: Json = msgspec.json.decode(await self.admin.get(resource, name, namespace=namespace))
        except NotFound:
            return None
        return obj

    async def listed(self, resource: Resource, namespace: str = "") -> list[Json]:
        return [msgspec.json.decode(raw) for raw in await self.admin.list_all(resource, namespace=namespace)]

    async def nodes(self, pool: str) -> list[Json]:
        return [node for node in await self.listed(NODES) if node["metadata"]["labels"].get(POOL_LABEL) == pool]

    async def pods(self, namespace: str) -> list[Json]:
        return await self.listed(PODS, namespace)

    async def bound(self, namespace: str, count: int) -> dict[str, str]:
        """The node of each pod, by pod name, once ``count`` pods of the namespace run or have finished."""

        async def observed() -> bool:
            pods = await self.pods(namespace)
            return sum(pod["status"].get("phase") in {"Running", "Succeeded"} for pod in pods) >= count

        try:
            await until(f"{count} pods of {namespace} run", observed)
        except AssertionError as error:
            pods = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in await self.pods(namespace)]
            raise AssertionError(f"{error}: {pods}") from None
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in await self.pods(namespace) if pod["spec"].get("nodeName")}

    async def done(self, job: str, namespace: str, count: int) -> None:
        """Wait until ``count`` pods of a Job have succeeded. The Job's status counts them, because pods are gone with their machines."""

        async def observed() -> bool:
            current = await self.find(JOBS, job, namespace)
            return current is not None and current["status"].get("succeeded", 0) == count

        await until(f"Job {namespace}/{job} is done", observed)

    async def create(self, workload: Json, namespace: str) -> None:
        resource = {"Pod": PODS, **WORKLOADS}[workload["kind"]]
        await self.admin.create(resource, workload, namespace=namespace)

    async def scale(self, kind: str, name: str, namespace: str, replicas: int) -> None:
        await self.admin.merge_patch(WORKLOADS[kind], name, {"spec": {"replicas": replicas}}, namespace=namespace)

    async def empty(self, pool: str) -> None:
        """Wait until no node of the pool is left."""

        async def observed() -> bool:
            return not await self.nodes(pool)

        try:
            await until(f"pool {pool} is empty", observed)
        except AssertionError as error:
            nodes = [(node["metadata"]["name"], node["spec"].get("taints")) for node in await self.nodes(pool)]
            raise AssertionError(f"{error}: {nodes}") from None

    async def state(self, name: str = "gpuscaler-state") -> Json | None:
        return await self.find(CONFIG_MAPS, name, self.home)

    @asynccontextmanager
    async def kubelets(
        self,
        ours: Callable[[Node], bool] = lambda _node: True,
        *,
        ahead: float = 0.0,
        pull: Callable[[str], float] = lambda _node: PULL,
    ) -> AsyncIterator[Kubelets]:
        """Simulate kubelets whose clocks are ``ahead`` by some seconds, and that take ``pull`` seconds to pull an image.

        For nodes that are not ``ours``, only the Leases are renewed. Their pods are run by others, or not at all.
        """
        picture = Picture(self.admin, clock=asyncio.get_running_loop().time, random=Random(1), resources=(PODS, NODES))
        kubelets = Kubelets(self.admin, picture, now=lambda: time.time() + ahead, pull=pull, is_ours=ours)
        leases = Leases(self.admin, now=time.time, again=_left_alone)

        def hear(batch: Batch) -> None:
            for name, item in batch.changes.items() if batch.model is Node else ():
                if isinstance(item, Node) and not ours(item):
                    leases.keep(name, item.uid)
                elif item is None:
                    leases.leave(name)

        picture.listen(hear)
        tasks = [asyncio.create_task(part.run()) for part in (kubelets, leases, picture)]
        try:
            yield kubelets
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _left_alone(_node: str) -> None:
    """Do nothing: the status of a node without a simulated kubelet stays as it is."""


@asynccontextmanager
async def stage(name: str, *, audit: bool = False, features: Mapping[str, bool] | None = None) -> AsyncIterator[Stage]:
    """Start a fresh control plane with feature gates. Its files and logs stay in a folder of ``build/e2e`` that starts with ``name``."""
    folder = OUT / f"{name}-{version()}-{os.getpid()}"
    folder.mkdir(parents=True)
    plane = ControlPlane(built(version()), folder / "plane", now=time.time(), environ=os.environ, audit=audit, features=features)
    await plane.start()
    controllers: list[Controller] = []
    try:
        access = from_kubeconfig([plane.kubeconfig], environ={})
        async with HttpTransport(access) as transport:
            admin = client(transport, field_manager="tests")
            yield Stage(plane, folder, admin, controllers)
            plane.check()
    finally:
        for controller in controllers:
            controller.kill()
        plane.stop()
        # etcd's data is 60 MB per run. The logs beside it stay.
        shutil.rmtree(plane.layout.root / "etcd", ignore_errors=True)


def client(transport: HttpTransport, **more: Any) -> Client:
    """A client for the tests themselves. Its time-outs are long, because an API server on a busy machine is slow."""
    return Client(transport, limit=RateLimit(qps=1e6, burst=1_000_000), read_timeout=PATIENCE / 4, write_timeout=PATIENCE / 4, **more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
