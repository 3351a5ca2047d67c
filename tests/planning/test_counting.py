"""Counting by spread and affinity: unplaced pods are not counted, and competing pods are decided one after the other."""

from typing import Any

import pytest
from tests.planning.building import (
    HOST,
    ZONE,
    affinity,
    bought,
    near,
    node,
    offering,
    placed,
    planned,
    pod,
    pods,
    pool,
    shares,
    spec,
    spread,
    unplaced,
    zones,
)

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import VolumeUse
from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from gpuscaler.model.taints import Taint, Toleration

WEB = {"app": "web"}
CLOSED = (Taint("closed", ""),)
OPEN = (Toleration(key="closed", operator="Exists"),)


def local_claim(name: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim("default", name, storage_class="local", access_modes=("ReadWriteOnce",), request=1)


def test_spread_ignores_pods_that_no_machine_is_bought_for() -> None:
    closed = offering(zone="z1", taints=CLOSED)
    lonely = spec(gpus=1, tolerations=OPEN, affinity=(near(ZONE, app="web"), near(HOST, app="unknown")))
    even = spec(cpu=1, spread=(spread(ZONE, app="web"),))
    running: list[Item] = [
        node("a", closed),
        node("b", offering(zone="z2")),
        pod("old-a", spec(), on="a", labels=WEB),
        pod("old-b", on="b", labels=WEB),
    ]
    made = planned([*running, *pods("lonely", 2, lonely, labels=WEB), *pods("p", 2, even, labels=WEB)], pool(closed))
    assert placed(made) == {"p-0": "b"}
    assert unplaced(made) == ["lonely-0", "lonely-1", "p-1"]


def test_the_first_pod_of_a_group_must_match_all_of_its_own_affinity_terms() -> None:
    group = spec(gpus=1, affinity=(near(HOST, app="web"), near(ZONE, app="db")))
    running: list[Item] = [node("a"), pod("db", on="a", labels={"app": "db"})]
    made = planned([*running, *pods("p", 2, group, labels=WEB)], pool(offering(gpus=8)))
    assert bought(made) == {}
    assert unplaced(made) == ["p-0", "p-1"]


@pytest.mark.parametrize("rule", [{"anti_affinity": (near(HOST, app="web"),)}, {"spread": (spread(HOST, app="web"),)}])
def test_two_machines_with_one_hostname_label_are_one_host(rule: dict[str, Any]) -> None:
    twins = [node(name, offering(gpus=8), labels={HOST: "twin"}) for name in ("a", "b")]
    made = planned([*twins, node("full", offering(gpus=0)), *pods("p", 2, spec(gpus=1, **rule), labels=WEB)])
    assert len(placed(made)) == 1
    assert bought(made) == {"g.1": 1}


def test_one_free_volume_serves_only_one_of_two_claims() -> None:
    free = PersistentVolume(
        "v", affinity((ZONE, "In", "z1")), storage_class="local", phase="Available", capacity=1, access_modes=("ReadWriteOnce",)
    )
    local = StorageClass("local", "kubernetes.io/no-provisioner", wait_for_first_consumer=True)
    stored: list[Item] = [free, local, *map(local_claim, "xy")]
    made = planned([*stored, *(pod(f"p-{name}", spec(gpus=1, volumes=(VolumeUse(claim=name),))) for name in "xy")])
    assert bought(made) == {"g.1": 1}
    assert unplaced(made) == ["p-y"]


def test_pods_that_share_a_disk_are_placed_before_pods_whose_spread_counts_them() -> None:
    disk = spec(cpu=1, volumes=(VolumeUse(driver="gcePersistentDisk", handle="disk-1"),))
    nodes = [node(name, offering(gpus=0, zone=zone)) for name, zone in (("a", "z1"), ("b", "z2"), ("c", "z2"), ("d", "z2"))]
    counting = pod("p", spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels={"app": "db"})
    made = planned([*nodes, *pods("disk", 4, disk, labels=WEB), counting], pool(offering(zone="z2")))
    assert sorted(placed(made)) == ["disk-0", "disk-1", "disk-2", "disk-3"]
    assert bought(made) == {}


def test_pods_whose_spread_counts_others_are_placed_after_them_even_if_counted_as_well() -> None:
    nodes = [node("a", offering(gpus=0)), node("b", offering(gpus=0, taints=CLOSED))]
    first = pods("x", 3, spec(cpu=1), labels={"app": "x"})
    second = pod("y", spec(cpu=2, spread=(spread(HOST, app="x"),)), labels={"app": "y"})
    third = pod("z", spec(cpu=1, spread=(spread(HOST, app="y"),)), labels={"app": "z"})
    made = planned([*nodes, *first, second, third])
    assert placed(made).keys() == {"x-0", "x-1", "x-2", "z"}
    assert bought(made) == {"g.1": 1}


def test_pods_that_share_one_machine_are_no_more_than_their_zone_spread_allows() -> None:
    group = spec(gpus=1, affinity=(near(HOST, app="web"),), spread=(spread(ZONE, app="web"),))
    made = planned(pods("p", 5, group, labels=WEB), pool(*zones("g.8", 8.0, gpus=8)))
    assert shares(made) == [1]
    assert unplaced(made) == ["p-1", "p-2", "p-3", "p-4"]
