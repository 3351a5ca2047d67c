from tests.clouds.azure.documents.documents import FAMILY, SIZE, sku, usage_document, usages

from gpuscaler.clouds.azure.documents.usages import room_of


def test_a_spot_machine_counts_towards_the_quota_of_all_spot_machines_only() -> None:
    listed = usages(usage_document("lowPriorityCores", 52, 100), usage_document(FAMILY, 0, 0), usage_document("cores", 0, 0))

    assert room_of(sku(), "spot", listed) == 2


def test_a_machine_on_demand_counts_towards_its_family_and_the_location() -> None:
    listed = usages(usage_document(FAMILY, 0, 240), usage_document("cores", 300, 350), usage_document("lowPriorityCores", 0, 0))

    assert room_of(sku(), "on-demand", listed) == 2


def test_names_of_families_are_compared_without_case() -> None:
    assert room_of(sku(), "on-demand", usages(usage_document(FAMILY.upper(), 0, 24))) == 1


def test_a_quota_that_is_used_up_has_no_room_and_never_less() -> None:
    assert room_of(sku(), "on-demand", usages(usage_document(FAMILY, 48, 24))) == 0


def test_without_a_quota_the_room_is_unknown() -> None:
    assert room_of(sku(), "on-demand", usages()) is None


def test_an_odd_usage_does_not_stop_the_rest() -> None:
    odd: list[object] = [None, {}, {"name": {}}, usage_document(SIZE, "x", 1), {"limit": 1, "currentValue": None, "name": {"value": "a"}}]
    listed = usages(*odd, {"limit": 1, "currentValue": 0, "name": {}}, usage_document("cores", 1, 2))

    assert list(listed) == ["cores"]
