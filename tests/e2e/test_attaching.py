"""Removals of machines with disks, which kube-controller-manager's attach-detach controller attaches and a slow driver detaches."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import structlog
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.removals import Sleeping, beside, controller, removals
from tests.e2e.stage import Json, Stage, stage, until, version
from tests.e2e.storage import ATTACHED, Attacher, claim, provisioner

from gpuscaler.clouds.protocol import Refusal
from gpuscaler.control.process.running import ProcessContext, ProviderSetup
from gpuscaler.embedded.nodes import providers
from gpuscaler.kube.resources import EVENTS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS
from gpuscaler.lifecycle.termination.removing import DETACH_SECONDS
from gpuscaler.planning.state.ledger.entries import DETACHING
from gpuscaler.settings.run_settings import RunSettings

pytestmark = pytest.mark.e2e
#: The pool, and the namespace of its pods.
NAME = "disks"


@dataclass
class Ends:
    """Records which volumes are attached to each node when the cloud is asked to end its machine, by node name."""

    attacher: Attacher
    attached: dict[str, list[str]] = field(default_factory=dict)

    async def make(self, settings: RunSettings, place: ProcessContext) -> ProviderSetup:
        """The simulated cloud, with a wrapper around removals."""
        made = await providers.make(settings, place)
        remove = made.provider.remove

        async def noted(ids: Sequence[str]) -> Mapping[str, Refusal | None]:
            for ident in ids:
                node = ident.rpartition("/")[2]
                self.attached[node] = [volume_of(attachment) for attachment in await self.attacher.attachments(node)]
            return await remove(ids)

        made.provider.remove = noted  # type: ignore[method-assign]  # the wrapper records and then calls the original
        return made


def volume_of(attachment: Json) -> str:
    name: str = attachment["spec"]["source"]["persistentVolumeName"]
    return name


def still(volume: str) -> str:
    """The text with which a removal reports that it waits for a disk."""
    return f"volume {volume} is still attached to it"


def test_a_drained_machine_is_ended_once_its_disk_is_detached_or_after_a_timeout() -> None:
    asyncio.run(_play())


async def _play() -> None:
    async with stage("attaching") as made, made.kubelets(), provisioner(made.admin):
        await made.install()
        attacher, clocks = Attacher(made.admin), Sleeping()
        ends = Ends(attacher)
        pools = [{"name": NAME, "types": ["g4dn.12xlarge"]}]
        pace = {"resync": "2s", "consolidate": "2s"}
        run_file = made.run_file("run", pools, http={"enabled": False}, leader_election={"enabled": False}, pace=pace)
        with structlog.testing.capture_logs():
            async with beside(asyncio.create_task(attacher.run())), controller(made, run_file, clocks, ends.make):
                leaves, stays = await _fill(made)
                await _drained(made, ends, leaves, stays)
                await _bounded(made, ends, clocks, stays)


async def _fill(made: Stage) -> tuple[str, str]:
    """Create two full machines: one with a pod that has a disk, one with a pod that must not be moved. The rest can be scaled down."""
    await made.namespace(NAME)
    await made.admin.create(PERSISTENT_VOLUME_CLAIMS, claim("data", ATTACHED), namespace=NAME)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await made.create(deployment("saves", 1, pod_spec(NAME, volumes=volumes), movable=True), NAME)
    await made.create(deployment("fills", 1, pod_spec(NAME, gpus=3)), NAME)
    (leaves,) = set((await made.bound(NAME, 2)).values())
    await made.create(deployment("goes", 1, pod_spec(NAME, gpus=3)), NAME)
    await made.create(pod("alone", NAME), NAME)
    (stays,) = set((await made.bound(NAME, 4)).values()) - {leaves}
    return leaves, stays


async def _attached(made: Stage, attacher: Attacher, node: str) -> str:
    """Wait until a disk is attached to a node; returns its volume.

    The attach-detach controller ignores pods of nodes that it does not manage yet, and checks again when such a pod changes.
    """

    async def observed() -> str:
        attachments = await attacher.attachments(node)
        if not attachments:
            for pending in [pod for pod in await made.pods(NAME) if pod["spec"].get("volumes")]:
                body = {"metadata": {"annotations": {"touched": str(time.time())}}}
                await made.admin.merge_patch(PODS, pending["metadata"]["name"], body, namespace=NAME)
        return next((volume_of(attachment) for attachment in attachments if attachment.get("status", {}).get("attached")), "")

    volume: str = await until(f"a disk is attached to {node}", observed)
    return volume


async def _drained(made: Stage, ends: Ends, leaves: str, stays: str) -> None:
    """The pod moves to the other machine. Its old machine is ended only after the slow driver has detached the disk."""
    volume = await _attached(made, ends.attacher, leaves)
    for name in ("fills", "goes"):
        await made.scale("Deployment", name, NAME, 0)
    await _held(made, ends, leaves, volume)
    ends.attacher.detaches = True
    await _gone(made, leaves)
    assert ends.attached == {leaves: []}
    assert set((await made.bound(NAME, 2)).values()) == {stays}
    await _announced(made, leaves, volume)


async def _held(made: Stage, ends: Ends, node: str, volume: str) -> None:
    """Kubernetes wants the disk detached. The machine stays, and the status reports what it waits for."""

    async def reported() -> bool:
        return [(removal.step, removal.held) for removal in await removals(made) if removal.node == node] == [(DETACHING, still(volume))]

    await until(f"the removal of {node} waits for its disk", reported)

    async def wanted() -> bool:
        return ["deletionTimestamp" in attachment["metadata"] for attachment in await ends.attacher.attachments(node)] == [True]

    await until(f"the attach-detach controller wants the disk of {node} detached", wanted)
    assert node not in ends.attached


async def _announced(made: Stage, node: str, volume: str) -> None:
    """An Event on the node reports what its removal waited for."""

    async def announced() -> bool:
        events = [event for event in await made.listed(EVENTS, "default") if event["regarding"]["name"] == node]
        return any(event["reason"] == "ScaleDownHeld" and still(volume) in event["note"] for event in events)

    await until(f"{node} has an Event about its disk", announced)


async def _gone(made: Stage, node: str) -> None:
    async def is_gone() -> bool:
        return await made.find(NODES, node) is None

    await until(f"{node} is gone", is_gone)


async def _bounded(made: Stage, ends: Ends, clocks: Sleeping, node: str) -> None:
    """All work is done. The driver never detaches the disk from the other machine, which is ended after a limited wait."""
    ends.attacher.detaches = False
    volume = await _attached(made, ends.attacher, node)
    await made.scale("Deployment", "saves", NAME, 0)
    await made.admin.delete(PODS, "alone", namespace=NAME)
    await _held(made, ends, node, volume)
    clocks.slept += DETACH_SECONDS
    await _gone(made, node)
    assert ends.attached[node] == [volume]
    await _announced(made, node, volume)
    assert [volume_of(attachment) for attachment in await ends.attacher.attachments(node)] == [volume]
    print(f"\nKubernetes {version()}: a machine waited for its disk, and another one {DETACH_SECONDS:g} s for a disk that stayed attached")
