import pytest
from tests.clouds.azure.documents.documents import (
    CPU,
    SIZE,
    SMALL,
    agent_pool,
    aks_resources,
    built,
    location_data,
    own_resources,
    reservation_id,
    reservations,
    restriction,
    sku,
)

from gpuscaler.clouds.azure.discovery.describing import pool_as_json
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.discovery.pools import AGENT_POOL, SCALE_SET, SCATTERED, PoolError
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.taints import Taint

SPOT = {"priority": "Spot", "evictionPolicy": "Delete"}
SPOT_TAINT = Taint("kubernetes.azure.com/scalesetpriority", "spot")


def machines_pool(*profiles: tuple[str, int], **fields: object) -> PoolResources:
    """A pool of virtual machines with these profiles."""
    manual = [{"size": size, "count": count} for size, count in profiles]
    return PoolResources(None, agent_pool(type="VirtualMachines", virtualMachinesProfile={"scale": {"manual": manual}}, **fields))


def test_a_pool_without_zones_has_one_offering_in_zone_0() -> None:
    pool = built(aks_resources()).pool
    (offering,) = pool.offerings

    assert offering.key == OfferingKey("gpu", "on-demand", SIZE, "eastus-0")
    assert (pool.chooser, pool.names_zone, pool.divides, offering.price, offering.accelerators) == ("buyer", False, False, 4.0, 1)
    assert offering.product == "NVIDIA-A100-80GB-PCIe"


def test_a_pool_in_one_zone_is_chosen_by_the_buyer_and_one_in_several_by_the_cloud() -> None:
    one, several = built(aks_resources(zones=["2"])), built(aks_resources(zones=["1", "2"]))

    assert ([offering.zone for offering in one.pool.offerings], one.pool.chooser) == (["eastus-2"], "buyer")
    assert ([offering.zone for offering in several.pool.offerings], several.pool.chooser) == (["eastus-1", "eastus-2"], "cloud")
    assert one.warnings == ()
    assert several.warnings == (SCATTERED,)


def test_the_nodes_of_a_spot_pool_of_aks_have_its_label_and_taint() -> None:
    (offering,) = built(aks_resources({"scaleSetPriority": "Spot"})).pool.offerings

    assert (offering.market, offering.price) == ("spot", 2.0)
    assert offering.labels["kubernetes.azure.com/scalesetpriority"] == "spot"
    assert SPOT_TAINT in offering.taints


def test_the_nodes_of_an_own_spot_set_have_neither() -> None:
    (offering,) = built(own_resources(profile=SPOT), source="tags").pool.offerings

    assert offering.market == "spot"
    assert "kubernetes.azure.com/scalesetpriority" not in offering.labels
    assert offering.taints == ()


def test_a_pool_of_virtual_machines_has_an_offering_for_each_profile() -> None:
    pool = built(machines_pool((SIZE, 1), (SMALL, 2)))

    assert [(offering.instance_type, offering.zone) for offering in pool.pool.offerings] == [(SIZE, "eastus-0"), (SMALL, "eastus-0")]
    assert (pool.pool.chooser, pool.way, pool.capacity) == ("buyer", AGENT_POOL, 3)


def test_machines_of_a_profile_that_is_gone_are_counted_and_not_bought() -> None:
    pool = built(machines_pool((SIZE, 1), virtualMachineNodesStatus=[{"size": SIZE, "count": 1}, {"size": SMALL, "count": 2}]))

    assert {offering.instance_type: offering.retired for offering in pool.pool.offerings} == {SIZE: False, SMALL: True}


def test_a_mixed_flexible_set_is_chosen_by_the_cloud_and_divided_between_markets() -> None:
    resources = own_resources(
        size="Mix",
        orchestrationMode="Flexible",
        skuProfile={"vmSizes": [{"name": SIZE}, {"name": SMALL}]},
        priorityMixPolicy={"baseRegularPriorityCount": 1},
        profile=SPOT,
    )
    pool = built(resources, source="tags").pool

    assert {(offering.instance_type, offering.market) for offering in pool.offerings} == {
        (size, market) for size in (SIZE, SMALL) for market in ("on-demand", "spot")
    }
    assert (pool.chooser, pool.divides) == ("cloud", True)


def test_what_is_reserved_comes_first_at_no_price_and_as_often_as_it_is_free() -> None:
    profile = {"capacityReservation": {"capacityReservationGroup": {"id": reservation_id().upper()}}}
    known = {reservation_id().lower(): reservations(5, 2)}
    pool = built(aks_resources({"capacityReservationGroupID": reservation_id()}, profile=profile), location_data(reservations=known))
    reserved, listed = pool.pool.offerings

    assert (reserved.market, reserved.price, reserved.count) == ("reserved", 0.0, 3)
    assert (listed.market, listed.price, listed.count, pool.pool.chooser) == ("on-demand", 4.0, None, "buyer")
    assert pool.reservations == known[reservation_id().lower()]
    assert pool.warnings == ()


def test_a_reservation_group_without_anything_for_the_pool_is_a_warning() -> None:
    profile = {"capacityReservation": {"capacityReservationGroup": {"id": reservation_id()}}}
    unknown = built(own_resources(profile=profile), source="tags")
    other = built(own_resources(profile=profile), location_data(reservations={reservation_id().lower(): reservations(5, 0, size=CPU)}))

    assert unknown.warnings == ("its capacity reservation group reserved could not be read, or is empty, so nothing of it is used",)
    assert other.warnings == (f"its capacity reservation group reserved reserves no machine of {SIZE}; add a reservation",)
    assert [offering.market for offering in (*unknown.pool.offerings, *other.pool.offerings)] == ["on-demand", "on-demand"]


def test_a_size_that_the_subscription_may_not_use_is_not_sold_and_its_machines_are_counted() -> None:
    data = location_data(sku(restrictions=[restriction()]))
    pool = built(aks_resources(capacity=2), data)

    assert [offering.retired for offering in pool.pool.offerings] == [True]
    assert pool.warnings[0].startswith(f"the subscription may not use {SIZE} in eastus (NotAvailableForSubscription)")
    with pytest.raises(PoolError, match="may not use"):
        built(aks_resources(capacity=0), data)


def test_a_zone_that_is_restricted_or_does_not_offer_the_size_is_not_sold() -> None:
    pool = built(aks_resources(zones=["1", "2", "3"]), location_data(sku(zones="13", restrictions=[restriction("3")])))

    assert {offering.zone: offering.retired for offering in pool.pool.offerings} == {"eastus-1": False, "eastus-2": True, "eastus-3": True}
    assert pool.warnings[:2] == (
        f"{SIZE} is not offered in zone 2 of eastus; it is not bought there",
        f"the subscription may not use {SIZE} in zone 3 of eastus (NotAvailableForSubscription); it is not bought there",
    )


def test_a_size_that_its_location_does_not_offer_is_reported_before_the_first_try() -> None:
    with pytest.raises(PoolError, match=f"eastus does not offer the size {SIZE} to the subscription") as raised:
        built(aks_resources(capacity=0), location_data(sku(SMALL)))

    assert not raised.value.incomplete


def test_a_size_that_cannot_be_read_leaves_the_pool_incomplete() -> None:
    with pytest.raises(PoolError, match="could not be read: saw nonsense") as raised:
        built(aks_resources(capacity=0), location_data(sku(SMALL), unreadable={SIZE.lower(): "saw nonsense"}))

    assert raised.value.incomplete


def test_a_size_without_spot_machines_is_not_sold_in_a_spot_pool() -> None:
    pool = built(aks_resources({"scaleSetPriority": "Spot"}), location_data(sku(LowPriorityCapable="False")))

    assert [offering.retired for offering in pool.pool.offerings] == [True]
    assert pool.warnings[0] == f"{SIZE} has no spot machines; it is not bought"


@pytest.mark.parametrize("capacity", [0, 2])
def test_nothing_is_bought_during_an_upgrade_and_the_pool_stays(capacity: int) -> None:
    pool = built(aks_resources({"provisioningState": "UpgradingNodeImageVersion"}, capacity=capacity))

    assert [offering.retired for offering in pool.pool.offerings] == [True]
    assert pool.warnings[0] == "its provisioningState is UpgradingNodeImageVersion: nothing is bought until that is over"


def test_a_system_pool_keeps_a_machine_and_limits_are_azures() -> None:
    system = built(aks_resources({"mode": "System"})).pool
    user = built(aks_resources()).pool
    placed = built(aks_resources(singlePlacementGroup=True)).pool

    assert [(pool.min, pool.max) for pool in (system, user, placed)] == [(1, 1000), (0, 1000), (0, 100)]


def test_tags_of_cluster_autoscaler_limit_an_own_scale_set() -> None:
    limited = built(own_resources(tags={"min": "1", "max": "5000"}), source="tags")
    odd = built(own_resources(tags={"min": "one"}), source="tags")

    assert (limited.pool.min, limited.pool.max) == (1, 1000)
    assert (odd.pool.min, odd.warnings) == (0, ("the tag min is one, expected a number of machines; 0 is used",))


@pytest.mark.parametrize(
    ("locked", "api", "way"),
    [
        (False, "auto", SCALE_SET),
        (False, "vmss", SCALE_SET),
        (False, "agentpool", AGENT_POOL),
        (True, "auto", AGENT_POOL),
        (True, "vmss", SCALE_SET),
        (True, "agentpool", AGENT_POOL),
    ],
)
def test_a_pool_of_aks_is_changed_by_the_api_of_the_settings_or_the_one_that_a_lock_leaves(locked: bool, api: str, way: str) -> None:
    pool = built(aks_resources(locked=locked), api=api)

    assert pool.way == way
    assert any("azure.api is vmss" in warning for warning in pool.warnings) == (locked and api == "vmss")


def test_an_own_scale_set_is_always_changed_itself() -> None:
    assert built(own_resources(), api="agentpool", source="tags").way == SCALE_SET


def test_a_pool_without_gpus_buys_for_pods_without_gpus() -> None:
    cpu = built(own_resources(size=CPU), location_data(sku(CPU, GPUs=None, vCPUs="4", MemoryGB="16")), source="named")

    assert (cpu.has_accelerators, cpu.pool.buys_without_gpus) == (False, True)
    assert (built(aks_resources()).has_accelerators, built(aks_resources()).pool.buys_without_gpus) == (True, False)


def test_the_spelling_of_a_size_is_that_of_the_pool_as_its_nodes_carry_it() -> None:
    (offering,) = built(own_resources(size=SIZE.lower()), source="tags").pool.offerings

    assert offering.instance_type == offering.labels["node.kubernetes.io/instance-type"] == SIZE.lower()


def test_a_pool_has_a_name_that_a_label_can_hold() -> None:
    named = built(own_resources(name="my workers!"), source="tags")

    assert named.pool.name == "my-workers"
    assert named.warnings == ("the pool is called my-workers here",)


def test_the_revision_changes_with_the_image_of_new_nodes() -> None:
    first, second = (built(aks_resources({"nodeImageVersion": version})).pool.revision for version in ("1", "2"))

    assert first != second


def test_a_pool_is_described_with_the_keys_that_aws_uses() -> None:
    described = pool_as_json(built(aks_resources(), source="named"))

    assert described["offerings"] == [{"type": SIZE, "market": "on-demand", "zone": "eastus-0", "price": 4.0}]
    assert {key: described[key] for key in ("name", "group", "region", "source", "launch", "min", "max", "desired", "machines")} == {
        "name": "gpu",
        "group": "gpu",
        "region": "eastus",
        "source": "named",
        "launch": "scale-set",
        "min": 0,
        "max": 1000,
        "desired": 2,
        "machines": 2,
    }
    assert described["resources"]["nvidia.com/gpu"] == "1"
    assert described["taints"] == ["sku=gpu:NoSchedule"]
