"""The taint of machines that are kept for large pods."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.lifecycle.actions import Act, Close, Lift
from gpuscaler.lifecycle.node_marks.kept_taint import UNCORDONED, update_kept_taints
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import WINDOW_EFFECT, Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT
from gpuscaler.planning.feasibility.min_gpus import is_closed, with_closing_tolerations
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.state.ledger.entries import Removal
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine, Promise

KIND = offering("g.8", gpus=8)
NOTHING = Ledger()
KEEPING, OTHER = Policy((pool(KIND, min_gpus_per_pod=8),)), Policy((pool(KIND),))


def machine(*taints: str, **more: Any) -> Node:
    return node("a", KIND, **{"provider_id": "i-a", "bought": KIND.key, "taints": tuple(map(Taint, taints)), **more})


def acts(node: Node, policy: Policy = KEEPING, ledger: Ledger = NOTHING, inventory: Inventory | None = None) -> list[Act]:
    cluster = Cluster.of([node])
    return list(update_kept_taints(ledger, cluster, policy, MachineIndex.of(cluster, inventory), inventory))


def test_an_open_machine_of_a_pool_with_min_gpus_per_pod_gets_the_kept_taint() -> None:
    assert acts(machine(ARRIVING_TAINT)) == [Close("a", "it is kept for pods of at least 8 GPUs", kept=True)]
    assert acts(machine(KEPT_TAINT)) == []
    assert acts(machine()) == [], "a person has opened it"


def test_an_open_machine_of_a_closed_pool_gets_the_kept_taint() -> None:
    closed = Policy((pool(KIND, closed=True),))

    (act,) = acts(machine(ARRIVING_TAINT), closed)
    assert act == Close("a", f"pool {KIND.pool} is closed: only pods that a plan places on a machine are bound to it", kept=True)
    assert acts(machine(KEPT_TAINT), closed) == []


def test_a_taint_weakened_by_an_uncordon_is_restored_or_removed() -> None:
    arriving, kept = (machine(taints=(Taint(key, effect=WINDOW_EFFECT),)) for key in (ARRIVING_TAINT, KEPT_TAINT))

    assert acts(arriving, OTHER) == [Lift("a", UNCORDONED)]
    assert acts(kept) == [Close("a", UNCORDONED, kept=True)]


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(coming=(OrderedMachine("o", "o", (KIND.key,), 1.0, 1.0, node="a"),)),
        Ledger(promises=(Promise("a", KIND.key, (), NOW),)),
        Ledger(leaving=(Removal("a", "i-a", KIND.key, "", NOW, NOW),)),
    ],
)
def test_taints_of_nodes_with_work_in_progress_in_the_ledger_are_not_changed(ledger: Ledger) -> None:
    assert acts(machine(ARRIVING_TAINT), ledger=ledger) == []
    assert acts(machine(KEPT_TAINT), OTHER, ledger) == []


def test_machines_open_when_their_pool_loses_min_gpus_per_pod_or_is_no_longer_managed() -> None:
    assert acts(machine(KEPT_TAINT), OTHER) == [Lift("a", "its pool keeps no machines for large pods")]
    assert acts(machine(ARRIVING_TAINT), OTHER) == [], "it opens by the ledger"
    theirs = Inventory(NOW, (), released_pools=("old",))
    bought = replace(machine(KEPT_TAINT), bought=OfferingKey("old", "on-demand", "g.8", "z1"))
    assert acts(bought, inventory=theirs)[:1] == [Lift("a", "pool old is no longer managed by gpuscaler")]


@pytest.mark.parametrize("key", [ARRIVING_TAINT, KEPT_TAINT])
def test_neither_the_arriving_nor_the_kept_taint_excludes_a_machine_from_plans(key: str) -> None:
    closed = machine(key)
    large = pod("large", spec(gpus=8))

    assert is_closed(closed)
    cluster = Cluster.of([closed])
    assert not Room.of(cluster).admitting(large.spec, large.labels, slice(0, 1))[0]
    assert Room.of(cluster).admitting(with_closing_tolerations(large.spec), large.labels, slice(0, 1))[0]
