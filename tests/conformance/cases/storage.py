"""Storage objects: classes, drivers and their limits, volumes and claims in every state."""

from .world import HOSTNAME, OLD_REGION, OLD_ZONE, REGION, ZONE, ZONES, Json, World

FAST, CAPPED = "csi.fast", "csi.capped"
#: CSI drivers with limits on nodes, with the node label of their topology. All but the first replaced an in-tree plug-in.
DRIVERS = {
    FAST: None,
    "ebs.csi.aws.com": "topology.ebs.csi.aws.com/zone",
    "pd.csi.storage.gke.io": "topology.gke.io/zone",
    "pxd.portworx.com": None,
    "disk.csi.azure.com": None,
    "cinder.csi.openstack.org": "topology.cinder.csi.openstack.org/zone",
}
#: IDs of one disk that several volumes may refer to.
EBS_IDS = ("vol-3", "aws://eu-west1-a/vol-3", "aws:///vol-3", "aws:///vol-3/")
#: Disks that in-tree volumes also refer to, with the names of their CSI drivers.
ON_CSI = {
    "ebs": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-3"},
    "gce": {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk3"},
}
#: In-tree plug-ins that were migrated to CSI drivers, by the storage class here that uses each.
IN_TREE = {
    "ebs": "kubernetes.io/aws-ebs",
    "gce": "kubernetes.io/gce-pd",
    "portworx": "kubernetes.io/portworx-volume",
    "azure": "kubernetes.io/azure-disk",
    "cinder": "kubernetes.io/cinder",
}
SIZES = ("1Gi", "5Gi", "10G")


def draw_storage(world: World) -> None:
    """Draw classes, drivers, capacities and CSINodes. Volumes and claims are drawn with the pods that use them."""
    draw_class(world, "fast", FAST)
    zones = [{"matchLabelExpressions": [{"key": ZONE, "values": world.some(ZONES, 2)}]} for _ in range(world.rng.randint(1, 2))]
    if world.chance(0.2):
        zones[0]["matchLabelExpressions"].append({"key": HOSTNAME, "values": ["node0", "node1"]})
    if world.chance(0.1):
        zones.append({"matchLabelExpressions": []})
    draw_class(world, "zonal", FAST, allowedTopologies=zones if world.chance(0.9) else None)
    draw_class(world, "local", "kubernetes.io/no-provisioner")
    draw_class(world, "capped", CAPPED)
    for name, provisioner in IN_TREE.items():
        draw_class(world, name, provisioner)
    draw_class(world, "now", FAST, volumeBindingMode="Immediate")
    for driver, tracked in ((CAPPED, True), (FAST, world.one((None, False)))):
        if world.chance(0.9):
            named = {"apiVersion": STORAGE, "kind": "CSIDriver", "metadata": {"name": driver}}
            world.add("csiDrivers", {**named, "spec": {"storageCapacity": tracked}})
    for _ in range(world.rng.randint(0, 3)):
        draw_capacity(world)
    for node in world.nodes:
        if world.chance(0.9):
            draw_csi_node(world, node["metadata"]["name"])
    if world.chance(0.2):
        draw_csi_node(world, "gone")


STORAGE = "storage.k8s.io/v1"


def draw_class(world: World, name: str, provisioner: str, **more: object) -> None:
    drawn = {"apiVersion": STORAGE, "kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}
    world.add("storageClasses", {**drawn, "volumeBindingMode": "WaitForFirstConsumer", **more})


def draw_capacity(world: World) -> None:
    drawn: Json = {
        "apiVersion": STORAGE,
        "kind": "CSIStorageCapacity",
        "metadata": {"name": world.name("capacity"), "namespace": "default"},
        "storageClassName": world.one(("capped", "capped", "fast")),
    }
    if world.chance(0.9):
        drawn["nodeTopology"] = world.one(({}, {"matchLabels": {ZONE: world.one(ZONES)}}, {"matchLabels": {HOSTNAME: world.node_name()}}))
    if world.chance(0.9):
        drawn["capacity"] = world.one(("0", "4Gi", "100Gi", *SIZES))
    if world.chance(0.3):
        drawn["maximumVolumeSize"] = world.one(("2Gi", "50Gi", *SIZES))
    world.add("csiStorageCapacities", drawn)


def draw_csi_node(world: World, name: str) -> None:
    drivers: list[Json] = [{"name": driver, "nodeID": name, "topologyKeys": [key] if key else None} for driver, key in DRIVERS.items()]
    for driver in drivers:
        if world.chance(0.85):
            driver["allocatable"] = world.one(({"count": 1}, {"count": 1}, {"count": 2}, {"count": 0}, {}))
    drawn: Json = {"apiVersion": STORAGE, "kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": drivers}}
    if world.chance(0.6):
        served = world.some(tuple(IN_TREE.values()), 5)
        drawn["metadata"]["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(served)}
    world.add("csiNodes", drawn)


def draw_attachments(world: World) -> None:
    """Draw attachments of volumes, also to nodes where no pod uses them, and sometimes of a volume that no longer exists."""
    for drawn in world.some(world.of("persistentVolumes"), 4, 0):
        driver = drawn["spec"].get("csi", {}).get("driver", "ebs.csi.aws.com")
        attach = {"attacher": driver, "nodeName": world.node_name(), "source": {"persistentVolumeName": drawn["metadata"]["name"]}}
        if world.chance(0.1):
            attach["source"] = world.one(({"persistentVolumeName": "foreign"}, {}))
        attachment = {"apiVersion": STORAGE, "kind": "VolumeAttachment", "metadata": {"name": world.name("attachment")}, "spec": attach}
        world.add("volumeAttachments", {**attachment, "status": {"attached": world.chance(0.8)}})


def volume(world: World, storage_class: str, **more: object) -> Json:
    """A PersistentVolume without a claim and without its own topology."""
    name = world.name("pv")
    source = {
        "ebs": {
            "awsElasticBlockStore": {
                "volumeID": world.one(
                    (*EBS_IDS, f"vol-{name}", f"aws://eu-west1-a/vol-{name}", "aws://eu-west1-a/odd", "vol-3x", "aws:///vol-3x")
                )
            }
        },
        "gce": {"gcePersistentDisk": {"pdName": world.one((name, name, "disk3"))}},
        "portworx": {"portworxVolume": {"volumeID": name}},
        "azure": {"azureDisk": {"diskName": name, "diskURI": f"/subscriptions/s/disks/{name}"}},
        "cinder": {"cinder": {"volumeID": name}},
        "local": {"local": {"path": "/mnt"}},
    }.get(storage_class, {"csi": {"driver": FAST, "volumeHandle": f"handle-{name}"}})
    spec: Json = {"capacity": {"storage": world.one(SIZES)}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    if storage_class in ON_CSI and world.chance(0.1):
        source = {"csi": ON_CSI[storage_class]}
    spec |= {**source, **more}
    drawn = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}
    return world.add("persistentVolumes", drawn)


def claim(world: World, namespace: str, storage_class: str | None, *, name: str = "", mode: str = "ReadWriteOnce") -> Json:
    """A PersistentVolumeClaim that has no volume yet."""
    spec: Json = {"accessModes": [mode], "resources": {"requests": {"storage": world.one(SIZES)}}, "volumeMode": "Filesystem"}
    metadata: Json = {"name": name or world.name("claim"), "namespace": namespace, "uid": world.name("uid")}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
        if world.chance(0.03):
            metadata["annotations"] = {"volume.beta.kubernetes.io/storage-class": spec.pop("storageClassName")}
    drawn = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    return world.add("persistentVolumeClaims", drawn)


def bind(world: World, drawn_claim: Json, drawn_volume: Json) -> None:
    """Bind claim and volume as the volume controller does; sometimes the volume is gone, or the binding is not complete."""
    metadata, spec = drawn_claim["metadata"], drawn_claim["spec"]
    spec["volumeName"] = drawn_volume["metadata"]["name"]
    if not world.chance(0.02):
        metadata.setdefault("annotations", {})["pv.kubernetes.io/bind-completed"] = "yes"
    drawn_claim["status"]["phase"] = "Bound"
    drawn_volume["spec"]["claimRef"] = {key: metadata[key] for key in ("name", "namespace", "uid")}
    drawn_volume["status"]["phase"] = "Bound"
    if world.chance(0.02):
        world.of("persistentVolumes").remove(drawn_volume)


def volume_affinity(world: World) -> Json:
    """Node affinity of a volume: its zone or zones, or its node."""
    keys = {ZONE: ZONES, OLD_ZONE: ZONES, HOSTNAME: ("node0", "node1", "node2"), REGION: ("r1", "r2"), OLD_REGION: ("r1", "r2")}
    terms: list[Json] = []
    for _ in range(world.weighted({1: 9, 2: 1})):
        if world.chance(0.04):
            terms.append(world.one(({}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [world.node_name()]}]})))
            continue
        used = {
            world.weighted({ZONE: 6.0, HOSTNAME: 3.0, REGION: 1.5, OLD_ZONE: 1.3, OLD_REGION: 0.7})
            for _ in range(world.weighted({1: 8, 2: 2}))
        }
        if OLD_ZONE in used and world.chance(0.6):
            used.add(OLD_REGION)
        expressions: list[Json] = [{"key": key, "operator": "In", "values": world.some(keys[key], 2)} for key in sorted(used)]
        if world.chance(0.1):
            expressions[0] = {"key": expressions[0]["key"], "operator": "Exists"}
        terms.append({"matchExpressions": expressions})
    return {"required": {"nodeSelectorTerms": terms}}


def old_affinity(world: World) -> Json:
    """Node affinity to the zone and the region of a node by their old labels, which the node need not have."""
    labels = world.one(world.nodes)["metadata"]["labels"] or {}
    wanted = {OLD_ZONE: labels.get(ZONE, ZONES[0]), OLD_REGION: labels.get(REGION, "r1")}
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]}]
    return {"required": {"nodeSelectorTerms": terms}}


def label_zones(world: World, drawn_volume: Json) -> None:
    """Give a volume zone labels; ``a__b`` means either zone.

    ``a__`` cannot be parsed and makes the translation to CSI fail, like two zones of two regions.
    """
    labels = {}
    for key in world.weighted({(ZONE,): 6.0, (OLD_ZONE,): 3.0, (ZONE, OLD_ZONE): 2.0}):
        either = "__".join(world.some(ZONES, 2, 2))
        labels[key] = world.weighted({world.one(ZONES): 6.0, either: 3.0, "eu-west1-a__": 0.6, "eu-west1-a__eu-west2-a": 0.6})
    if world.chance(0.25):
        labels[world.weighted({REGION: 3.0, OLD_REGION: 1.0})] = world.one(("r1", "r2"))
    drawn_volume["metadata"]["labels"] = labels
