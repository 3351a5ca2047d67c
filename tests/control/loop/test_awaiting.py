"""Before a replacement for a deleted node is bought, the cloud's list of machines is read again."""

from gpuscaler.control.loop.awaiting import EARLY_SECONDS, LONGEST_WAIT, InventoryWait
from gpuscaler.model.instances import Delivery, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey

KEY = OfferingKey("gpus", "spot", "g5.xlarge", "us-east-1a")
NODES = {"n": Node("n", {}, {}, provider_id="i-1", bought=KEY)}
HERE = (Instance("i-1", *KEY),)


def inventory(at: float, *, early: bool = False, replaces: bool = True) -> Inventory:
    return Inventory(at, HERE, (Delivery("gpus", early=early),) if replaces else ())


def test_after_a_node_is_deleted_plans_wait_for_a_newer_list_of_machines() -> None:
    awaiting = InventoryWait()
    awaiting.observe(NODES, {}, inventory(100.0), 100.0)

    assert not awaiting.must_wait(inventory(100.0), 104.0)
    assert awaiting.observe({}, {}, inventory(100.0), 105.0)
    assert awaiting.must_wait(inventory(100.0), 105.0)
    assert awaiting.is_due(inventory(105.0), 106.0)
    assert not awaiting.must_wait(inventory(106.0), 106.0)


def test_plans_stop_waiting_for_a_newer_list_of_machines_after_the_longest_wait() -> None:
    awaiting = InventoryWait()
    awaiting.observe(NODES, {}, inventory(100.0), 100.0)
    awaiting.observe({}, {}, inventory(100.0), 105.0)

    assert not awaiting.must_wait(inventory(100.0), 105.0 + LONGEST_WAIT)


def test_plans_do_not_wait_for_a_newer_list_if_no_group_replaces_machines() -> None:
    awaiting = InventoryWait()
    awaiting.observe(NODES, {}, inventory(100.0, replaces=False), 100.0)

    assert not awaiting.observe({}, {}, inventory(100.0, replaces=False), 105.0)
    assert not awaiting.must_wait(inventory(100.0, replaces=False), 105.0)


def test_plans_give_a_group_that_replaces_machines_early_a_few_seconds_after_a_notice() -> None:
    awaiting = InventoryWait()
    awaiting.observe(NODES, {}, inventory(100.0, early=True), 100.0)

    assert awaiting.observe(NODES, {"i-1": 220.0}, inventory(100.0, early=True), 101.0)
    assert awaiting.must_wait(inventory(102.0, early=True), 102.0)
    assert not awaiting.is_due(inventory(102.0, early=True), 102.0)
    assert awaiting.is_due(inventory(102.0, early=True), 101.1 + EARLY_SECONDS)
    assert not awaiting.must_wait(inventory(101.1 + EARLY_SECONDS, early=True), 101.2 + EARLY_SECONDS)
    assert not awaiting.observe(NODES, {"i-1": 220.0}, inventory(110.0, early=True), 111.0)


def test_plans_wait_for_the_first_list_of_machines_for_at_most_ten_seconds() -> None:
    awaiting = InventoryWait()

    assert not awaiting.observe({}, {}, None, 100.0)
    assert awaiting.must_wait(None, 100.0)
    assert awaiting.must_wait(None, 100.0 + LONGEST_WAIT - 1.0)
    assert not awaiting.must_wait(None, 100.0 + LONGEST_WAIT)
    assert not InventoryWait().must_wait(inventory(100.0), 100.0)
