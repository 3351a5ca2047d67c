"""VolumeBinding, VolumeZone, NodeVolumeLimits and VolumeRestrictions."""

from typing import Any

import pytest
from tests.planning.building import affinity, bare_node, pod, selector, spec, term
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import NO_LABELS
from gpuscaler.model.pods import PodSpec, VolumeUse
from gpuscaler.model.selectors import LabelSelector, NodeSelector
from gpuscaler.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from gpuscaler.model.table import NodeTable
from gpuscaler.planning.feasibility.snapshot import Room

ZONE, OLD_ZONE, EBS_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"
NODES = (bare_node("a1", {ZONE: "a", EBS_ZONE: "a"}), bare_node("b1", {ZONE: "b"}), bare_node("bare"))
LATE = StorageClass("late", "csi.example", wait_for_first_consumer=True)


def claim(name: str, **fields: Any) -> PersistentVolumeClaim:
    return PersistentVolumeClaim("default", name, **fields)


def bound(name: str, to: str, **fields: Any) -> PersistentVolumeClaim:
    return claim(name, volume=to, bound=True, phase="Bound", **fields)


def volume(name: str, in_zones: str = "", **fields: Any) -> PersistentVolume:
    """A CSI volume that is reachable from the zones ``in_zones``."""
    where = affinity((ZONE, "In", *in_zones)) if in_zones else None
    return PersistentVolume(name, **{"driver": "csi.example", "handle": name, "node_affinity": where, **fields})


def using(*claims: str, **fields: Any) -> PodSpec:
    return spec(volumes=tuple(VolumeUse(claim=name) for name in claims), **fields)


def disk(kind: str, handle: str, *, read_only: bool = False) -> PodSpec:
    return spec(requests={}, volumes=(VolumeUse(driver=kind, handle=handle, read_only=read_only),))


def test_a_pod_with_a_bound_claim_fits_only_where_its_volume_is_reachable() -> None:
    here = room(*NODES, bound("data", "pv"), volume("pv", "b"))
    assert rows(here, using("data")) == ["b1"]
    assert here.static_mask(using("data")).tolist() == [False, True, False]
    assert rejection(here, using("data"), "a1")[1] == "the node does not match the node affinity of volume pv"


def test_field_requirements_in_the_affinity_of_a_volume_are_ignored() -> None:
    named = affinity((ZONE, "Exists"), fields=(("metadata.name", "In", "missing"),))
    assert rows(room(*NODES, bound("data", "pv"), volume("pv", node_affinity=named)), using("data")) == ["a1", "b1"]


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ((), "claim default/data does not exist"),
        ((bound("data", "pv"),), "volume pv of claim default/data does not exist"),
        ((claim("data", phase="Lost", volume="pv"), volume("pv")), "claim default/data has lost its volume pv"),
        ((bound("data", "pv", deleted=1.0), volume("pv")), "claim default/data is being deleted"),
        ((claim("data", storage_class="now"), StorageClass("now", "x")), "claim default/data is not bound"),
        ((claim("data"), LATE), "claim default/data is not bound"),
        ((claim("data", volume="pv", storage_class="late"), LATE, volume("pv")), "claim default/data is not bound"),
    ],
)
def test_an_unusable_claim_excludes_every_node(objects: tuple[Any, ...], words: str) -> None:
    here = room(*NODES, *objects)
    assert rows(here, using("data")) == []
    assert not here.static_mask(using("data")).any()
    verdict = here.verdict(using("data"), NO_LABELS)
    assert verdict.excluded["VolumeBinding"].all()
    assert here.reason(using("data"), NO_LABELS, 0)[1].startswith(words)


def test_a_claim_with_delayed_binding_fits_where_its_class_can_provision_a_volume() -> None:
    zonal = StorageClass("late", "csi.example", wait_for_first_consumer=True, allowed_topologies=(term((ZONE, "In", "a", "c")),))
    assert rows(room(*NODES, claim("data", storage_class="late"), zonal), using("data")) == ["a1"]
    assert rows(room(*NODES, claim("data", storage_class="late"), LATE), using("data")) == ["a1", "b1", "bare"]


@pytest.mark.parametrize("provisioner", ["", "kubernetes.io/no-provisioner"])
def test_a_storage_class_without_a_provisioner_provisions_no_volumes(provisioner: str) -> None:
    static = StorageClass("late", provisioner, wait_for_first_consumer=True)
    here = room(*NODES, claim("data", storage_class="late"), static)
    assert rows(here, using("data")) == []
    assert rejection(here, using("data"), "a1")[1] == "no volume was found for claim default/data on the node, and none can be made there"


def test_a_claim_fits_only_on_its_selected_node() -> None:
    here = room(*NODES, claim("data", storage_class="late", selected_node="b1"), LATE)
    assert rows(here, using("data")) == ["b1"]
    assert rejection(here, using("data"), "a1")[1] == "claim default/data is pinned to node b1"


@pytest.mark.parametrize(
    ("capacity", "admitted"),
    [
        ((), []),
        ((CSIStorageCapacity("x", "1", "late", selector(**{ZONE: "b"}), 100),), ["b1"]),
        ((CSIStorageCapacity("x", "1", "late", selector(**{ZONE: "b"}), 99),), []),
        ((CSIStorageCapacity("x", "1", "late", LabelSelector(), 100, 99),), []),
        ((CSIStorageCapacity("x", "1", "late", LabelSelector(), 0, 100),), ["a1", "b1", "bare"]),
        ((CSIStorageCapacity("x", "1", "late", LabelSelector()),), []),
        ((CSIStorageCapacity("x", "1", "late", None, 100),), []),
        ((CSIStorageCapacity("x", "1", "other", LabelSelector(), 100),), []),
    ],
)
def test_a_driver_that_tracks_capacity_needs_enough_capacity(capacity: tuple[CSIStorageCapacity, ...], admitted: list[str]) -> None:
    wanted = claim("data", storage_class="late", request=100)
    assert rows(room(*NODES, wanted, LATE, CSIDriver("csi.example", storage_capacity=True), *capacity), using("data")) == admitted
    assert rows(room(*NODES, wanted, LATE, CSIDriver("csi.example"), *capacity), using("data")) == ["a1", "b1", "bare"]


STATIC = StorageClass("late", "kubernetes.io/no-provisioner", wait_for_first_consumer=True)
SUITABLE: dict[str, Any] = {"storage_class": "late", "phase": "Available", "capacity": 10, "access_modes": ("ReadWriteOnce",)}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"capacity": 9}, False),
        ({"phase": "Released"}, False),
        ({"access_modes": ()}, False),
        ({"access_modes": ("ReadWriteMany", "ReadWriteOnce")}, True),
        ({"volume_mode": "Block"}, False),
        ({"storage_class": "other"}, False),
        ({"labels": (("tier", "slow"),)}, False),
        ({"claim": "default/else"}, False),
        ({"claim": "default/data", "phase": "Bound", "labels": ()}, True),
        ({"claim": "default/data", "claim_uid": "2"}, False),
        ({"claim": "default/data", "claim_uid": "1"}, True),
        ({"attributes_class": "fast"}, False),
        ({"deleted": 1.0}, False),
    ],
)
def test_a_claim_matches_a_volume_with_suitable_class_size_and_modes(changes: dict[str, Any], *, found: bool) -> None:
    wanted = claim("data", storage_class="late", request=10, access_modes=("ReadWriteOnce",), selector=selector(tier="fast"), uid="1")
    offered = volume("pv", "a", **{**SUITABLE, "labels": (("tier", "fast"),), **changes})
    assert rows(room(*NODES, wanted, STATIC, offered), using("data")) == (["a1"] if found else [])


def test_a_claim_with_a_reserved_volume_matches_only_that_volume() -> None:
    wanted = claim("data", storage_class="late", request=10)
    meant, other = volume("meant", "b", **SUITABLE, claim="default/data"), volume("other", "a", **SUITABLE)
    assert rows(room(*NODES, wanted, STATIC, meant, other), using("data")) == ["b1"]


def test_two_claims_of_a_class_need_two_volumes_on_the_node() -> None:
    claims = (claim("one", storage_class="late", request=10), claim("two", storage_class="late", request=5))
    volumes = (volume("v1", "a", **SUITABLE), volume("v2", "a", **SUITABLE), volume("v3", "b", **SUITABLE))
    assert rows(room(*NODES, *claims, STATIC, *volumes), using("one", "two")) == ["a1"]
    # The smaller claim chooses first, and takes the smallest volume that fits.
    tight = (volume("v1", "b", **{**SUITABLE, "capacity": 5}), volume("v2", "b", **SUITABLE))
    assert rows(room(*NODES, *claims, STATIC, *tight), using("one", "two")) == ["b1"]


def test_the_smaller_claim_is_matched_first_even_if_the_larger_one_then_finds_no_volume() -> None:
    picky = claim("picky", storage_class="late", request=10, selector=selector(tier="fast"))
    easy = claim("easy", storage_class="late", request=5)
    fast, slow = volume("fast", "a", **SUITABLE, labels=(("tier", "fast"),)), volume("slow", "a", **{**SUITABLE, "capacity": 11})
    assert rows(room(*NODES, picky, easy, STATIC, fast, slow), using("picky", "easy")) == []
    assert rows(room(*NODES, picky, easy, STATIC, fast, volume("slow", "a", **{**SUITABLE, "capacity": 9})), using("picky", "easy")) == [
        "a1"
    ]


def test_a_volume_is_provisioned_for_a_claim_without_a_matching_one() -> None:
    claims = (claim("one", storage_class="late", request=10), claim("two", storage_class="late", request=10))
    here = room(*NODES, *claims, LATE, volume("v1", "a", **SUITABLE))
    assert rows(here, using("one", "two")) == ["a1", "b1", "bare"]


def test_placing_a_pod_reserves_the_volume_that_matches_its_claim() -> None:
    claims = (claim("one", storage_class="late", request=10), claim("two", storage_class="late", request=10))
    here = room(*NODES, *claims, STATIC, volume("v1", "a", **SUITABLE))
    assert rows(here, using("two")) == ["a1"]
    here.place(using("one"), NO_LABELS, 0)
    assert rows(here, using("two")) == []
    assert rows(here, using("one")) == ["a1"]
    other = here.copy()
    other.remove(using("one"), NO_LABELS, 0)
    assert rows(other, using("two")) == ["a1"]
    assert rows(here, using("two")) == []


def test_placing_a_pod_fixes_the_zone_of_its_claim_that_needs_a_new_volume() -> None:
    here = room(*NODES, claim("data", storage_class="late"), LATE)
    here.place(using("data"), NO_LABELS, 1, 2)
    assert rows(here, using("data")) == ["b1"]
    here.remove(using("data"), NO_LABELS, 1)
    assert rows(here, using("data")) == ["b1"]
    here.remove(using("data"), NO_LABELS, 1)
    assert rows(here, using("data")) == ["a1", "b1", "bare"]


def test_placing_a_pod_where_its_claims_do_not_fit_leaves_the_claims_unchanged() -> None:
    zonal = StorageClass("late", "csi.example", wait_for_first_consumer=True, allowed_topologies=(term((ZONE, "In", "a")),))
    here = room(*NODES, claim("data", storage_class="late"), zonal)
    here.place(using("data"), NO_LABELS, 1)
    assert rows(here, using("data")) == ["a1"]


@pytest.mark.parametrize(
    ("labels", "admitted"),
    [
        ({ZONE: "a"}, ["a1", "bare"]),
        ({ZONE: "a__b"}, ["a1", "b1", "bare"]),
        ({ZONE: "c"}, ["bare"]),
        ({OLD_ZONE: "b"}, ["b1", "bare"]),
        ({"topology.kubernetes.io/region": "r"}, ["bare"]),
        ({ZONE: "a__"}, ["a1", "b1", "bare"]),
        ({"other": "x"}, ["a1", "b1", "bare"]),
    ],
)
def test_zone_labels_of_a_volume_restrict_labelled_nodes(labels: dict[str, str], admitted: list[str]) -> None:
    here = room(*NODES, bound("data", "pv"), volume("pv", labels=tuple(labels.items())))
    assert rows(here, using("data")) == admitted
    if "b1" not in admitted:
        assert rejection(here, using("data"), "b1")[0] == "VolumeZone"


EBS = {"driver": "awsElasticBlockStore", "handle": "aws://a/vol-1"}


@pytest.mark.parametrize(("served", "admitted"), [(("kubernetes.io/aws-ebs",), []), ((), ["b1"])])
def test_an_in_tree_volume_uses_the_zone_label_of_its_driver_where_csi_serves_it(served: tuple[str, ...], admitted: list[str]) -> None:
    here = room(*NODES, bound("data", "pv"), volume("pv", "b", **EBS), CSINode("b1", migrated=served))
    assert rows(here, using("data")) == admitted


def test_an_in_tree_volume_without_affinity_is_restricted_by_its_zone_label() -> None:
    labelled = volume("pv", **EBS, labels=((OLD_ZONE, "a"),))
    nodes = (bare_node("a1", {EBS_ZONE: "a"}), bare_node("a2"))
    here = room(*nodes, bound("data", "pv"), labelled, *(CSINode(n.name, migrated=("kubernetes.io/aws-ebs",)) for n in nodes))
    assert rows(here, using("data")) == ["a1"]


def test_legacy_zone_and_region_labels_of_an_in_tree_volume_are_translated_together() -> None:
    old = volume("pv", **EBS, node_affinity=affinity((OLD_ZONE, "In", "a"), ("failure-domain.beta.kubernetes.io/region", "In", "r")))
    here = room(
        bare_node("a1", {EBS_ZONE: "a", "topology.kubernetes.io/region": "r"}),
        bare_node("a2", {EBS_ZONE: "a", "topology.kubernetes.io/region": "s"}),
        bare_node("a3", {EBS_ZONE: "b", "topology.kubernetes.io/region": "r"}),
        bound("data", "pv"),
        old,
        *(CSINode(name, migrated=("kubernetes.io/aws-ebs",)) for name in ("a1", "a2", "a3")),
    )
    assert rows(here, using("data")) == ["a1"]


def test_a_legacy_region_label_without_listed_values_is_not_translated() -> None:
    old = volume("pv", **EBS, labels=((OLD_ZONE, "a"),), node_affinity=affinity(("failure-domain.beta.kubernetes.io/region", "Exists")))
    nodes = (bare_node("a1", {EBS_ZONE: "a", "topology.kubernetes.io/region": "r"}),)
    assert rows(room(*nodes, bound("data", "pv"), old, CSINode("a1", migrated=("kubernetes.io/aws-ebs",))), using("data")) == []


def limited(driver: str, count: int) -> tuple[CSINode, ...]:
    return (CSINode("a1", limits=((driver, count),)), CSINode("b1", limits=((driver, None),)))


def test_a_driver_attaches_no_more_volumes_than_its_limit() -> None:
    objects = [*NODES, *limited("csi.example", 1), *(o for n in "xyz" for o in (bound(n, f"pv-{n}"), volume(f"pv-{n}")))]
    here = room(*objects)
    assert rows(here, using("x")) == ["a1", "b1", "bare"]
    assert rows(here, using("x", "y")) == ["b1", "bare"]
    busy = room(*objects, pod("p", using("x"), on="a1"))
    # A volume attached for one pod is available to the next.
    assert rows(busy, using("x")) == ["a1", "b1", "bare"]
    assert rows(busy, using("y")) == ["b1", "bare"]
    words = "node takes 1 volumes of csi.example, 1 are attached and 1 more are needed"
    assert rejection(busy, using("y"), "a1") == ("NodeVolumeLimits", words)
    busy.remove(using("x"), NO_LABELS, 0)
    assert rows(busy, using("y")) == ["a1", "b1", "bare"]


def test_a_pod_that_adds_no_volume_fits_a_node_above_its_volume_limit() -> None:
    objects = [*NODES, *limited("csi.example", 1), *(o for n in "xy" for o in (bound(n, f"pv-{n}"), volume(f"pv-{n}")))]
    here = room(*objects, pod("p", using("x", "y"), on="a1"))
    assert rows(here, using("x")) == ["a1", "b1", "bare"]


def test_claims_without_a_volume_count_towards_the_limit_of_the_driver_of_their_class() -> None:
    here = room(*NODES, *limited("csi.example", 1), LATE, claim("x", storage_class="late"), claim("y", storage_class="late"))
    assert rows(here, using("x", "y")) == ["b1", "bare"]
    here.place(using("x"), NO_LABELS, 0)
    assert rows(here, using("y")) == ["b1", "bare"]


def test_a_volume_counts_once_for_its_attachment_and_the_pods_that_use_it() -> None:
    held = (bound("x", "pv-x"), volume("pv-x"), VolumeAttachment("va", "csi.example", "a1", "pv-x"))
    more = (bound("y", "pv-y"), volume("pv-y"))
    here = room(*NODES, *limited("csi.example", 1), *held, *more)
    assert rows(here, using("y")) == ["b1", "bare"]
    two = room(*NODES, *limited("csi.example", 2), *held, *more, pod("p", using("x"), on="a1"))
    assert rows(two, using("y")) == ["a1", "b1", "bare"]


def test_volume_attachments_of_nodes_appended_later_count() -> None:
    held = (bound("x", "pv-x"), volume("pv-x"), VolumeAttachment("va", "csi.example", "a1", "pv-x"))
    cluster = Cluster.of((*NODES, *limited("csi.example", 1), *held, bound("y", "pv-y"), volume("pv-y")))
    here = Room.of(cluster, NodeTable(NODES[1:]))
    assert rows(here, using("y")) == ["b1", "bare"]
    assert rows(here.extended(NODES[:1]), using("y")) == ["b1", "bare"]


def test_in_tree_disks_count_towards_the_limit_of_the_csi_driver_that_serves_them() -> None:
    here = room(*NODES, *limited("ebs.csi.aws.com", 1), pod("p", disk("awsElasticBlockStore", "aws://a/vol-1"), on="a1"))
    assert rows(here, disk("awsElasticBlockStore", "vol-2")) == ["b1", "bare"]
    assert here.verdict(disk("awsElasticBlockStore", "vol-1"), NO_LABELS).passes["NodeVolumeLimits"].all()
    assert rows(here, disk("vsphereVolume", "x")) == ["a1", "b1", "bare"]


@pytest.mark.parametrize(
    ("zones", "admitted", "counted"),
    [
        ("", ["a1"], True),
        ("eu-west-a", [], True),
        ("eu-west-a__eu-west-b", [], True),
        ("eu-west-a__us-west-a", [], False),
        ("eu-west-a__b", [], False),
    ],
)
def test_a_gce_disk_in_several_zones_must_be_in_one_region(zones: str, admitted: list[str], *, counted: bool) -> None:
    disk_volume = volume("pv", driver="gcePersistentDisk", handle="d", labels=((ZONE, zones),) if zones else ())
    served = CSINode("a1", migrated=("kubernetes.io/gce-pd",), limits=(("pd.csi.storage.gke.io", 0 if counted else 1),))
    plain = room(bare_node("a1"), bound("data", "pv"), disk_volume, CSINode("a1", migrated=("kubernetes.io/gce-pd",)))
    assert rows(plain, using("data")) == admitted
    limits = room(bare_node("a1"), bound("data", "pv"), disk_volume, served).verdict(using("data"), NO_LABELS).passes["NodeVolumeLimits"]
    assert limits.tolist() == [not counted]


def test_volume_limits_are_not_met_on_a_node_with_an_unreadable_disk_name() -> None:
    odd = disk("awsElasticBlockStore", "aws://a/disk-1")
    objects: tuple[Item, ...] = (*NODES, *limited("csi.example", 5), bound("x", "pv-x"), volume("pv-x"))
    assert rows(room(*objects), odd) == ["bare"]
    busy = room(*objects, pod("p", odd, on="a1"), pod("q", odd, on="b1"))
    assert rows(busy, using("x")) == ["b1", "bare"]
    assert rejection(busy, using("x"), "a1")[1].startswith("volumes cannot be counted")
    other = disk("awsElasticBlockStore", "aws://a/disk-2")
    assert rejection(busy, other, "b1") == ("NodeVolumeLimits", "a disk of the pod has a name that cannot be read")


def test_portworx_disks_count_only_on_nodes_that_list_the_plug_in_as_migrated() -> None:
    limits = (("pxd.portworx.com", 0),)
    here = room(*NODES, CSINode("a1", limits=limits, migrated=("kubernetes.io/portworx-volume",)), CSINode("b1", limits=limits))
    assert rows(here, disk("portworxVolume", "v")) == ["b1", "bare"]


def test_a_disk_with_two_names_counts_once() -> None:
    by_driver = volume("pv", driver="ebs.csi.aws.com", handle="vol-1")
    both = spec(volumes=(VolumeUse(claim="data"), VolumeUse(driver="awsElasticBlockStore", handle="aws://a/vol-1")))
    one, none = (room(*NODES, *limited("ebs.csi.aws.com", count), bound("data", "pv"), by_driver) for count in (1, 0))
    assert rows(one, both) == ["a1", "b1", "bare"]
    assert rows(none, both) == ["b1", "bare"]


def test_an_ephemeral_claim_must_belong_to_the_pod() -> None:
    mine = spec(volumes=(VolumeUse(claim="job-1-scratch", ephemeral=True),))
    waiting = pod("job-1", mine, phase="Pending")
    nodes_and_class = (*NODES, LATE)
    own = claim("job-1-scratch", storage_class="late", owner_uid="")
    assert rows(room(*nodes_and_class, waiting, own), mine) == []
    assert rows(room(*nodes_and_class, waiting, claim("job-1-scratch", storage_class="late", owner_uid="1")), mine) == ["a1", "b1", "bare"]
    assert rows(room(*nodes_and_class, waiting), mine) == []


@pytest.mark.parametrize(
    ("kind", "there", "wanted", "free"),
    [
        ("gcePersistentDisk", False, False, False),
        ("gcePersistentDisk", True, True, True),
        ("gcePersistentDisk", True, False, False),
        ("gcePersistentDisk", False, True, False),
        ("awsElasticBlockStore", True, True, False),
        ("iscsi", True, True, True),
        ("iscsi", False, True, False),
        ("azureDisk", False, False, True),
    ],
)
def test_pods_on_a_node_share_a_disk_only_for_reading(kind: str, *, there: bool, wanted: bool, free: bool) -> None:
    here = room(*NODES, pod("p", disk(kind, "d", read_only=there), on="a1"))
    admitted = rows(here, disk(kind, "d", read_only=wanted))
    assert admitted == (["a1", "b1", "bare"] if free else ["b1", "bare"])
    assert rows(here, disk(kind, "other", read_only=wanted)) == ["a1", "b1", "bare"]


@pytest.mark.parametrize(
    ("handle", "free"),
    [("pool/image@m1", False), ("pool/image@m2,m3", False), ("pool/image@m4", True), ("pool/else@m1", True), ("pool/image@", True)],
)
def test_rbd_images_with_the_same_name_are_the_same_if_they_share_a_monitor(handle: str, *, free: bool) -> None:
    here = room(*NODES, pod("p", disk("rbd", "pool/image@m1,m2"), on="a1"))
    assert ("a1" in rows(here, disk("rbd", handle))) is free


def test_only_one_pod_with_the_same_writable_disk_fits_on_a_node() -> None:
    here = room(*NODES)
    assert here.capacity(disk("gcePersistentDisk", "d"), NO_LABELS).tolist() == [1, 1, 1]
    assert here.capacity(disk("gcePersistentDisk", "d", read_only=True), NO_LABELS).tolist() == [110, 110, 110]


def test_a_read_write_once_pod_claim_is_used_by_one_pod_at_a_time() -> None:
    objects = (*NODES, bound("data", "pv", access_modes=("ReadWriteOncePod",)), volume("pv"))
    here = room(*objects, pod("gone", using("data"), on="nowhere"))
    assert here.capacity(using("data"), NO_LABELS).tolist() == [1, 1, 1]
    here.place(using("data"), NO_LABELS, 0)
    assert rows(here, using("data")) == []
    assert rejection(here, using("data"), "b1") == (
        "VolumeRestrictions",
        "claim default/data is ReadWriteOncePod and another pod uses it",
    )
    here.remove(using("data"), NO_LABELS, 0)
    assert rows(here, using("data")) == ["a1", "b1", "bare"]


def test_volume_filters_also_apply_to_appended_nodes() -> None:
    here = room(*NODES, bound("data", "pv"), volume("pv", "c"), pod("p", disk("awsElasticBlockStore", "vol-1"), on="a1"))
    assert rows(here, using("data")) == []
    more = here.extended([bare_node("c1", {ZONE: "c"})])
    assert rows(more, using("data")) == ["c1"]
    assert rows(more, disk("awsElasticBlockStore", "vol-1")) == ["b1", "bare", "c1"]


def test_a_volume_affinity_without_terms_admits_no_node() -> None:
    here = room(*NODES, bound("data", "pv"), volume("pv", node_affinity=NodeSelector()))
    assert rows(here, using("data")) == []
