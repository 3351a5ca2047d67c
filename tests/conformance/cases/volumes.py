"""Volumes of pods: inline disks that conflict, claims that bind, have a zone, or count against attach limits."""

from .storage import EBS_IDS, FAST, bind, claim, label_zones, old_affinity, volume, volume_affinity
from .world import Json, World

SELECTED = "volume.kubernetes.io/selected-node"


def mount(pod: Json, source: Json) -> None:
    volumes = pod["spec"].setdefault("volumes", [])
    volumes.append({"name": f"v{len(volumes)}", **source})


def use(pod: Json, drawn_claim: Json) -> None:
    mount(pod, {"persistentVolumeClaim": {"claimName": drawn_claim["metadata"]["name"]}})


def claims_in(world: World, namespace: str) -> list[Json]:
    return [one for one in world.of("persistentVolumeClaims") if one["metadata"]["namespace"] == namespace]


def harmless(world: World, pod: Json) -> None:
    mount(pod, world.one(({"emptyDir": {}}, {"configMap": {"name": "config"}}, {"hostPath": {"path": "/"}})))


def disks(world: World, pod: Json) -> None:
    """Add volumes for VolumeRestrictions: inline disks, and claims for only one pod."""
    if world.chance(0.35):
        once_only(world, pod)
        return
    for _ in range(world.weighted({1: 4, 2: 1})):
        mount(pod, inline_disk(world))


def inline_disk(world: World) -> Json:
    read_only = world.one(({}, {"readOnly": True}, {"readOnly": False}))
    kind = world.mostly("disk", {"gcePersistentDisk": 1, "awsElasticBlockStore": 1, "iscsi": 1, "rbd": 1})
    name = world.weighted({"disk1": 7.0, "disk2": 3.0, "disk1,disk2": 0.5})
    if kind == "gcePersistentDisk":
        return {kind: {"pdName": name, **read_only}}
    if kind == "awsElasticBlockStore":
        return {kind: {"volumeID": name, **read_only}}
    if kind == "iscsi":
        portal = world.one(("10.0.0.1:3260", "10.0.0.2:3260"))
        return {kind: {"targetPortal": portal, "iqn": f"iqn.2001-04.com.example:{name}", "lun": 0, **read_only}}
    pool = world.one(({"pool": "rbd"}, {"pool": "other"}))
    return {kind: {"monitors": world.some(("mon1", "mon2", "mon3"), 2), "image": name, **pool, **read_only}}


def once_only(world: World, pod: Json) -> None:
    """Add a ReadWriteOncePod claim, mostly an existing one."""
    namespace = pod["metadata"]["namespace"]
    known = [one for one in claims_in(world, namespace) if one["spec"]["accessModes"] == ["ReadWriteOncePod"]]
    if known and world.chance(0.8):
        use(pod, world.one(known))
        return
    drawn = claim(world, namespace, "fast", mode="ReadWriteOncePod")
    bind(world, drawn, volume(world, "fast", accessModes=["ReadWriteOncePod"]))
    use(pod, drawn)


def attached(world: World, pod: Json) -> None:
    """Add claims with volumes that count against the attach limits of the node, including shared and unbound ones."""
    namespace = pod["metadata"]["namespace"]
    for _ in range(world.weighted({1: 3, 2: 2})):
        fits = [one for one in claims_in(world, namespace) if one["spec"].get("storageClassName") == "fast"]
        if fits and world.chance(0.2):
            use(pod, world.one(fits))
            continue
        classes = {"fast": 5.0, "ebs": 2.0, "gce": 1.5, "portworx": 1.5, "azure": 1.0, "cinder": 1.0}
        storage_class = world.mostly("attached", classes)
        drawn = claim(world, namespace, storage_class)
        if world.chance(0.7):
            bind(world, drawn, disk := volume(world, storage_class))
            if storage_class != "fast" and world.chance(0.5):
                label_zones(world, disk)
        use(pod, drawn)
    if world.chance(0.25):
        mount(
            pod,
            world.one(
                (
                    {"awsElasticBlockStore": {"volumeID": world.one((*EBS_IDS, "aws://eu-west1-a/odd"))}},
                    {"gcePersistentDisk": {"pdName": "disk3"}},
                )
            ),
        )


def zoned(world: World, pod: Json) -> None:
    """Add a bound claim with a volume that has zone labels and mostly no node affinity."""
    storage_class = world.weighted({"now": 5.0, "fast": 3.0, "ebs": 1.0, "gce": 1.0, "cinder": 0.5})
    drawn = claim(world, pod["metadata"]["namespace"], storage_class)
    drawn_volume = volume(world, storage_class, **({"nodeAffinity": volume_affinity(world)} if world.chance(0.1) else {}))
    label_zones(world, drawn_volume)
    bind(world, drawn, drawn_volume)
    use(pod, drawn)


def bound_somewhere(world: World, pod: Json) -> None:
    """Add claims for VolumeBinding: bound volumes with node affinity, and unbound claims in all their states."""
    kinds = {pinned: 6.0, provisioned: 4.0, preselected: 2.0, matched: 6.0, ephemeral: 2.5, capped: 2.0, broken: 1.0}
    world.mostly("claims", kinds)(world, pod)


def pinned(world: World, pod: Json) -> None:
    storage_class = world.weighted({"fast": 4.0, "ebs": 1.5, "gce": 1.5, "portworx": 0.3, "azure": 0.7, "cinder": 1.0})
    drawn = claim(world, pod["metadata"]["namespace"], storage_class)
    old = storage_class != "fast" and world.chance(0.15)
    drawn_volume = volume(world, storage_class, nodeAffinity=old_affinity(world) if old else volume_affinity(world))
    if storage_class != "fast" and world.chance(0.4):
        label_zones(world, drawn_volume)
    bind(world, drawn, drawn_volume)
    use(pod, drawn)


def provisioned(world: World, pod: Json) -> None:
    """Add an unbound claim that is provisioned for its first consumer where the class allows it."""
    use(pod, waiting(world, pod, "zonal"))


def preselected(world: World, pod: Json) -> None:
    """Add an unbound claim with a selected node; the scheduler considers no other node."""
    drawn = claim(world, pod["metadata"]["namespace"], world.one(("fast", "zonal", "ebs", "gce")))
    drawn["metadata"].setdefault("annotations", {})[SELECTED] = world.node_name()
    use(pod, drawn)


def capped(world: World, pod: Json) -> None:
    """Add an unbound claim of a driver that tracks its capacity."""
    use(pod, waiting(world, pod, "capped"))


def waiting(world: World, pod: Json, storage_class: str) -> Json:
    """An unbound claim, sometimes shared with another pod: the pod that is placed first settles it for both."""
    namespace = pod["metadata"]["namespace"]
    known = [
        one
        for one in claims_in(world, namespace)
        if one["spec"].get("storageClassName") == storage_class
        and "volumeName" not in one["spec"]
        and "ownerReferences" not in one["metadata"]
    ]
    return world.one(known) if known and world.chance(0.5) else claim(world, namespace, storage_class)


def matched(world: World, pod: Json) -> None:
    """Add unbound claims to be matched with existing volumes; one or two claims compete for the volumes of one class."""
    drawn = [waiting(world, pod, "local") for _ in range(world.weighted({1: 3, 2: 1}))]
    drawn = [one for number, one in enumerate(drawn) if one not in drawn[:number]]
    for one in drawn:
        if world.chance(0.1):
            one["spec"]["volumeMode"] = "Block"
        if world.chance(0.15):
            unlabelled = {"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}
            one["spec"]["selector"] = world.one(({}, {"matchLabels": {"disk": "ssd"}}, unlabelled))
        use(pod, one)
    for _ in range(world.rng.randint(1, 4)):
        loose_volume(world, drawn)


def loose_volume(world: World, claims: list[Json]) -> None:
    """Draw a volume that the claims may be matched with.

    No two have the same size, and no two are reserved for one claim: of such volumes the scheduler takes the first of a Go map.
    """
    drawn = volume(world, world.weighted({"local": 9.0, "fast": 1.0}), nodeAffinity=volume_affinity(world))
    if world.chance(0.3):
        drawn["metadata"]["labels"] = {"disk": world.one(("ssd", "hdd"))}
    if world.chance(0.1):
        drawn["spec"]["volumeMode"] = world.one(("Block", "Filesystem"))
    if world.chance(0.1):
        drawn["spec"]["accessModes"] = world.one((["ReadWriteOnce", "ReadOnlyMany"], ["ReadOnlyMany"]))
    size = f"{world.one((1, 3, 8, 12)) * 1000 + world.made}M"
    just = claims[0]["spec"]["resources"]["requests"]["storage"] if claims and world.chance(0.2) else size
    known = [one["spec"]["capacity"]["storage"] for one in world.of("persistentVolumes")]
    drawn["spec"]["capacity"]["storage"] = size if just in known else just
    reserved = [one["spec"].get("claimRef", {}).get("name") for one in world.of("persistentVolumes")]
    if claims and world.chance(0.15) and (metadata := claims.pop()["metadata"])["name"] not in reserved:
        drawn["spec"]["claimRef"] = {"name": metadata["name"], "namespace": metadata["namespace"]}
        if world.chance(0.5):
            drawn["spec"]["claimRef"]["uid"] = world.one((metadata["uid"], "another"))
    if world.chance(0.1):
        drawn["status"]["phase"] = world.one(("Released", "Failed", "Pending", "Bound"))
    if world.chance(0.08):
        drawn["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def ephemeral(world: World, pod: Json) -> None:
    """Add a generic ephemeral volume: its claim is named after the pod and must be owned by it."""
    number = len(pod["spec"].get("volumes") or ())
    mount(pod, {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "zonal"}}}})
    if world.chance(0.05):
        return
    metadata = pod["metadata"]
    drawn = claim(world, metadata["namespace"], world.one(("zonal", "fast")), name=f"{metadata['name']}-v{number}")
    first = metadata["name"].partition("-")[0]
    owner = metadata["uid"] if world.chance(0.8 if first == metadata["name"] else 0.4) else world.one(("another", f"uid-{first}"))
    if world.chance(0.3):
        # For one pod at a time: this pod may use it, another pod that refers to the claim may not.
        drawn["spec"]["accessModes"] = ["ReadWriteOncePod"]
    if world.chance(0.97):
        drawn["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": owner, "controller": True}
        ]
    if world.chance(0.5):
        bind(world, drawn, volume(world, "fast", nodeAffinity=volume_affinity(world)))


def broken(world: World, pod: Json) -> None:
    """Add a claim that excludes every node: missing, lost, terminating, waiting for its volume, without a class, or not fully bound."""
    state = world.one(("missing", "lost", "deleted", "immediate", "classless", "prebound"))
    if state == "missing":
        mount(pod, {"persistentVolumeClaim": {"claimName": "nowhere"}})
        return
    drawn = claim(world, pod["metadata"]["namespace"], {"immediate": "now", "classless": None}.get(state, "fast"))
    if state == "lost":
        bind(world, drawn, volume(world, "fast"))
        drawn["status"]["phase"] = "Lost"
    if state == "deleted":
        bind(world, drawn, volume(world, FAST))
        drawn["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if state == "prebound":
        drawn["spec"]["volumeName"] = volume(world, "fast")["metadata"]["name"]
    use(pod, drawn)
