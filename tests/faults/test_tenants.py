"""F90 to F96: input of a tenant of one namespace, or of a sender to the queue, that could stop the controller for all."""

import sys
from types import ModuleType
from typing import Any

import pytest
from tests.clouds.aws.machines.test_inbox import drain, harness, machines, send, warning
from tests.clouds.aws.providers import ProviderHarness
from tests.control.world import World
from tests.faults.kit import bought, faulty, recorded
from tests.hostile.workloads import (
    HUGE,
    NOW,
    POOLS,
    Object,
    apart,
    cluster_of,
    containers,
    gangs,
    many_namespaces,
    mixed,
    near,
    node,
    ordinary,
    pod,
    policy,
    random_ports,
)
from tests.planning.building import node as built
from tests.planning.building import spec
from tests.planning.scale_down.kit import big, movable, removed, scale_down_of
from tests.planning.scale_down.test_consolidation import ANCHOR, crowd

from gpuscaler.kube.resources import PODS
from gpuscaler.lifecycle.reconcile import stages
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import with_default_limit
from gpuscaler.model.selector_index import SelectorIndex
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.table import NodeTable
from gpuscaler.planning import planner
from gpuscaler.planning.feasibility.static import Rows
from gpuscaler.planning.planner import Planner, plan
from gpuscaler.planning.state import State

__all__ = ["harness"]


async def create(here: World, *pods: Object) -> None:
    for each in pods:
        await here.user.create(PODS, each, namespace=each["metadata"]["namespace"])


async def test_f90_a_pod_with_requests_that_overflow_when_summed_blocks_no_other_pod() -> None:
    async with faulty() as here:
        await create(here, pod("poison", containers(1024, memory=HUGE), namespace="default"))
        await here.sleep(5.0)
        await here.submit("a")
        await bought(here, 1)
        await here.sleep(60.0)

        assert (await here.bound())["a"]
        assert here.notes.last is not None
        assert [aside.object for aside in here.notes.last.set_aside] == ["Pod default/poison"]
        assert here.controller is not None
        assert here.controller.failures.count == 0, "it was skipped only after planning had failed with it"


def test_f90_many_bound_pods_with_the_largest_request_only_fill_their_own_node() -> None:
    crowd = [pod(n, {"nodeName": "n1", **containers(1, memory=HUGE)}) for n in range(1100)]
    made = plan(cluster_of([node("n1"), node("n2"), *crowd, *ordinary(1)]), State(), policy(POOLS), NOW)

    assert [placement.node for placement in made.placements] == ["n2"]


def test_f91_extending_a_node_table_thousands_of_times_needs_no_recursion() -> None:
    rows = Rows(NodeTable([built("first")]))
    for number in range(2 * sys.getrecursionlimit()):
        rows = rows.extended([built(f"more-{number}")])
    mask, _ = rows.verdict(spec())

    assert mask.all()


def test_f91_planning_600_gangs_needs_no_recursion() -> None:
    made = plan(cluster_of([*gangs(600, 1, alike=True), *ordinary(1)]), State(), policy(POOLS), NOW)

    assert "others/o0" in {key for machine in made.machines for key in machine.pods}


def make_plans_fail(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Make every plan, or every pass, fail while a pod exists that is called poison."""
    module, name = (planner, "collect_demand") if place == "planning" else (stages, "adopt_machines")
    honest = getattr(module, name)

    def cursed(*given: Any, **more: Any) -> Any:
        cluster = next(each for each in given if isinstance(each, Cluster))
        if any(key.endswith("/poison") for key in cluster.pods):
            raise ZeroDivisionError("a mistake of ours")
        return honest(*given, **more)

    monkeypatch.setattr(module, name, cursed)


@pytest.mark.parametrize("place", ["planning", "observing"])
async def test_f93_a_pod_that_makes_planning_fail_is_found_and_skipped_and_other_pods_get_machines(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    make_plans_fail(monkeypatch, place)
    async with faulty() as here:
        here.fails_on_purpose = True
        for number in range(5):
            await here.submit(f"early-{number}")
        await create(here, pod("poison", namespace="default"))
        await here.submit("late")
        await bought(here, 6)
        await here.sleep(60.0)

        assert all(node for name, node in (await here.bound()).items() if name != "poison")
        assert here.notes.last is not None
        (aside,) = here.notes.last.set_aside
        assert aside.object == "Pod default/poison"
        assert "ZeroDivisionError: a mistake of ours" in aside.reason
        assert here.controller is not None
        assert here.controller.failures.count == 2


async def test_f93_a_skipped_object_is_still_skipped_after_a_restart_and_retried_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    make_plans_fail(monkeypatch, "planning")
    async with faulty() as here:
        here.fails_on_purpose = True
        await create(here, pod("poison", namespace="default"))
        await here.submit("a")
        await bought(here, 1)
        await here.sleep(30.0)
        await here.kill()
        here.start()
        await here.sleep(30.0)

        assert here.controller is not None
        assert here.controller.failures.count == 0
        monkeypatch.undo()
        await here.user.merge_patch(PODS, "poison", {"metadata": {"labels": {"changed": "yes"}}}, namespace="default")
        await bought(here, 2)


async def test_f93_a_planning_error_that_no_object_causes_is_reported_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: Any, **_more: Any) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    async with faulty() as here:
        here.fails_on_purpose = True
        monkeypatch.setattr(planner, "collect_demand", broken)
        await here.submit("a")
        await here.sleep(120.0)

        assert here.controller is not None
        assert "planning failed" in here.controller.trouble
        assert 4 < here.controller.failures.count < 20
        assert not here.controller.memory.poison
        monkeypatch.undo()
        await bought(here, 1)
        assert not here.controller.trouble


@pytest.mark.parametrize(("module", "name"), [(planner, "collect_demand"), (stages, "adopt_machines")])
async def test_f93_a_controller_whose_turns_all_fail_reports_that_and_stays_alive(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    def broken(*_given: Any, **_more: Any) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    async with recorded() as (here, service):
        here.fails_on_purpose = True
        monkeypatch.setattr(module, name, broken)
        await here.submit("a")
        problems = set[str]()
        for _ in range(30):
            await here.sleep(2 * service.settings.http.alive_within / 30)
            problems.add(service.liveness_problem())

        assert any("ZeroDivisionError" in trouble for trouble in service.troubles())
        assert problems == {""}
        monkeypatch.undo()
        await bought(here, 1)
        await here.sleep(60.0)
        assert not service.liveness_problem()
        assert not any("ZeroDivisionError" in trouble for trouble in service.troubles())


@pytest.mark.looptime(False)
@pytest.mark.parametrize("poison", ["[" * 200_000, '{"a":' * 100_000, "{}"])
async def test_f92_an_invalid_queue_message_is_deleted_at_once_and_the_next_messages_are_read(
    harness: ProviderHarness, poison: str
) -> None:
    await drain(harness)
    queue = harness.aws.account.region("us-east-1").queues["events"]
    first, _ = machines(harness)
    send(harness, poison, warning(first.id))
    before = len(queue.messages)

    assert [notice.instance.rpartition("/")[2] for notice in await harness.provider.notices()] == [first.id]
    assert (before, len(queue.messages)) == (2, 1)
    assert harness.provider.inbox is not None
    assert harness.provider.inbox.counts.malformed == 1


def test_f94_a_namespace_with_too_many_affinity_rules_for_a_plan_delays_no_other_namespace() -> None:
    made = plan(cluster_of([*mixed(600), *ordinary(50)]), State(), policy(POOLS), NOW)
    cut = [each for each in made.unplaced if each.reasons[0].excluded_by == "budget"]

    assert len({key for machine in made.machines for key in machine.pods if key.startswith("others/")}) == 50
    assert 100 < len(cut) < 600
    assert all(each.reasons[0].detail.startswith("planning budget of namespace tenant used up") for each in cut)


def test_f94_hundreds_of_namespaces_with_affinity_rules_delay_no_other_namespace() -> None:
    made = plan(cluster_of([*many_namespaces(1900), *ordinary(200, distinct=200)]), State(), policy(POOLS), NOW)

    assert len({key for machine in made.machines for key in machine.pods if key.startswith("others/")}) == 200


def test_f94_a_label_common_to_all_pods_does_not_slow_down_the_search_for_affinity_rules() -> None:
    labels = [{"app": "x", "job": str(number)} for number in range(1000)]
    rules = [LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in label.items())) for label in labels]
    index = SelectorIndex(rules)

    assert sum(len(index.candidates(label)) for label in labels) < 3000


def test_f94_pods_with_hundreds_of_host_ports_are_planned_without_the_optimiser() -> None:
    made, proof = Planner(policy(POOLS)).plan_and_proof(cluster_of([*random_ports(60), *ordinary(5)]), State(), NOW)

    assert not made.unplaced
    assert made.lower_bound_kind == "resource-lp"
    assert proof is not None
    assert proof.problem is not None
    assert len(proof.problem.items) < 10


def test_f95_a_pod_that_requests_years_of_checkpoint_time_gets_an_hour_and_a_warning() -> None:
    cluster = cluster_of([pod("slow", annotations={"gpuscaler.io/grace": "2500000h"})])

    assert cluster.pods["tenant/slow"].options.grace == 3600.0
    assert cluster.warnings == ("Pod tenant/slow: gpuscaler.io/grace: saw '2500000h', expected at most 3600 s (max_grace); cut to it",)


def test_f95_no_machine_is_removed_if_waiting_for_its_pods_costs_more_than_the_removal_saves() -> None:
    others = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR)]
    slow = scale_down_of([big("a"), movable("x", "a", options={"grace": 3600.0}), *others])

    assert removed(scale_down_of([big("a"), movable("x", "a"), *others])) == ["a"]
    assert removed(slow) == []


def test_f96_no_machine_with_gpus_is_bought_for_300_pods_without_gpus() -> None:
    few = [pod(n, apart(near({"matchLabels": {"a": "b"}})), labels={"a": "b"}, cpu="1m", gpu="0") for n in range(300)]
    made = plan(cluster_of(few), State(), policy(POOLS), NOW)

    assert not made.machines
    assert {each.reasons[0].excluded_by for each in made.unplaced} == {"taint"}


def test_f96_the_default_limit_bounds_purchases_if_no_limit_is_configured() -> None:
    made = plan(cluster_of([pod(n) for n in range(1000)]), State(), with_default_limit(policy(POOLS)), NOW)

    assert 50.0 < sum(machine.price_per_hour for machine in made.machines) <= 100.0
