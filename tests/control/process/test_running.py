"""All of `gpuscaler run` except sockets, in virtual time, with a settings file and an API server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.control.managing import managed
from tests.control.world import BEGAN
from tests.objects import node, pod

from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.store import StoreError
from gpuscaler.control.process.running import ControllerProcess, MakeProvider, MakeRecords, ProcessContext, ProviderSetup, UnusableError
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.control.records.events.records import Records
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes import providers
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, Resource
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.settings.run_settings import RunSettings

SMALL = """
region: us-east-1
cloud: simulated
simulated: {boot: 20s, device_plugin_delay: 5s, capacity_error_delay: 1s}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    zones: [us-east-1a]
"""


class Ticking:
    """Both clocks, on the event loop's time."""

    def wall(self) -> float:
        return BEGAN + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Jumping(Ticking):
    """Clocks of a machine that was suspended for some seconds, during which none of its processes ran."""

    slept = 0.0

    def wall(self) -> float:
        return super().wall() + self.slept

    def monotonic(self) -> float:
        return super().monotonic() + self.slept


class RememberingRecords(Records):
    """Records that remember the controllers that led, and the settings."""

    def __init__(self) -> None:
        super().__init__()
        self.controller: Controller | None = None
        self.place: ProcessContext | None = None
        self.changes: list[RunSettings] = []
        self.orders: list[ledger.Order] = []

    def sent(self, order: ledger.Order, _machines: tuple[ledger.OrderedMachine, ...], _memory: Memory, _now: float, /) -> None:
        self.orders.append(order)

    def led_by(self, controller: Controller | None, /) -> None:
        self.controller = controller

    def settings_changed(self, settings: RunSettings, /) -> None:
        self.changes.append(settings)

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Cluster:
    """An API server with a scheduler, and processes of the controller."""

    api: ApiServer
    folder: Path
    lives: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.user = Client(MemoryTransport(self.api))
        self.path = self.folder / "run.yaml"

    def start(
        self,
        text: str = SMALL,
        *,
        identity: str = "one",
        dry_run: bool = False,
        transport: MemoryTransport | None = None,
        make_records: MakeRecords | None = None,
        make_provider: MakeProvider = providers.make,
        clocks: Ticking | None = None,
    ) -> tuple[ControllerProcess, RememberingRecords]:
        self.path.write_text(text)
        recorder = RememberingRecords()

        def records(_settings: RunSettings, place: ProcessContext) -> RememberingRecords:
            recorder.place = place
            return recorder

        running = ControllerProcess(
            file=SettingsFile(self.path),
            transport=transport or MemoryTransport(self.api),
            namespace="kube-system",
            identity=identity,
            clocks=clocks or Ticking(),
            make_provider=make_provider,
            make_records=make_records or records,
            dry_run=dry_run,
        )
        self.lives.append(asyncio.get_running_loop().create_task(running.run()))
        return running, recorder

    async def stop(self) -> None:
        life = self.lives.pop()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    async def all(self, resource: Resource) -> list[dict[str, Any]]:
        """All objects except those of the cluster's own namespace."""
        namespace = "default" if resource is PODS else ""
        return [msgspec.json.decode(body) for body in await self.user.list_all(resource, namespace=namespace)]

    async def submit(self, name: str) -> None:
        await self.user.create(PODS, pod(name), namespace="default")

    async def bound(self) -> list[str]:
        return [item["metadata"]["name"] for item in await self.all(PODS) if item["spec"].get("nodeName")]

    async def lease(self) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.json.decode(await self.user.get(LEASES, "gpuscaler", namespace="kube-system"))
        spec: dict[str, Any] = body["spec"]
        return spec


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    clocks = Ticking()
    made = Cluster(ApiServer(clocks.wall), tmp_path)
    async with managed(made.api, clocks.wall):
        try:
            yield made
        finally:
            while made.lives:
                await made.stop()


async def test_a_missing_right_to_watch_events_is_reported_until_it_is_granted(cluster: Cluster) -> None:
    message = 'events is forbidden: User "gpuscaler" cannot watch resource "events" in API group "" at the cluster scope'
    cluster.api.faults.add(Fault(path="/events", refusal=Failure(403, "Forbidden", message)))
    _, recorder = cluster.start()
    await asyncio.sleep(10)
    assert recorder.place is not None
    (trouble,) = recorder.place.troubles()
    assert trouble.startswith(f"Events with the scheduler's failed attempts cannot be watched: {message}")
    cluster.api.faults.clear()
    await asyncio.sleep(10)
    assert recorder.place.troubles() == ()


async def test_exporters_whose_pages_are_to_be_read_and_cannot_be_listed_are_reported_until_they_can(cluster: Cluster) -> None:
    cluster.api.faults.add(Fault(path="/namespaces/gpu-exporter/pods", refusal=Failure(403, "Forbidden", "pods is forbidden")))
    _, recorder = cluster.start(f"{SMALL}exporters: {{namespace: gpu-exporter}}")
    await asyncio.sleep(10)
    assert recorder.place is not None
    (trouble,) = recorder.place.troubles()
    assert trouble.startswith("the exporters in namespace gpu-exporter cannot be listed: pods is forbidden")
    cluster.api.faults.clear()
    await asyncio.sleep(10)
    assert recorder.place.troubles() == ()


async def test_a_pending_pod_gets_a_machine_of_the_simulated_cloud(cluster: Cluster) -> None:
    cluster.start()
    await cluster.submit("train")
    await asyncio.sleep(60)

    assert await cluster.bound() == ["train"]
    assert [node["metadata"]["labels"]["gpuscaler.io/pool"] for node in await cluster.all(NODES)] == ["gpu"]
    assert (await cluster.lease())["holderIdentity"] == "one"


async def test_a_leader_that_loses_its_lease_while_a_task_fails_leads_again_later(cluster: Cluster) -> None:
    async def fails_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Unreachable("the API server went away at that very moment")

    async def provider(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
        made = await providers.make(settings, place)
        return replace(made, parts=[*made.parts, fails_at_the_end])

    cluster.start(make_provider=provider)
    await asyncio.sleep(5)
    renewed = "2027-01-15T08:00:05.000000Z"
    taken = {"spec": {"holderIdentity": "another", "renewTime": renewed, "acquireTime": renewed, "leaseDurationSeconds": 15}}
    await cluster.user.merge_patch(LEASES, "gpuscaler", taken, namespace="kube-system")
    await asyncio.sleep(12)
    assert (await cluster.lease())["holderIdentity"] == "another"
    await asyncio.sleep(30)
    assert (await cluster.lease())["holderIdentity"] == "one"


async def test_a_dry_run_writes_nothing_to_the_api_server(cluster: Cluster) -> None:
    await cluster.submit("train")
    await asyncio.sleep(5)
    before = {kind.kind.plural: len(kind.within("")) for kind in cluster.api.store}
    revision = cluster.api.store.revision
    cluster.start(dry_run=True)
    await asyncio.sleep(120)

    assert cluster.api.store.revision == revision
    assert {kind.kind.plural: len(kind.within("")) for kind in cluster.api.store} == before


async def test_a_stopped_controller_releases_its_lease_and_another_one_leads_at_once(cluster: Cluster) -> None:
    cluster.start(identity="one")
    await asyncio.sleep(10)
    cluster.start(identity="two")
    await asyncio.sleep(10)
    assert (await cluster.lease())["holderIdentity"] == "one"
    cluster.lives.reverse()
    await cluster.stop()
    assert (await cluster.lease())["holderIdentity"] == ""
    await asyncio.sleep(6)

    assert (await cluster.lease())["holderIdentity"] == "two"


async def test_a_changed_run_file_takes_effect_without_a_restart(cluster: Cluster) -> None:
    _, recorder = cluster.start(f"{SMALL}limits: {{gpus: 0}}")
    await cluster.submit("train")
    await asyncio.sleep(60)
    assert await cluster.bound() == []
    cluster.path.write_text(SMALL)
    await asyncio.sleep(60)

    assert await cluster.bound() == ["train"]
    assert len(recorder.changes) == 1


async def test_a_run_file_changed_while_the_cloud_provider_is_created_takes_effect(cluster: Cluster) -> None:
    async def make(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
        made = await providers.make(settings, place)
        await asyncio.sleep(30)
        return made

    _, recorder = cluster.start(f"{SMALL}limits: {{gpus: 0}}", make_provider=make)
    await cluster.submit("train")
    await asyncio.sleep(10)
    cluster.path.write_text(SMALL.replace("g4dn.xlarge", "g5.xlarge"))
    await asyncio.sleep(90)

    assert await cluster.bound() == ["train"]
    assert len(recorder.changes) == 1


async def test_a_leader_suspended_until_its_lease_expired_leads_again(cluster: Cluster) -> None:
    """A write is stopped and lost leadership is detected at nearly the same time: one must not hide the other."""

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)

    async def make(settings: RunSettings, place: ProcessContext) -> ProviderSetup:
        made = await providers.make(settings, place)
        return replace(made, parts=(*made.parts, slow))

    clocks = Jumping()
    cluster.start(make_provider=make, clocks=clocks)
    await asyncio.sleep(31)
    clocks.slept += 60
    await cluster.submit("train")
    await asyncio.sleep(90)

    assert await cluster.bound() == ["train"]


async def test_a_pod_that_was_pending_before_the_controller_started_is_served_at_once(cluster: Cluster) -> None:
    await cluster.submit("train")
    await asyncio.sleep(30)
    _, recorder = cluster.start()
    await asyncio.sleep(3)

    assert len(recorder.orders) == 1


async def test_machines_are_bought_in_a_pool_that_a_changed_run_file_adds(cluster: Cluster) -> None:
    cluster.start(f"{SMALL}    max: 0\n")
    await cluster.submit("train")
    await asyncio.sleep(30)
    cluster.path.write_text(f"{SMALL}    max: 0\n  - name: more\n    types: [g5.xlarge]\n    zones: [us-east-1b]\n")
    await asyncio.sleep(60)

    assert await cluster.bound() == ["train"]
    assert [node["metadata"]["labels"]["gpuscaler.io/pool"] for node in await cluster.all(NODES)] == ["more"]


async def test_a_disconnected_leader_stops_writing_and_another_controller_takes_over(cluster: Cluster) -> None:
    network = MemoryTransport(cluster.api)
    _, first = cluster.start(identity="one", transport=network)
    await asyncio.sleep(10)
    _, second = cluster.start(identity="two")
    await asyncio.sleep(10)
    network.cut()
    await cluster.submit("train")
    await asyncio.sleep(25)
    assert (first.controller, second.controller is not None) == (None, True)
    assert (await cluster.lease())["holderIdentity"] == "two"
    network.mend()
    await asyncio.sleep(60)

    assert await cluster.bound() == ["train"]
    assert (len(first.orders), len(second.orders)) == (0, 1)
    assert first.controller is None


async def test_a_saved_state_that_another_controller_changed_is_read_again(cluster: Cluster) -> None:
    _, recorder = cluster.start()
    await asyncio.sleep(10)
    before = recorder.controller
    await cluster.user.merge_patch(CONFIG_MAPS, "gpuscaler-state", {"metadata": {"labels": {"a": "b"}}}, namespace="kube-system")
    await cluster.submit("train")
    await asyncio.sleep(60)

    assert await cluster.bound() == ["train"]
    assert recorder.controller is not before


async def test_a_saved_state_of_a_newer_version_is_left_unchanged_and_ends_the_process(cluster: Cluster) -> None:
    cluster.start()
    await asyncio.sleep(10)
    await cluster.stop()
    await cluster.user.merge_patch(CONFIG_MAPS, "gpuscaler-state", {"data": {"form": "99"}}, namespace="kube-system")
    cluster.start(identity="two")
    with pytest.raises(StoreError, match="saw format '99'"):
        async with asyncio.timeout(30):
            await cluster.lives[-1]
    assert (await cluster.lease())["holderIdentity"] == ""


async def test_the_run_command_writes_events_status_and_history_while_it_controls(cluster: Cluster) -> None:
    def records(settings: RunSettings, place: ProcessContext) -> service.Service:
        return service.make_service(settings, place, pod="", host="here", set_level=lambda _level: None)

    cluster.start(f"{SMALL}http: {{enabled: false}}", identity="one", make_records=records)
    await asyncio.sleep(10)
    cluster.start(f"{SMALL}http: {{enabled: false}}", identity="two", make_records=records)
    await cluster.submit("train")
    await asyncio.sleep(120)

    assert await cluster.bound() == ["train"]
    events = [event["note"] if "note" in event else event.get("message", "") for event in await cluster.all(EVENTS)]
    assert any("g4dn.xlarge" in note for note in events), events
    names = {one["metadata"]["name"] for one in await cluster.all(CONFIG_MAPS)}
    assert {"gpuscaler-state", "gpuscaler-status"} <= names
    assert all(not life.done() for life in cluster.lives)


async def test_the_simulated_kubelet_ignores_pods_on_real_nodes(cluster: Cluster) -> None:
    real = node("real", providerID="aws:///us-east-1a/i-1")
    cluster.api.load([real, pod("bound", 0, nodeName="real", status={"phase": "Pending"})])
    cluster.start()
    await cluster.submit("train")
    await asyncio.sleep(10)
    await cluster.user.delete(PODS, "bound", namespace="default")
    await asyncio.sleep(120)
    phases = {item["metadata"]["name"]: item["status"]["phase"] for item in await cluster.all(PODS)}

    assert phases == {"bound": "Pending", "train": "Running"}


async def test_an_unusable_spot_series_file_ends_the_process_with_an_error_about_its_key(cluster: Cluster) -> None:
    cluster.start(SMALL.replace("boot: 20s", "boot: 20s, dry: nowhere.csv"))
    with pytest.raises(UnusableError, match=r"simulated\.dry: .*nowhere\.csv: cannot be read"):
        async with asyncio.timeout(30):
            await cluster.lives[-1]


async def test_a_pod_handled_by_two_simulated_kubelets_runs_once(cluster: Cluster) -> None:
    """`gpuscaler cluster` and `gpuscaler run` both simulate kubelets: one starts a pod before the other has pulled its image."""
    picture = Picture(cluster.user, clock=Ticking().monotonic, random=Random(3), resources=(PODS, NODES))
    phases: list[str] = []

    def hear(batch: Batch) -> None:
        phases.extend(item.phase for item in batch.changes.values() if isinstance(item, Pod) and item.name == "train")

    picture.listen(hear)
    other = Kubelets(cluster.user, picture, now=Ticking().wall, pull=lambda _node: 0.0)
    tasks = [asyncio.create_task(part.run()) for part in (picture, other)]
    cluster.start()
    await cluster.user.create(PODS, pod("train", 1, {"gpuscaler.io/run-for": "5s"}), namespace="default")
    await asyncio.sleep(300)
    for task in tasks:
        task.cancel()

    assert list(dict.fromkeys(phases)) == ["Pending", "Running", "Succeeded"]
    assert phases == sorted(phases, key=["Pending", "Running", "Succeeded"].index)
