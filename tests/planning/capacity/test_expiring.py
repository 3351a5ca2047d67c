"""Machines whose reservation ends are emptied before that, and are not bought shortly before it."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, placed, planned, pod, pool, reasons, unplaced

from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.expiring import EMPTY_SECONDS, SAVE_SECONDS, WHY, WORTH_SECONDS

ENDS = NOW + 86_400.0
BLOCK = replace(offering("p5", 0.0, market="reserved", count=4), ends=ENDS)
DEAR = offering("p5", 55.0, market="on-demand")
POOL = pool(BLOCK, DEAR)
NODE = node("n", BLOCK, provider_id="i-1")
LAST = ENDS - EMPTY_SECONDS - SAVE_SECONDS - WORTH_SECONDS


def reconcile_once(now: float, memory: Memory | None = None, *, ends: float = ENDS, listed: bool = True, **options: Any) -> Reconciliation:
    """One reconcile pass over a machine of the block with a pod on it."""
    pods = [pod("p", on="n", options=options)]
    inventory = Inventory(now, (Instance("i-1", *BLOCK.key, ends=ends),) if listed else ())
    return reconcile(memory or Memory(), Cluster.of([NODE, *pods]), Policy((POOL,)), Facts(inventory=inventory), now)


def test_a_capacity_block_machine_is_drained_from_half_an_hour_plus_grace_before_its_end() -> None:
    grace = pod("p").spec.grace_seconds
    assert reconcile_once(ENDS - EMPTY_SECONDS - grace - 1.0).memory.ledger.leaving == ()
    (removal,) = reconcile_once(ENDS - EMPTY_SECONDS - grace).memory.ledger.leaving
    assert (removal.node, removal.reason, removal.forced, removal.ends, removal.pods) == ("n", WHY, True, ENDS, ("default/p",))


@pytest.mark.parametrize(("grace", "earlier"), [(600.0, 600.0), (7200.0, SAVE_SECONDS)])
def test_pods_that_need_time_to_save_work_are_notified_that_much_earlier(grace: float, earlier: float) -> None:
    begins = ENDS - EMPTY_SECONDS - earlier
    assert reconcile_once(begins - 61.0, grace=grace).memory.ledger.leaving == ()
    assert reconcile_once(begins, grace=grace).memory.ledger.leaving != ()


def test_a_known_end_of_a_machine_is_kept_even_if_the_cloud_stops_reporting_it() -> None:
    memory = reconcile_once(NOW).memory
    memory = reconcile_once(NOW + 60.0, memory, ends=0.0).memory
    assert memory.ends == {"i-1": ENDS}
    assert reconcile_once(ENDS - EMPTY_SECONDS, memory, ends=0.0).memory.ledger.leaving != ()
    assert reconcile_once(NOW + 120.0, memory, listed=False).memory.ends == {}


def test_an_end_without_prior_notice_leaves_pods_as_much_time_as_a_spot_notice() -> None:
    (removal,) = reconcile_once(ENDS + 5.0).memory.ledger.leaving
    assert removal.ends == ENDS + 35.0


def test_the_end_of_a_capacity_block_does_not_affect_the_breakers_of_its_market() -> None:
    assert reconcile_once(ENDS - EMPTY_SECONDS).memory.breakers == Memory().breakers


@pytest.mark.parametrize(("now", "market"), [(LAST, "reserved"), (LAST + 1.0, "on-demand")])
def test_no_machine_is_bought_that_would_soon_be_drained_for_the_end_of_its_block(now: float, market: str) -> None:
    assert [machine.market for machine in planned([pod("p")], POOL, now=now).machines] == [market]


def test_the_reason_of_an_unplaced_pod_says_that_the_capacity_block_ends() -> None:
    made = planned([pod("p")], pool(BLOCK), now=LAST + 1.0)
    (reason,) = reasons(made, "p")
    assert unplaced(made) == ["p"]
    assert "its machines end at 2023-11-15 22:13:20 UTC, too soon to buy one" in reason.detail


def test_capacity_of_a_machine_that_will_end_is_used_as_long_as_it_exists() -> None:
    assert placed(planned([NODE, pod("p")], POOL, now=LAST + 1.0)) == {"p": "n"}
