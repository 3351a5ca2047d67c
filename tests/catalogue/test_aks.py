import pytest

from gpuscaler import catalogue
from gpuscaler.catalogue import aks


@pytest.mark.parametrize("instance_type", catalogue.types("azure"), ids=lambda instance_type: instance_type.name)
def test_the_rule_gives_what_the_catalogue_lists(instance_type: catalogue.InstanceType) -> None:
    listed = {name: amount for name, amount in instance_type.allocatable.items() if "/" not in name}

    assert aks.allocatable(instance_type.vcpu, instance_type.memory_mib) == listed


def test_fewer_pods_leave_more_memory() -> None:
    assert aks.allocatable(8, 32_768, pods=110)["memory"] > aks.allocatable(8, 32_768)["memory"]


def test_a_larger_system_disk_leaves_more_storage_in_proportion() -> None:
    small, large = aks.allocatable(8, 32_768), aks.allocatable(8, 32_768, disk_gib=512)

    assert large["ephemeral-storage"] / small["ephemeral-storage"] == pytest.approx(4, rel=1e-4)
