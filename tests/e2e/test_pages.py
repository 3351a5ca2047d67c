"""Access to the leader's pages through a real API server: its port-forward, its RBAC, and a kubelet that answers for the pod."""

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import trustme
import yaml
from aiohttp import web
from tests.e2e.stage import NAMESPACE, Json, Stage, stage, version

from gpuscaler.control.records.status.reporting import status_config_map
from gpuscaler.control.records.status.status import Process, Status
from gpuscaler.control.records.status.why import Explanation
from gpuscaler.embedded.apiserver.objects.forwarding import forward
from gpuscaler.kube.portforward import PodPort
from gpuscaler.kube.resources import CONFIG_MAPS, NODES, PODS, SERVICE_ACCOUNTS, Resource

pytestmark = pytest.mark.e2e

NODE, LEADER, PORT = "holder", "leader", 8081
RBAC = "rbac.authorization.k8s.io"
ROLES, BINDINGS = Resource(RBAC, "v1", "roles", "Role"), Resource(RBAC, "v1", "rolebindings", "RoleBinding")
#: Rules of readers without the right to forward ports, and with only half of it.
STATUS_ONLY = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
GET_ONLY = [*STATUS_ONLY, {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get"]}]


@dataclass(frozen=True)
class Asked:
    """Results of ``gpuscaler why`` and ``replay`` for users with the chart's Role, without the right, and with half of it."""

    reader: "subprocess.CompletedProcess[str]"
    nobody: "subprocess.CompletedProcess[str]"
    nothing_replays: "subprocess.CompletedProcess[str]"
    half: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def asked() -> Asked:
    return asyncio.run(_play())


async def _play() -> Asked:
    async with stage("pages") as made, serving(web.get("/why/pod/default/train", _page)) as (page, _):
        await made.install()

        async def forwarded(request: web.Request) -> web.StreamResponse:
            names = request.match_info
            where = PodPort(namespace=names["namespace"], pod=names["pod"], port=int(request.query["port"]))
            return await forward(request, where, page if where == PodPort(namespace=NAMESPACE, pod=LEADER, port=PORT) else None)

        authority = trustme.CA()
        async with serving(web.get("/portForward/{namespace}/{pod}", forwarded), authority=authority) as (kubelet, _):
            await _cluster(made, kubelet)
            users = {
                "reader": await _user(made, "reader", "gpuscaler-reader"),
                "unprivileged": await _user(made, "unprivileged", "status-only", STATUS_ONLY),
                "half": await _user(made, "half", "get-only", GET_ONLY),
            }
            return Asked(
                reader=await _run(users["reader"], "why", "pod", "default/train"),
                nobody=await _run(users["unprivileged"], "why", "pod", "default/train"),
                nothing_replays=await _run(users["unprivileged"], "replay"),
                half=await _run(users["half"], "why", "pod", "default/train"),
            )


async def _page(_request: web.Request) -> web.Response:
    answer = Explanation("pod default/train", known=True, now=("it is on node gpu-1",), happened=(), at=time.time())
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


@asynccontextmanager
async def serving(route: web.RouteDef, *, authority: trustme.CA | None = None) -> AsyncIterator[tuple[int, web.AppRunner]]:
    """Run a server on this machine, with TLS if there is an ``authority``."""
    tls = None
    if authority is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
    app = web.Application()
    app.add_routes([route])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1], runner
    finally:
        await runner.cleanup()


async def _cluster(made: Stage, kubelet: int) -> None:
    """Create a node whose kubelet is a port of this machine, the leader's pod on it, and the status that names the pod."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet}},
    }
    await made.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status})
    leader = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": LEADER},
        "spec": {"nodeName": NODE, "containers": [{"name": "controller", "image": "gpuscaler:1"}]},
    }
    await made.admin.create(PODS, leader, namespace=NAMESPACE)
    status_now = Status(time.time(), Process("one", "0", LEADER, NAMESPACE, PORT, "127.0.0.1"))
    await made.admin.create(CONFIG_MAPS, status_config_map(status_now, NAMESPACE), namespace=NAMESPACE)


async def _user(made: Stage, name: str, role: str, rules: list[Json] | None = None) -> Path:
    """Create an account with a Role; returns its kubeconfig. The Role is created first if ``rules`` are given."""
    place = {"namespace": NAMESPACE}
    if rules is not None:
        await made.admin.create(
            ROLES, {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": role, **place}, "rules": rules}, namespace=NAMESPACE
        )
    await made.admin.create(
        SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **place}}, namespace=NAMESPACE
    )
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, **place},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, **place}],
    }
    await made.admin.create(BINDINGS, binding, namespace=NAMESPACE)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = msgspec.json.decode(await made.admin.create(SERVICE_ACCOUNTS, request, namespace=NAMESPACE, name=name, subresource="token"))
    path = made.folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(made.plane.config(token=token["status"]["token"])))
    return path


async def _run(kubeconfig: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gpuscaler", *words, "--namespace", NAMESPACE, "--kubeconfig", str(kubeconfig)]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=120)


def test_a_user_with_the_chart_s_reader_role_reads_pages_through_the_api_server(asked: Asked) -> None:
    assert asked.reader.stdout == "pod default/train:\n  it is on node gpu-1\n", asked.reader.stderr
    assert (asked.reader.returncode, asked.reader.stderr) == (0, "")


def test_a_user_who_may_not_forward_ports_is_shown_the_missing_permission(asked: Asked) -> None:
    for done in (asked.nobody, asked.nothing_replays):
        assert 'cannot get resource "pods/portforward" in API group "" in the namespace "gpuscaler"' in done.stderr
        assert "expected get and create on pods/portforward in namespace gpuscaler" in done.stderr
    assert asked.nothing_replays.returncode == 3


def test_from_kubernetes_1_35_on_port_forwarding_needs_permission_to_create_as_well_as_to_get(asked: Asked) -> None:
    """The API server's message does not name the missing right, so only our own text does."""
    refused = 'pods "leader" is forbidden' in asked.half.stderr and "expected get and create on pods/portforward" in asked.half.stderr

    assert refused is (tuple(map(int, version().split(".")[:2])) >= (1, 35)), asked.half.stderr
