"""Storage objects from Kubernetes JSON."""

from typing import Any

import pytest

from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"


def decode(kind: str, api_version: str = "v1", **raw: Any) -> object:
    metadata = {"name": "x", **raw.pop("metadata", {})}
    return decode_object({"apiVersion": api_version, "kind": kind, "metadata": metadata, **raw}, Interner())


def test_a_csi_volume_has_its_topology_and_claim() -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "volumeAttributesClassName": "gold",
        "claimRef": {"namespace": "n", "name": "claim", "uid": "u"},
        "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        "volumeMode": "Block",
    }
    metadata = {"labels": {ZONE: "a", "app": "db"}, "annotations": {"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}}
    assert decode("PersistentVolume", metadata=metadata, spec=spec, status={"phase": "Bound"}) == PersistentVolume(
        name="x",
        node_affinity=NodeSelector((NodeSelectorTerm((Requirement(ZONE, "In", ("a",)),)),)),
        labels=(("app", "db"), (ZONE, "a")),
        driver="ebs.csi.aws.com",
        handle="vol-1",
        storage_class="fast",
        claim="n/claim",
        phase="Bound",
        capacity=10 * 2**30,
        access_modes=("ReadWriteOnce",),
        volume_mode="Block",
        migrated=True,
        claim_uid="u",
        attributes_class="gold",
    )


@pytest.mark.parametrize(
    ("source", "driver", "handle"),
    [
        ({"awsElasticBlockStore": {"volumeID": "aws://a/vol-1"}}, "awsElasticBlockStore", "aws://a/vol-1"),
        ({"gcePersistentDisk": {"pdName": "disk"}}, "gcePersistentDisk", "disk"),
        ({"azureDisk": {"diskName": "d", "diskURI": "/d"}}, "azureDisk", "/d"),
        ({"cinder": {"volumeID": "c"}}, "cinder", "c"),
        ({"vsphereVolume": {"volumePath": "[a] b.vmdk"}}, "vsphereVolume", "[a] b.vmdk"),
        ({"portworxVolume": {"volumeID": "p"}}, "portworxVolume", "p"),
        ({"rbd": {"monitors": ["m"], "pool": "q", "image": "i"}}, "rbd", "q/i@m"),
        ({"nfs": {"server": "s", "path": "/"}}, "", ""),
    ],
)
def test_volumes_of_in_tree_plug_ins_are_named_by_plug_in_and_disk(source: Json, driver: str, handle: str) -> None:
    decoded = decode("PersistentVolume", spec=source)
    assert isinstance(decoded, PersistentVolume)
    assert (decoded.driver, decoded.handle) == (driver, handle)


def test_a_claim_has_its_volume_and_requests() -> None:
    metadata = {
        "namespace": "n",
        "uid": "u",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "node-1"},
        "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "pod-uid", "controller": True}],
        "deletionTimestamp": "1970-01-01T00:00:05Z",
    }
    spec = {
        "volumeName": "pv",
        "storageClassName": "",
        "accessModes": ["ReadWriteOncePod"],
        "resources": {"requests": {"storage": "1G"}},
        "selector": {"matchLabels": {"a": "b"}},
    }
    assert decode("PersistentVolumeClaim", metadata=metadata, spec=spec, status={"phase": "Bound"}) == PersistentVolumeClaim(
        namespace="n",
        name="x",
        volume="pv",
        bound=True,
        phase="Bound",
        storage_class="",
        access_modes=("ReadWriteOncePod",),
        request=10**9,
        selector=LabelSelector((Requirement("a", "In", ("b",)),)),
        selected_node="node-1",
        deleted=5.0,
        owner_uid="pod-uid",
        uid="u",
    )


def test_no_class_differs_from_the_empty_class_and_the_old_annotation_takes_precedence() -> None:
    old = {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}
    classes = []
    for metadata, spec in (({}, {}), ({}, {"storageClassName": ""}), (old, {"storageClassName": "new"})):
        decoded = decode("PersistentVolumeClaim", metadata=metadata, spec=spec)
        assert isinstance(decoded, PersistentVolumeClaim)
        classes.append(decoded.storage_class)
    assert classes == [None, "", "old"]


@pytest.mark.parametrize("api_version", ["storage.k8s.io/v1", "storage.k8s.io/v1beta1"])
def test_a_storage_class_has_its_binding_mode_and_topology(api_version: str) -> None:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}, {}]
    metadata = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    raw = {"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topologies}
    terms = (NodeSelectorTerm((Requirement(ZONE, "In", ("a", "b")),)), NodeSelectorTerm())
    expected = StorageClass("x", "ebs.csi.aws.com", wait_for_first_consumer=True, allowed_topologies=terms, default=True)
    assert decode("StorageClass", api_version, metadata=metadata, **raw) == expected


def test_csi_nodes_distinguish_a_limit_of_zero_from_no_limit() -> None:
    drivers = [{"name": "a", "allocatable": {"count": 25}}, {"name": "b", "allocatable": None}, {"name": "c", "allocatable": {"count": 0}}]
    metadata = {"annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd,"}}
    decoded = decode("CSINode", "storage.k8s.io/v1", metadata=metadata, spec={"drivers": drivers})
    assert decoded == CSINode("x", (("a", 25), ("b", None), ("c", 0)), ("kubernetes.io/aws-ebs", "kubernetes.io/gce-pd"))


def test_drivers_capacities_and_attachments_are_read() -> None:
    version = "storage.k8s.io/v1"
    assert decode("CSIDriver", version, spec={"storageCapacity": True}) == CSIDriver("x", storage_capacity=True)
    raw = {"storageClassName": "fast", "nodeTopology": {"matchLabels": {ZONE: "a"}}, "capacity": "5Gi"}
    topology = LabelSelector((Requirement(ZONE, "In", ("a",)),))
    decoded = decode("CSIStorageCapacity", "storage.k8s.io/v1beta1", metadata={"namespace": "n"}, **raw)
    assert decoded == CSIStorageCapacity("n", "x", "fast", topology, 5 * 2**30)
    spec = {"attacher": "d", "nodeName": "node-1", "source": {"persistentVolumeName": "pv"}}
    assert decode("VolumeAttachment", version, spec=spec, status={"attached": True}) == VolumeAttachment("x", "d", "node-1", "pv", True)


@pytest.mark.parametrize("kind", ["PersistentVolume", "PersistentVolumeClaim"])
def test_storage_objects_with_only_a_name_are_read(kind: str) -> None:
    decoded = decode(kind, spec=None, status=None)
    assert not isinstance(decoded, Skipped | None)


def test_an_object_with_an_unreadable_size_is_skipped() -> None:
    decoded = decode("PersistentVolume", spec={"capacity": {"storage": "big"}})
    assert decoded == Skipped("PersistentVolume x", "spec.capacity.storage: saw 'big', expected a quantity such as 500m, 2, 1.5Gi or 1e3")
