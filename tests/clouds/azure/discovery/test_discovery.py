from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.clouds.azure.discovery.accounts import AKS, CLUSTER, GROUP, NODE_GROUP, Azure, names, pool, reasons
from tests.clouds.azure.documents.documents import FAMILY, SIZE, SMALL

from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.discovery.accounts import AVAILABILITY_SETS_SECONDS, Account, availability_sets_in
from gpuscaler.clouds.azure.discovery.locations import SKUS_SECONDS
from gpuscaler.clouds.azure.discovery.pools import AGENT_POOL, SCALE_SET
from gpuscaler.embedded.azure import SUBSCRIPTION, Fault, making
from gpuscaler.embedded.azure.state import Cluster
from gpuscaler.model.overrides import OfferingPrice, PoolOverride

OTHER = "00000000-0000-0000-0000-0000000000ff"
OWN = Account(SUBSCRIPTION, CLUSTER, resource_groups=("own",))
DISCOVERED = {"k8s.io_cluster-autoscaler_enabled": "true", f"k8s.io_cluster-autoscaler_{CLUSTER}": "owned"}


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    served = Azure(subscriptions=(SUBSCRIPTION, OTHER))
    await served.open()
    yield served
    await served.close()


@pytest.fixture
def cluster(azure: Azure) -> Cluster:
    """A cluster with a pool of GPUs."""
    cluster = making.create_cluster(azure.account, CLUSTER, GROUP)
    making.create_pool(azure.account, cluster, "gpu", SIZE, count=2, taints=["sku=gpu:NoSchedule"])
    return cluster


# What is adopted


async def test_agent_pools_with_accelerators_are_adopted_and_the_others_are_reported(azure: Azure, cluster: Cluster) -> None:
    discovered = await azure.discover()
    (gpu,) = discovered.pools

    assert (gpu.pool.name, gpu.source, gpu.way, gpu.location, gpu.capacity) == ("gpu", "aks", SCALE_SET, "eastus", 2)
    assert gpu.scale_set is not None
    assert gpu.agent_pool is not None
    assert gpu.resource_group == cluster.node_group == NODE_GROUP
    assert names(discovered.released) == ["nodepool1"]
    assert reasons(discovered) == {"nodepool1": "it has no accelerator; name it in pools of its subscription to adopt it"}
    assert (discovered.failed, discovered.unknown, discovered.forbidden) == ((), (), False)


@pytest.mark.usefixtures("cluster")
async def test_names_in_the_settings_may_be_in_any_case(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "Workers", SMALL, tags={"gpuscaler.io_cluster": CLUSTER})
    making.create_scale_set(azure.account, "own", "marked", SMALL, tags={"Team": "ml"})
    making.create_scale_set(azure.account, "own", "legacy", SMALL, tags={"Team": "ml", "Old": "yes"})
    account = Account(
        SUBSCRIPTION,
        CLUSTER.upper(),
        GROUP.upper(),
        resource_groups=("OWN", "Own"),
        pools=("NodePool1", "WORKERS"),
        tags={"team": "ml"},
        exclude=("tag:OLD",),
    )
    price = OfferingPrice(SIZE.upper(), 7.0, zone="EASTUS-0")
    discovered = await azure.discover(account, overrides=(PoolOverride("GPU", max=3, prices=(price,)),))

    assert sorted(names(discovered.pools)) == ["Workers", "gpu", "marked", "nodepool1"]
    assert {pool(discovered, name).source for name in ("Workers", "nodepool1")} == {"named"}
    gpu = pool(discovered, "gpu").pool
    assert (gpu.max, gpu.offerings[0].price) == (3, 7.0)
    assert {name: reason for name, reason in reasons(discovered).items() if "exclude" not in reason} == {}


@pytest.mark.usefixtures("cluster")
async def test_a_pattern_of_exclude_matches_names_in_any_case(azure: Azure) -> None:
    discovered = await azure.discover(replace(AKS, exclude=("GPU*",)))

    assert names(discovered.pools) == []
    assert "it matches 'GPU*' in exclude" in reasons(discovered)["gpu"]


@pytest.mark.usefixtures("cluster")
async def test_a_named_agent_pool_is_adopted_without_accelerators_and_a_system_pool_keeps_a_machine(azure: Azure) -> None:
    discovered = await azure.discover(replace(AKS, pools=("nodepool1",)))

    assert names(discovered.pools) == ["gpu", "nodepool1"]
    assert (pool(discovered, "nodepool1").source, pool(discovered, "nodepool1").pool.min) == ("named", 1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"enableAutoScaling": True}, "saw enableAutoScaling true"),
        ({"labels": {"kaito.sh/workspace": "x"}}, "saw the label kaito.sh/workspace"),
        ({"scaleDownMode": "Deallocate"}, "saw scaleDownMode Deallocate"),
        ({"spot": True, "scaleSetEvictionPolicy": "Deallocate"}, "saw scaleSetEvictionPolicy Deallocate"),
    ],
)
async def test_an_agent_pool_that_another_scales_is_set_aside_and_the_rest_goes_on(
    azure: Azure, cluster: Cluster, settings: dict[str, object], reason: str
) -> None:
    making.create_pool(azure.account, cluster, "theirs", SIZE, **settings)  # type: ignore[arg-type]
    discovered = await azure.discover()

    assert names(discovered.pools) == ["gpu"]
    assert reasons(discovered)["theirs"].startswith(reason)


async def test_nodes_of_a_locked_group_are_bought_through_their_agent_pool(azure: Azure) -> None:
    cluster = making.create_cluster(azure.account, CLUSTER, GROUP, lockdown=True)
    making.create_pool(azure.account, cluster, "gpu", SIZE)

    assert pool(await azure.discover(), "gpu").way == AGENT_POOL


async def test_a_pool_of_virtual_machines_has_its_profiles(azure: Azure, cluster: Cluster) -> None:
    making.create_pool(azure.account, cluster, "mixed", {SIZE: 1, "Standard_NC48ads_A100_v4": 0}, taints=["sku=gpu:NoSchedule"])
    mixed = pool(await azure.discover(), "mixed")

    assert [offering.instance_type for offering in mixed.pool.offerings] == [SIZE, "Standard_NC48ads_A100_v4"]
    assert (mixed.way, mixed.scale_set, mixed.capacity, mixed.resource_group) == (AGENT_POOL, None, 1, NODE_GROUP)


async def test_node_auto_provisioning_is_reported_with_its_cluster(azure: Azure) -> None:
    making.create_cluster(azure.account, CLUSTER, GROUP, nodeProvisioningProfile={"mode": "Auto"})

    assert reasons(await azure.discover())[CLUSTER].startswith("saw nodeProvisioningProfile.mode Auto, expected Manual")


async def test_own_scale_sets_are_adopted_by_their_tags(azure: Azure) -> None:
    for name, tags in {
        "workers": DISCOVERED,
        "ours": {"gpuscaler.io_cluster": CLUSTER},
        "others": {"gpuscaler.io_cluster": "other"},
        "untagged": {},
    }.items():
        making.create_scale_set(azure.account, "own", name, SIZE, spot=True, tags=tags)
    discovered = await azure.discover(OWN)

    assert {azure_pool.pool.name: azure_pool.source for azure_pool in discovered.pools} == {
        "ours": "gpuscaler",
        "workers": "cluster-autoscaler",
    }
    assert list(reasons(discovered)) == ["others"]


@pytest.mark.usefixtures("cluster")
async def test_a_tag_of_another_scale_set_does_not_rename_an_agent_pool(azure: Azure) -> None:
    """Its settings, orders and limits refer to it by its name."""
    tags = {**DISCOVERED, "k8s.io_cluster-autoscaler_node-template_label_gpuscaler.io_pool": "gpu"}
    making.create_scale_set(azure.account, "own", "another", SIZE, spot=True, tags=tags)
    discovered = await azure.discover(OWN, AKS, overrides=(PoolOverride("gpu", max=3),))
    found = {azure_pool.resources.own_name: azure_pool for azure_pool in discovered.pools}

    assert {group: azure_pool.pool.name for group, azure_pool in found.items()} == {"gpu": "gpu", "another": "gpu.eastus"}
    assert (found["gpu"].pool.max, found["another"].pool.max) == (3, 100)
    (offering,) = found["another"].pool.offerings
    assert offering.labels["gpuscaler.io/pool"] == "gpu.eastus"


async def test_the_pool_label_of_an_agent_pool_is_that_of_its_own_name(azure: Azure, cluster: Cluster) -> None:
    """gpuscaler overwrites others on nodes."""
    making.create_pool(azure.account, cluster, "more", SIZE, labels={"gpuscaler.io/pool": "gpu"})
    discovered = await azure.discover()

    assert names(discovered.pools) == ["gpu", "more"]
    (offering,) = pool(discovered, "more").pool.offerings
    assert offering.labels["gpuscaler.io/pool"] == "more"


async def test_tags_give_nodes_labels_taints_and_resources(azure: Azure) -> None:
    template = "k8s.io_cluster-autoscaler_node-template"
    tags = {
        **DISCOVERED,
        f"{template}_label_team.io_name~2of": "ml",
        f"{template}_taint_sku": "gpu:NoSchedule",
        f"{template}_resources_rdma_hca": "8",
        f"{template}_label_odd key": "x",
    }
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=tags)
    workers = pool(await azure.discover(OWN), "workers")
    (offering,) = workers.pool.offerings

    assert offering.labels["team.io/name_of"] == "ml"
    assert workers.pool.match_labels["team.io/name_of"] == "ml"
    assert workers.pool.configured_labels == ("team.io/name_of",)
    assert [str(taint) for taint in offering.taints] == ["sku=gpu:NoSchedule"]
    assert offering.allocatable["rdma/hca"] == 8
    assert any(f"the tag '{template}_label_odd key' is 'x'" in warning for warning in workers.warnings)


async def test_a_scale_set_of_aks_is_never_taken_for_an_own_one(azure: Azure, cluster: Cluster) -> None:
    account = Account(SUBSCRIPTION, CLUSTER, resource_groups=(NODE_GROUP,), pools=(f"aks-gpu-{cluster.hash}-vmss",))
    discovered = await azure.discover(account)

    assert discovered.pools == ()
    assert reasons(discovered)[f"aks-gpu-{cluster.hash}-vmss"].startswith("AKS manages it")


@pytest.mark.usefixtures("cluster")
async def test_pools_of_several_subscriptions_are_found_and_equal_names_are_told_apart(azure: Azure) -> None:
    second = making.create_cluster(azure.account, CLUSTER, "second", subscription=OTHER)
    making.create_pool(azure.account, second, "gpu", SIZE)
    discovered = await azure.discover(AKS, Account(OTHER, CLUSTER, "second"))

    assert names(discovered.pools) == ["gpu.eastus", "gpu.eastus.1"]
    assert {azure_pool.subscription for azure_pool in discovered.pools} == {SUBSCRIPTION, OTHER}
    assert set(discovered.usages) == {(SUBSCRIPTION, "eastus"), (OTHER, "eastus")}


# Overrides


@pytest.mark.usefixtures("cluster")
async def test_the_users_overrides_take_precedence_and_unknown_pools_are_reported(azure: Azure) -> None:
    overrides = [PoolOverride("gpu", max=7, labels={"team": "ml"}), PoolOverride("nodepool1"), PoolOverride("gone")]
    discovery = azure.discovery(overrides=overrides)
    discovered = await discovery.discover()

    assert (pool(discovered, "gpu").pool.max, pool(discovered, "gpu").pool.match_labels["team"]) == (7, "ml")
    assert "its agent pool is not adopted: it has no accelerator" in reasons(discovered)["Pool nodepool1"]
    assert reasons(discovered)["Pool gone"].startswith("saw the pool in the file, expected an agent pool or scale set of that name")

    discovery.set_overrides([])
    assert pool(await discovery.discover(), "gpu").pool.max == 1000

    discovery.set_overrides([PoolOverride("*", max=9)])
    every = await discovery.discover()
    assert pool(every, "gpu").pool.max == 9
    assert "Pool *" not in reasons(every)


# Sizes, quotas, reservations


async def test_a_restricted_size_and_a_small_quota_are_known_before_the_first_try(azure: Azure, cluster: Cluster) -> None:
    making.restrict(azure.account, SIZE, ["2"])
    making.create_pool(azure.account, cluster, "zonal", SIZE, count=1, zones=["1", "2"], taints=["sku=gpu:NoSchedule"])
    making.set_quota(azure.account, FAMILY, 80)
    discovered = await azure.discover()

    assert {offering.zone: offering.retired for offering in pool(discovered, "zonal").pool.offerings} == {
        "eastus-1": False,
        "eastus-2": True,
    }
    assert f"the quota {FAMILY} has 8 of 80 vCPUs left, and one {SIZE} has 24; request a higher quota" in pool(discovered, "gpu").warnings
    assert discovered.usages[SUBSCRIPTION, "eastus"][FAMILY.lower()].left == 8


async def test_sizes_are_read_once_in_six_hours_or_when_a_new_one_is_seen(azure: Azure, cluster: Cluster) -> None:
    discovery = azure.discovery()
    await discovery.discover()
    await discovery.discover()
    assert azure.endpoint.count("GET", "/skus") == 1

    making.create_pool(azure.account, cluster, "small", SMALL)
    assert names((await discovery.discover()).pools) == ["gpu", "small"]
    assert azure.endpoint.count("GET", "/skus") == 2

    azure.later(SKUS_SECONDS)
    await discovery.discover()
    assert azure.endpoint.count("GET", "/skus") == 3


@pytest.mark.usefixtures("cluster")
async def test_prices_are_asked_for_the_sizes_that_pools_have(azure: Azure) -> None:
    await azure.discover()

    assert azure.prices.refreshed == [(frozenset({"eastus"}), frozenset({SIZE, making.SYSTEM_SIZE}))]


async def test_a_reservation_group_that_does_not_exist_is_reported_and_the_pool_stays(azure: Azure, cluster: Cluster) -> None:
    missing = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/capacityReservationGroups/gone"
    making.create_pool(azure.account, cluster, "reserved", SIZE, capacityReservationGroupID=missing)
    discovered = await azure.discover()

    assert (
        "its capacity reservation group gone could not be read, or is empty, so nothing of it is used"
        in pool(discovered, "reserved").warnings
    )
    assert any("capacity reservation group" in skipped.object for skipped in discovered.set_aside)


async def test_what_is_reserved_for_a_pool_comes_first_as_often_as_it_is_free(azure: Azure, cluster: Cluster) -> None:
    group = making.create_reservation_group(azure.account, GROUP, "a100", {(SIZE, ""): 3})
    making.create_pool(azure.account, cluster, "reserved", SIZE, count=1, capacityReservationGroupID=group.id)
    (machine,) = azure.account.group(SUBSCRIPTION, NODE_GROUP).scale_sets[f"aks-reserved-{cluster.hash}-vmss"].machines.values()
    machine.reserved = True
    reserved = pool(await azure.discover(), "reserved")

    assert [(offering.market, offering.count) for offering in reserved.pool.offerings] == [("reserved", 2), ("on-demand", None)]
    assert [len(reservation.allocated) for reservation in reserved.reservations] == [1]


async def test_what_was_free_is_not_free_while_its_group_cannot_be_read(azure: Azure, cluster: Cluster) -> None:
    group = making.create_reservation_group(azure.account, GROUP, "a100", {(SIZE, ""): 3})
    making.create_pool(azure.account, cluster, "reserved", SIZE, count=1, capacityReservationGroupID=group.id)
    discovery = azure.discovery()
    await discovery.discover()
    azure.endpoint.faults.all.append(Fault("GET", "*/capacityReservationGroups/*", code="AuthorizationFailed", status=403))
    reserved = pool(await discovery.discover(), "reserved")

    assert [(offering.market, offering.count) for offering in reserved.pool.offerings] == [("reserved", 0), ("on-demand", None)]


# Mistakes in the settings


@pytest.mark.usefixtures("cluster")
async def test_a_wrong_resource_group_is_one_line_that_says_what_to_correct(azure: Azure) -> None:
    discovered = await azure.discover(AKS, Account(SUBSCRIPTION, CLUSTER, resource_groups=("nowhere",)))
    (skipped,) = [skipped for skipped in discovered.set_aside if "nowhere" in skipped.object]

    assert skipped.object == f"ResourceGroup {SUBSCRIPTION}/nowhere"
    assert "ResourceGroupNotFound" in skipped.reason or "could not be found" in skipped.reason
    assert skipped.reason.endswith("correct resource_groups in azure.subscriptions")
    assert (names(discovered.pools), discovered.failed, discovered.unknown) == (["gpu"], (), ())


async def test_a_pool_of_the_file_that_is_set_aside_is_not_called_missing(azure: Azure, cluster: Cluster) -> None:
    making.create_pool(azure.account, cluster, "auto", SIZE, enableAutoScaling=True)
    discovered = await azure.discovery(overrides=[PoolOverride("auto")]).discover()
    listed = {skipped.object: skipped.reason for skipped in discovered.set_aside}

    assert listed["Pool auto"].startswith("saw the pool in the file, but it is not adopted in Azure")
    assert "enableAutoScaling" in listed[f"AgentPool {CLUSTER}/auto"]


@pytest.mark.usefixtures("cluster")
async def test_pools_of_the_file_are_not_reported_as_unknown_while_a_part_cannot_be_read(azure: Azure) -> None:
    discovery = azure.discovery(overrides=[PoolOverride("elsewhere")])
    azure.endpoint.faults.all.append(Fault("GET", "*/agentPools", code="InternalServerError", status=500))
    unread = await discovery.discover()
    azure.endpoint.faults.all.clear()

    assert "Pool elsewhere" not in {skipped.object for skipped in unread.set_aside}
    assert "Pool elsewhere" in {skipped.object for skipped in (await discovery.discover()).set_aside}


@pytest.mark.parametrize(
    ("account", "key"),
    [
        (Account(SUBSCRIPTION, "missing", GROUP), "cluster"),
        (Account(SUBSCRIPTION, CLUSTER, "nowhere"), "cluster"),
        (Account("0" * 8, CLUSTER, GROUP), "id"),
    ],
    ids=["cluster", "group", "subscription"],
)
@pytest.mark.usefixtures("cluster")
async def test_a_wrong_cluster_or_subscription_is_one_line_and_other_accounts_go_on(azure: Azure, account: Account, key: str) -> None:
    discovered = await azure.discover(AKS, account)
    wrong = [skipped for skipped in discovered.set_aside if skipped.object.endswith(f"{account.cluster_group}/{account.cluster}")]

    assert len(wrong) == 1
    assert f"correct {key} in azure.subscriptions" in wrong[0].reason
    assert names(discovered.pools) == ["gpu"]


@pytest.mark.usefixtures("cluster")
async def test_a_name_in_pools_that_is_not_in_azure_is_reported_with_those_that_are(azure: Azure) -> None:
    discovered = await azure.discover(replace(AKS, pools=("gpus", "gpu")))

    assert reasons(discovered)["gpus"] == (
        "saw the name in pools, expected an agent pool or scale set of that name; Azure has gpu, nodepool1; correct the name"
    )


@pytest.mark.usefixtures("cluster")
async def test_without_the_right_token_everything_is_reported_as_forbidden(azure: Azure) -> None:
    azure.conditions(authorization="issued")
    discovered = await azure.discover(arm=azure.arm(FixedToken("wrong")))

    assert (discovered.pools, discovered.forbidden) == ((), True)
    assert discovered.failed == discovered.unknown == (f"Cluster {SUBSCRIPTION}/{GROUP}/{CLUSTER}",)


# Partial failures


@pytest.mark.usefixtures("cluster")
async def test_a_part_that_fails_keeps_its_last_pools_and_is_named(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(AKS, OWN)
    await discovery.discover()
    azure.endpoint.faults.all.append(Fault("GET", "*/agentPools", code="InternalServerError"))
    discovered = await discovery.discover()

    assert sorted(names(discovered.pools)) == ["gpu", "workers"]
    assert (discovered.failed, discovered.unknown) == ((f"Cluster {SUBSCRIPTION}/{GROUP}/{CLUSTER}",), ())
    assert "InternalServerError" in reasons(discovered)[CLUSTER]


@pytest.mark.usefixtures("cluster")
async def test_a_part_that_was_never_read_is_unknown_and_the_others_are_found(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    azure.endpoint.faults.all.append(Fault("GET", "*/managedClusters/*", code="AuthorizationFailed", status=403))
    discovered = await azure.discover(AKS, OWN)

    assert names(discovered.pools) == ["workers"]
    assert discovered.unknown == (f"Cluster {SUBSCRIPTION}/{GROUP}/{CLUSTER}",)
    assert discovered.forbidden


@pytest.mark.usefixtures("cluster")
async def test_a_cluster_that_is_gone_for_a_moment_keeps_its_pools(azure: Azure) -> None:
    discovery = azure.discovery()
    await discovery.discover()
    azure.endpoint.faults.all.append(Fault("GET", "*/managedClusters/*", code="ResourceNotFound", status=404))
    discovered = await discovery.discover()

    assert names(discovered.pools) == ["gpu"]
    assert discovered.failed == (f"Cluster {SUBSCRIPTION}/{GROUP}/{CLUSTER}",)


@pytest.mark.usefixtures("cluster")
async def test_without_the_sizes_a_part_is_unknown_and_without_quotas_it_is_not(azure: Azure) -> None:
    discovery = azure.discovery()
    azure.endpoint.faults.all.append(Fault("GET", "*/skus", code="AuthorizationFailed", status=403))
    discovered = await discovery.discover()
    assert (discovered.pools, discovered.unknown, discovered.forbidden) == ((), (f"Cluster {SUBSCRIPTION}/{GROUP}/{CLUSTER}",), True)

    azure.endpoint.faults.all[:] = [Fault("GET", "*/usages", code="AuthorizationFailed", status=403)]
    discovered = await discovery.discover()
    assert (names(discovered.pools), discovered.unknown) == (["gpu"], ())
    assert any(skipped.object == f"Location {SUBSCRIPTION}/eastus quotas" for skipped in discovered.set_aside)


@pytest.mark.usefixtures("cluster")
async def test_known_sizes_are_used_on_while_they_cannot_be_read(azure: Azure) -> None:
    discovery = azure.discovery()
    await discovery.discover()
    azure.later(SKUS_SECONDS)
    azure.endpoint.faults.all.append(Fault("GET", "*/skus", code="InternalServerError"))
    discovered = await discovery.discover()

    assert (names(discovered.pools), discovered.failed) == (["gpu"], ())
    assert any("the last known sizes are used" in skipped.reason for skipped in discovered.set_aside)


@pytest.mark.usefixtures("cluster")
async def test_an_agent_pool_whose_scale_set_is_not_listed_keeps_its_last_state(azure: Azure) -> None:
    discovery = azure.discovery()
    await discovery.discover()
    group = azure.account.group(SUBSCRIPTION, NODE_GROUP)
    group.scale_sets.clear()
    gpu = pool(await discovery.discover(), "gpu")

    assert gpu.scale_set is not None
    assert gpu.warnings[0] == f"saw no scale set of it in {NODE_GROUP}, expected one; its last known state is used"


async def test_a_pool_whose_tag_was_removed_is_released_and_one_that_is_gone_is_forgotten(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(OWN)
    await discovery.discover()
    group = azure.account.group(SUBSCRIPTION, "own")
    group.scale_sets["workers"].model["tags"] = {}
    discovered = await discovery.discover()
    assert (names(discovered.pools), names(discovered.released)) == ([], ["workers"])

    group.scale_sets.clear()
    discovered = await discovery.discover()
    assert (discovered.pools, discovered.released) == ((), ())


async def test_a_scale_set_that_cannot_be_read_keeps_its_last_state_and_is_reported(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    making.create_scale_set(azure.account, "own", "more", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(OWN)
    await discovery.discover()
    azure.account.group(SUBSCRIPTION, "own").scale_sets["workers"].model["zones"] = "odd"
    discovered = await discovery.discover()

    assert sorted(names(discovered.pools)) == ["more", "workers"]
    assert pool(discovered, "workers").warnings[0].endswith("its last known state is used")
    assert "expected a document" in reasons(discovered)["workers"]


async def test_a_pool_that_aks_scales_from_now_on_is_released(azure: Azure, cluster: Cluster) -> None:
    discovery = azure.discovery()
    await discovery.discover()
    cluster.pools["gpu"].settings["enableAutoScaling"] = True
    discovered = await discovery.discover()

    assert (names(discovered.pools), names(discovered.released)) == ([], ["gpu", "nodepool1"])
    assert reasons(discovered)["gpu"].startswith("saw enableAutoScaling true")


async def test_a_scale_set_that_went_to_another_cluster_is_not_even_released(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(OWN)
    await discovery.discover()
    azure.account.group(SUBSCRIPTION, "own").scale_sets["workers"].model["tags"] = {"gpuscaler.io_cluster": "other"}
    discovered = await discovery.discover()

    assert (discovered.pools, discovered.released) == ((), ())


# Spellings and old clusters


@pytest.mark.parametrize("spelling", ["lower", "group", "random"])
@pytest.mark.usefixtures("cluster")
async def test_ids_in_another_case_are_the_same_pools(azure: Azure, spelling: str) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(AKS, OWN)
    before = {azure_pool.id for azure_pool in (await discovery.discover()).pools}
    azure.conditions(spelling=spelling)
    discovered = await discovery.discover()

    assert {azure_pool.id for azure_pool in discovered.pools} == before
    assert names(discovered.released) == ["nodepool1"]


async def test_pages_of_lists_are_followed(azure: Azure, cluster: Cluster) -> None:
    for number in range(7):
        making.create_pool(azure.account, cluster, f"more{number}", SIZE)
    azure.conditions(page=2)

    assert len((await azure.discover()).pools) == 8


def test_machines_of_availability_sets_are_reported_with_their_pool() -> None:
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/own/providers/Microsoft.Compute"
    members = {"availabilitySet": {"id": f"{group}/availabilitySets/agentpool1-availabilitySet-12345678"}}
    machines = [
        {"id": f"{group}/virtualMachines/{name}", "name": name, "properties": properties}
        for name, properties in {
            "k8s-gpu-12345678-0": members,
            "k8s-gpu-12345678-1": members,
            "k8s-master-12345678-0": members,
            "jumpbox": members,
            "workers_1": {},
        }.items()
    ]
    first, second = availability_sets_in([None, *machines], "own")

    assert (first.object, second.object) == ("AvailabilitySet own/gpu", "AvailabilitySet own/master")
    assert first.reason.startswith("saw 2 machines of pool gpu in an availability set, as acs-engine and aks-engine made them")


async def test_machines_of_virtual_machines_are_searched_once_an_hour(azure: Azure) -> None:
    making.create_scale_set(azure.account, "own", "workers", SIZE, spot=True, tags=DISCOVERED)
    discovery = azure.discovery(OWN)
    await discovery.discover()
    await discovery.discover()
    assert azure.endpoint.count("GET", "{group}/providers/Microsoft.Compute/virtualMachines") == 1

    azure.later(AVAILABILITY_SETS_SECONDS)
    await discovery.discover()
    assert azure.endpoint.count("GET", "{group}/providers/Microsoft.Compute/virtualMachines") == 2
