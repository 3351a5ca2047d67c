"""Disks for claims: what a CSI driver's provisioner does, in a few lines. A disk is in the zone of the node that the scheduler chose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists
from gpuscaler.kube.resources import CSI_DRIVERS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES

DRIVER, CLASS = "disk.example.com", "zonal"
ZONE, CHOSEN = "topology.kubernetes.io/zone", "volume.kubernetes.io/selected-node"

Json = dict[str, Any]


def claim(name: str) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def provisioner(client: Client) -> AsyncIterator[None]:
    """Disks are made for as long as this is open."""
    named = {"metadata": {"name": CLASS}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **named})
    driver = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
    await client.create(CSI_DRIVERS, {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **driver})
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
                found = msgspec.json.decode(await client.get(NODES, node))
                try:
                    await client.create(PERSISTENT_VOLUMES, _disk(claim, found["metadata"]["labels"][ZONE]))
                except AlreadyExists:
                    continue
        await asyncio.sleep(0.3)


def _disk(claim: Json, zone: str) -> Json:
    name = f"disk-{claim['metadata']['uid']}"
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec = {
        "capacity": claim["spec"]["resources"]["requests"],
        "accessModes": claim["spec"]["accessModes"],
        "storageClassName": CLASS,
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": DRIVER, "volumeHandle": name},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            **{field: claim["metadata"][field] for field in ("name", "namespace", "uid")},
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
