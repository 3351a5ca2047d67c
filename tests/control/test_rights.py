"""The roles of the installation allow everything that the program does, and nothing else."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import yaml
from tests.control.managing import managed
from tests.control.process.test_running import SMALL, Ticking
from tests.objects import pod

from gpuscaler.control.process.expander import NAME, NAMESPACE
from gpuscaler.control.process.running import ControllerProcess, ProcessContext
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.nodes import providers
from gpuscaler.embedded.nodes.leases import NAMESPACE as NODE_LEASES
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.requests import request_kind
from gpuscaler.kube.resources import NODES, PODS, WATCHED
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.settings.run_settings import RunSettings

ROLES = Path(__file__).parents[2] / "deploy" / "gpuscaler.yaml"
#: Resources for which a role names the allowed objects.
OWN = {"configmaps", "leases.coordination.k8s.io", "namespaces"}

#: Verb, resource (``leases.coordination.k8s.io``, ``pods/eviction``), and the name of the object if the right is limited to it.
Right = tuple[str, str, str]


def allowed(kind: str) -> set[Right]:
    """The rights that all roles of a kind give the controller; one other Role is for people."""
    requests = set()
    for document in filter(None, yaml.safe_load_all(ROLES.read_text())):
        own = document["kind"] == kind and not document["metadata"]["name"].endswith("-reader")
        for rule in document.get("rules", ()) if own else ():
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    plural, _, part = resource.partition("/")
                    label = (f"{plural}.{group}" if group else plural) + (f"/{part}" if part else "")
                    requests |= {(verb, label, name) for verb in rule["verbs"] for name in rule.get("resourceNames", [""])}
    return requests


class Noting:
    """A transport that records requests."""

    def __init__(self, api: ApiServer) -> None:
        self._inner = MemoryTransport(api)
        self.asked: set[Right] = set()
        self.elsewhere: set[str] = set()

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        what = request_kind(request)
        # For authorization, a create request has no object name.
        of_kubelet = f"/namespaces/{NODE_LEASES}/" in request.path
        named = what.resource in OWN and what.verb not in {"create", "list", "watch"} and not of_kubelet
        self.asked.add((what.verb, what.resource, request.path.rpartition("/")[2] if named else ""))
        if what.resource in OWN - {"namespaces"} and not of_kubelet and "/namespaces/gpuscaler/" not in f"{request.path}/":
            self.elsewhere.add(request.path)
        return self._inner.exchange(request)

    async def close(self) -> None:
        await self._inner.close()


async def test_the_roles_allow_the_requests_of_the_program_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{SMALL}    idle_after: 30s\nnamespace: gpuscaler\nhttp: {{enabled: false}}\n")
    api = ApiServer(Ticking().wall)
    api.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuscaler"}}])
    user, transport = Client(MemoryTransport(api)), Noting(api)

    def records(settings: RunSettings, place: ProcessContext) -> service.Service:
        return service.make_service(settings, place, pod="gpuscaler-0", host="here", set_level=lambda _level: None)

    running = ControllerProcess(
        file=SettingsFile(path),
        transport=transport,
        namespace="gpuscaler",
        identity="one",
        clocks=Ticking(),
        make_provider=providers.make,
        make_records=records,
    )
    async with managed(api, Ticking().wall):
        life = asyncio.create_task(running.run())
        await user.create(PODS, pod("train"), namespace="default")
        await user.create(PODS, pod("left", 1, {"gpuscaler.io/steering": "nominate"}), namespace="default")
        await user.create(PODS, pod("huge", 99), namespace="default")
        await asyncio.sleep(200)
        # Pods that a person deletes, and machines that become idle and are removed.
        for name in ("train", "left"):
            await user.delete(PODS, name, namespace="default")
        await asyncio.sleep(200)
        assert [msgspec.json.decode(body)["metadata"]["name"] for body in await user.list_all(NODES)] == []
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
    cluster_wide, own = allowed("ClusterRole"), allowed("Role")

    assert transport.asked - cluster_wide - own == set()
    assert transport.elsewhere == {f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"}
    assert {(verb, resource.label, "") for resource in WATCHED for verb in ("list", "watch")} <= cluster_wide
    # The right to list is for servers that cannot stream lists; nothing is evicted here, and no Event is repeated.
    others = {("list", resource.label, "") for resource in WATCHED} | {
        ("create", "pods/eviction", ""),
        ("patch", "events.events.k8s.io", ""),
    }
    assert (cluster_wide | own) - transport.asked - others == set()
