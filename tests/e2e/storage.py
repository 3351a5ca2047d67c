"""A minimal CSI provisioner and attacher. It creates disks for claims, in the zone that the scheduler chose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, NotFound
from gpuscaler.kube.resources import (
    CSI_DRIVERS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    Resource,
)

#: Storage classes: one for disks that need no attaching, and one for disks that must be attached to a node.
CLASS, ATTACHED = "zonal", "attached"
#: The driver of each class, and whether it attaches disks.
DRIVERS = {CLASS: ("disk.example.com", False), ATTACHED: ("block.example.com", True)}
ZONE, CHOSEN = "topology.kubernetes.io/zone", "volume.kubernetes.io/selected-node"
#: With this annotation, a kubelet leaves attaching to the attach-detach controller of kube-controller-manager.
MANAGED = "volumes.kubernetes.io/controller-managed-attach-detach"
FINALIZER = "external-attacher/block-example-com"

Json = dict[str, Any]


def claim(name: str, storage_class: str = CLASS) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def provisioner(client: Client) -> AsyncIterator[None]:
    """Create disks for claims until the block ends."""
    for storage_class, (driver, attaches) in DRIVERS.items():
        named = {"metadata": {"name": storage_class}, "provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"}
        await client.create(STORAGE_CLASSES, {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **named})
        csi_driver = {"metadata": {"name": driver}, "spec": {"attachRequired": attaches}}
        await client.create(CSI_DRIVERS, {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **csi_driver})
    life = asyncio.create_task(_provide(client))
    try:
        yield
        if life.done():
            life.result()
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def _provide(client: Client) -> None:
    while True:
        for raw in await client.list_all(PERSISTENT_VOLUME_CLAIMS):
            claim = msgspec.json.decode(raw)
            node = claim["metadata"].get("annotations", {}).get(CHOSEN)
            if node and claim["status"]["phase"] == "Pending":
                current = msgspec.json.decode(await client.get(NODES, node))
                try:
                    await client.create(PERSISTENT_VOLUMES, _disk(claim, current["metadata"]["labels"][ZONE]))
                except AlreadyExists:
                    continue
        await asyncio.sleep(0.3)


def _disk(claim: Json, zone: str) -> Json:
    name = f"disk-{claim['metadata']['uid']}"
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec = {
        "capacity": claim["spec"]["resources"]["requests"],
        "accessModes": claim["spec"]["accessModes"],
        "storageClassName": claim["spec"]["storageClassName"],
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": DRIVERS[claim["spec"]["storageClassName"]][0], "volumeHandle": name},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            **{field: claim["metadata"][field] for field in ("name", "namespace", "uid")},
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


@dataclass
class Attacher:
    """The attacher of a CSI driver. It also marks nodes so that the real attach-detach controller attaches their disks.

    It attaches at once, and confirms that a disk is detached only while ``detaches`` is true.
    """

    client: Client
    detaches: bool = False

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            for node in await self._listed(NODES):
                if MANAGED not in node["metadata"].get("annotations", {}):
                    with suppress(NotFound):
                        await self.client.merge_patch(NODES, node["metadata"]["name"], {"metadata": {"annotations": {MANAGED: "true"}}})
            for attachment in await self._listed(VOLUME_ATTACHMENTS):
                # The attach-detach controller may delete a VolumeAttachment before it is handled here.
                with suppress(NotFound):
                    await self._attend(attachment)
            await asyncio.sleep(0.3)

    async def _attend(self, attachment: Json) -> None:
        name = attachment["metadata"]["name"]
        if "deletionTimestamp" not in attachment["metadata"]:
            if not attachment.get("status", {}).get("attached"):
                await self.client.merge_patch(VOLUME_ATTACHMENTS, name, {"metadata": {"finalizers": [FINALIZER]}})
                await self.client.merge_patch(VOLUME_ATTACHMENTS, name, {"status": {"attached": True}}, subresource="status")
        elif self.detaches:
            await self.client.merge_patch(VOLUME_ATTACHMENTS, name, {"metadata": {"finalizers": None}})

    async def attachments(self, node: str) -> list[Json]:
        """The VolumeAttachments of a node."""
        return [attachment for attachment in await self._listed(VOLUME_ATTACHMENTS) if attachment["spec"]["nodeName"] == node]

    async def _listed(self, resource: Resource) -> list[Json]:
        return [msgspec.json.decode(raw) for raw in await self.client.list_all(resource)]
