"""Claims that compete for free volumes: in a plan as in the cluster, the pod that binds first chooses first."""

from typing import Any

import pytest
from tests.planning.building import (
    TYPE,
    ZONE,
    affinity,
    bought,
    node,
    offering,
    placed,
    planned,
    pod,
    pool,
    reasons,
    selector,
    spec,
    unplaced,
)

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import PodSpec, VolumeUse
from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from gpuscaler.planning.state import State, Upcoming

CLASS = StorageClass("local", "kubernetes.io/no-provisioner", wait_for_first_consumer=True)
NODE = offering("c.1", gpus=0)


def claim(name: str, **more: Any) -> PersistentVolumeClaim:
    return PersistentVolumeClaim("default", name, storage_class="local", access_modes=("ReadWriteOnce",), request=1, **more)


def volume(name: str, capacity: int, *expression: str, **more: Any) -> PersistentVolume:
    """A free volume for nodes that match ``expression``."""
    fields = {"storage_class": "local", "phase": "Available", "access_modes": ("ReadWriteOnce",), **more}
    return PersistentVolume(name, affinity(expression), capacity=capacity, **fields)


#: A volume for every machine in the zone, and a larger one for machines without GPUs.
SMALL, LARGE = volume("small", 1, ZONE, "In", "z1"), volume("large", 2, TYPE, "In", "c.1")
STORED: list[Item] = [CLASS, claim("x"), claim("y"), SMALL, LARGE]
PLAIN = spec(cpu=1, volumes=(VolumeUse(claim="y"),))


def with_gpu(**more: Any) -> PodSpec:
    """A pod that fits only a machine to buy."""
    return spec(gpus=1, volumes=(VolumeUse(claim="x"),), **more)


@pytest.mark.parametrize(
    ("first", "options", "policy"),
    [
        ({}, {}, {}),
        ({"priority": 1}, {}, {}),
        ({"priority": 1}, {}, {"preferences": "respect"}),
        ({}, {"gang": "g", "gang_size": 1}, {}),
    ],
    ids=["larger", "of higher priority", "decided in an earlier step", "gang"],
)
def test_no_machine_is_bought_for_a_volume_that_a_pod_on_a_node_takes_before(
    first: dict[str, Any], options: dict[str, Any], policy: dict[str, Any]
) -> None:
    """The pod for the node binds now and gets the smaller volume, and the larger one cannot be reached from a new machine."""
    made = planned([*STORED, node("a", NODE), pod("x", with_gpu(**first), options=options), pod("y", PLAIN)], **policy)

    assert (placed(made), bought(made), unplaced(made)) == ({"y": "a"}, {}, ["x"])


def test_the_reason_names_the_claim_that_finds_no_volume() -> None:
    made = planned([*STORED, node("a", NODE), pod("x", with_gpu()), pod("y", PLAIN)])

    (reason,) = reasons(made, "x")
    assert reason.excluded_by == "volume"
    assert "no volume was found for claim default/x" in reason.detail


def test_a_machine_is_bought_where_another_volume_is_left() -> None:
    elsewhere = volume("elsewhere", 3, ZONE, "In", "z2")
    offered = pool(offering(zone="z1"), offering(zone="z2", price=2.0))

    made = planned([*STORED, elsewhere, node("a", NODE), pod("x", with_gpu()), pod("y", PLAIN)], offered)

    assert (placed(made), [(machine.zone, machine.pods) for machine in made.machines]) == ({"y": "a"}, [("z2", ("default/x",))])


def test_no_machine_is_bought_for_a_volume_that_a_pod_on_an_ordered_machine_takes_before() -> None:
    ordered = State(upcoming=(Upcoming("m-1", "main", "c.1", "on-demand", "z1"),))

    made = planned([*STORED, pod("x", with_gpu()), pod("y", PLAIN)], pool(offering(), NODE), state=ordered)

    assert (placed(made), bought(made), unplaced(made)) == ({"y": "m-1"}, {}, ["x"])


def test_a_promised_machine_does_not_keep_a_volume_from_a_pod_that_binds_now() -> None:
    ordered = State(upcoming=(Upcoming("m-1", "main", "g.1", "on-demand", "z1", pods=("default/x",)),))

    made = planned([*STORED, node("a", NODE), pod("x", with_gpu()), pod("y", PLAIN)], state=ordered)

    assert (placed(made), bought(made), unplaced(made)) == ({"y": "a"}, {}, ["x"])


def test_a_gang_member_on_a_node_chooses_its_volume_when_the_machines_of_its_gang_are_there() -> None:
    """Only the smaller volume suits the member; another pod on the node takes that now."""
    stored: list[Item] = [
        CLASS,
        claim("y"),
        claim("member", selector=selector(disk="ssd")),
        volume("small", 1, ZONE, "In", "z1", labels=(("disk", "ssd"),)),
        LARGE,
    ]
    gang = {"gang": "g", "gang_size": 2}
    members = [
        pod("g-0", spec(cpu=1, volumes=(VolumeUse(claim="member"),)), options=gang),
        pod("g-1", spec(gpus=1), options=gang),
    ]

    made = planned([*stored, node("a", NODE), *members, pod("y", PLAIN)])

    assert (placed(made), bought(made), unplaced(made)) == ({"y": "a"}, {}, ["g-0", "g-1"])


def test_one_free_volume_serves_only_one_of_two_claims_of_ephemeral_volumes() -> None:
    stored: list[Item] = [CLASS, SMALL]
    for name in "xy":
        use = VolumeUse(claim=f"{name}-v", ephemeral=True)
        stored += [claim(use.claim, owner_uid=f"uid-{name}"), pod(name, spec(gpus=1, volumes=(use,)), uid=f"uid-{name}")]

    made = planned(stored)

    assert (bought(made), unplaced(made)) == ({"g.1": 1}, ["y"])
