"""Removals of machines with pods in a whole cluster: pods are moved safely, and removals that cannot finish are undone."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.control.leaving import CHEAP_RESTART, DEAR, LARGE, budget, is_as_before, is_marked, names, run, workloads_on_expensive_machine
from tests.control.test_replacing import BOTH
from tests.control.world import BEGAN, DeathPlan, World, world
from tests.objects import pod

from gpuscaler.clouds.protocol import THROTTLED, Refusal
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODES, PODS, VOLUME_ATTACHMENTS
from gpuscaler.lifecycle.termination.removing import CLEAR_SECONDS, DETACH_SECONDS, DRAIN_SECONDS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import EXCLUDE_LABEL
from gpuscaler.planning.state.ledger.entries import DRAINING, Removal

TWO_TYPES = BOTH.replace("[g4dn.xlarge]", "[g4dn.xlarge, g5.xlarge]").replace("[spot, on-demand]", "[on-demand]")
NEEDED = "The disruption budget web needs 1 healthy pods and has 1 currently"


def refusal(*, retry_after: int | None = None) -> Failure:
    details = {"causes": [{"reason": "DisruptionBudget", "message": NEEDED}]}
    return Failure(429, "TooManyRequests", "Cannot evict pod.", details=details, retry_after=retry_after)


def without_cheap(policy: Policy) -> Policy:
    pools = (replace(pool, offerings=tuple(o for o in pool.offerings if o.instance_type == "g5.xlarge")) for pool in policy.pools)
    return replace(policy, pools=tuple(pools))


def leaving(here: World) -> Removal | None:
    assert here.controller is not None
    return next((removal for removal in here.controller.memory.ledger.leaving if removal.node == DEAR), None)


async def until_draining(here: World) -> None:
    async def draining() -> bool:
        return (removal := leaving(here)) is not None and removal.step == DRAINING and bool(removal.evictions)

    await here.until(draining)


async def until_marked(here: World) -> None:
    await here.until(lambda: is_marked(here))


async def is_over(here: World) -> bool:
    """Whether the expensive machine is gone without leftovers."""
    machines = {machine.id for machine in here.cluster.core.list()}
    return leaving(here) is None and DEAR not in machines and DEAR not in await names(here)


async def stays(here: World) -> bool:
    """Whether the expensive machine exists, and its node has no mark of gpuscaler."""
    return leaving(here) is None and await is_as_before(here) and DEAR in {machine.id for machine in here.cluster.core.list()}


async def until_over(here: World, within: float = 600.0) -> None:
    await here.until(lambda: is_over(here), within)


# Steps of a removal


async def test_a_node_is_excluded_from_load_balancers_before_the_first_eviction() -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        await until_over(here)

        labelled = [at for at, request in enumerate(writes.requests) if EXCLUDE_LABEL.encode() in request.body]
        evicted = [at for at, request in enumerate(writes.requests) if request.path.endswith("/eviction")]
        assert len(labelled) == 1
        assert labelled[0] < evicted[0]
        assert writes.deleted("nodes") == []
        assert writes.deleted("pods") == []


async def test_ordinary_pods_are_evicted_first_and_critical_pods_last() -> None:
    critical = {"name": "dns", "gpus": 0, "priorityClassName": "system-cluster-critical"}
    daemons = {"name": "logs", "gpus": 0, "resource": DAEMON_SETS}
    net = {"name": "net", "gpus": 0, "resource": DAEMON_SETS, "tolerations": [{"operator": "Exists"}]}
    async with workloads_on_expensive_machine({"name": "web"}, critical, daemons, net, pools=LARGE) as (here, writes):
        await until_over(here)

        order = [name.split("-")[0] for name in writes.evicted()]
        assert [name for number, name in enumerate(order) if name not in order[:number]] == ["web", "logs", "dns"]


async def test_a_disruption_budget_of_one_eviction_at_a_time_is_respected_during_the_whole_drain() -> None:
    async with workloads_on_expensive_machine({"name": "web", "replicas": 3}, pools=LARGE) as (here, writes):
        await budget(here, "web", maxUnavailable=1)
        await here.sleep(5.0)
        # It counts only ready pods, and a plan moves no more pods than it allows: it is created once the removal is in progress.
        await until_over(here, 1200.0)

        assert len(set(writes.evicted())) == 3
        assert writes.deleted("pods") == []


async def test_refused_evictions_are_repeated_after_the_delay_that_the_server_requests() -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        here.cluster.api.faults.add(Fault(path="/eviction", times=3, refusal=refusal(retry_after=45)))
        await until_draining(here)
        await here.sleep(20.0)
        removal = leaving(here)
        assert removal is not None
        assert removal.detail.startswith("pod default/web-")
        assert removal.detail.endswith(f"cannot be evicted: {NEEDED}; it costs $0.53 an hour")
        assert len(writes.evicted()) == 1
        await until_over(here)

        assert len(writes.evicted()) == 4


@pytest.mark.parametrize(
    "failure",
    [refusal(), Failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")],
    ids=["budget", "budgets"],
)
async def test_a_drain_that_cannot_finish_is_undone_and_reported_with_its_blocker_and_cost(failure: Failure) -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        here.cluster.api.faults.add(Fault(path="/eviction", refusal=failure))
        await until_draining(here)
        await here.sleep(DRAIN_SECONDS + 15.0)

        assert await stays(here)
        ((node, why),) = here.notes.kept
        assert node == DEAR
        assert why.startswith(f"it could not be drained within {DRAIN_SECONDS:g} s: pod default/web-")
        assert failure.message in why or NEEDED in why
        assert why.endswith("; it costs $0.53 an hour")
        assert 8 <= len(writes.evicted()) <= 16
        assert here.notes.last is not None
        (blocked,) = here.notes.last.blocked_nodes
        assert (blocked.blocker, blocked.detail) == ("drain-failed", f"{why}; its removal was abandoned and will be retried later")


@pytest.mark.parametrize("most", [1, 2])
async def test_nodes_are_drained_concurrently_as_far_as_a_shared_budget_allows(most: int) -> None:
    # Not from on-demand to spot, to which machines return one at a time.
    async with world(TWO_TYPES) as here:
        full, here.policy = here.policy, without_cheap(here.policy)
        here.start()
        await here.sleep(2.0)
        await run(here, "web", 3)
        await budget(here, "web", maxUnavailable=most)
        await here.sleep(160.0)
        assert len(here.cluster.core.list()) == 3
        assert here.controller is not None
        here.policy = full
        here.controller.set_policy(full)
        at_once, left = 0, 3
        while {machine.offering.instance_type for machine in here.cluster.core.list()} != {"g4dn.xlarge"}:
            await here.sleep(1.0)
            assert here.now() < BEGAN + 3600.0
            at_once = max(at_once, len(here.controller.memory.ledger.leaving))
            left = min(left, sum(pod["status"].get("phase") == "Running" for pod in await here.pods()))

        assert at_once == most
        assert left >= 3 - most
        assert here.notes.kept == []


# New pods, and deaths of the controller


@pytest.mark.parametrize("when", ["before the eviction", "after the eviction"])
async def test_a_pod_bound_just_before_its_machine_would_be_ended_keeps_the_machine(when: str) -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        await until_marked(here)
        if when == "after the eviction":
            await writes.until_evicted()
        late = pod("late", 0, CHEAP_RESTART, labels={"app": "late"}, tolerations=[{"operator": "Exists"}])
        await here.user.create(PODS, late, namespace="default")
        await here.user.bind("default", "late", DEAR)
        await here.sleep(90.0)

        assert await stays(here)
        assert (await here.bound())["late"] == DEAR
        assert here.notes.kept == [(DEAR, "pod default/late was scheduled onto it after the removal was planned")]


async def test_a_pod_bound_after_a_failed_call_to_end_its_machine_keeps_the_machine() -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        asked: list[float] = []

        async def refuse(ids: Sequence[str]) -> Mapping[str, Refusal | None]:
            asked.append(here.now())
            return dict.fromkeys(ids, Refusal(THROTTLED, OfferingKey("gpu", "on-demand", "g4dn.xlarge", "us-east-1a"), "Rate exceeded"))

        here.cluster.provider.remove = refuse  # type: ignore[method-assign]
        await writes.until_evicted()
        while not asked:
            await here.sleep(0.5)
        late = pod("late", 0, CHEAP_RESTART, labels={"app": "late"}, tolerations=[{"operator": "Exists"}])
        await here.user.create(PODS, late, namespace="default")
        await here.user.bind("default", "late", DEAR)
        await here.sleep(180.0)

        assert len(asked) == 1
        assert await stays(here)
        assert here.notes.kept == [(DEAR, "pod default/late was scheduled onto it after the removal was planned")]


#: The number of steps of a whole drain from the taint on: after the last one nothing is left of it.
STEPS = 17


@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_a_drain_interrupted_at_any_step_by_a_kill_is_finished_or_undone_by_the_next_controller(step: int) -> None:
    async with workloads_on_expensive_machine() as (here, _):
        await until_marked(here)
        here.deaths.at = here.deaths.steps + step
        assert await here.until_dead(120.0)
        await here.sleep(5.0)
        here.start()
        await here.sleep(5.0)
        removal = leaving(here)
        assert removal is not None or not await is_marked(here)
        await here.sleep(115.0)

        assert await is_over(here) or await stays(here)
        assert all((await here.bound()).values())
        assert len(here.cluster.core.list()) == 1


async def test_a_controller_without_saved_state_reopens_a_draining_node_in_its_first_turn() -> None:
    async with workloads_on_expensive_machine() as (here, _):
        here.cluster.api.faults.add(Fault(path="/eviction", refusal=refusal()))
        await until_draining(here)
        await here.kill()
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        here.start(DeathPlan())
        await here.sleep(5.0)

        assert await is_as_before(here)


# Pods that do not terminate


async def test_a_pod_kept_by_a_finalizer_is_reported_and_does_not_block_the_removal() -> None:
    async with workloads_on_expensive_machine() as (here, writes):
        (name,) = await here.bound()
        await here.user.merge_patch(PODS, name, {"metadata": {"finalizers": ["example.com/slow"]}}, namespace="default")
        await writes.until_evicted()
        await here.sleep(30.0)
        assert DEAR in {machine.id for machine in here.cluster.core.list()}
        # The pod of the device plugin is evicted last.
        await here.sleep(10.0)

        removal = leaving(here)
        assert removal is not None
        assert removal.detail.startswith(f"pod default/{name} should have ended")
        assert DEAR not in {machine.id for machine in here.cluster.core.list()}


# Saving work


async def test_a_pod_that_requests_checkpoint_time_is_asked_to_save_its_work_and_evicted_afterwards() -> None:
    async with workloads_on_expensive_machine({"name": "web", "annotations": {**CHEAP_RESTART, "gpuscaler.io/grace": "5m"}}) as (
        here,
        writes,
    ):
        (name,) = await here.bound()

        async def requested() -> str:
            wire_pod = msgspec.json.decode(await here.user.get(PODS, name, namespace="default"))
            return str(wire_pod["metadata"]["annotations"].get("gpuscaler.io/checkpoint-requested", ""))

        async def is_requested() -> bool:
            return bool(await requested())

        await here.until(is_requested)
        await here.sleep(100.0)
        assert writes.evicted() == []
        removal = leaving(here)
        assert removal is not None
        assert removal.detail == f"pod default/{name} is saving its work"
        answer = {"metadata": {"annotations": {"gpuscaler.io/checkpointed": await requested()}}}
        await here.user.merge_patch(PODS, name, answer, namespace="default")
        await here.sleep(3.0)

        assert writes.evicted() == [name]
        await until_over(here)


async def test_a_pod_that_never_answers_a_checkpoint_request_is_evicted_when_its_time_is_over() -> None:
    async with workloads_on_expensive_machine({"name": "web", "annotations": {**CHEAP_RESTART, "gpuscaler.io/grace": "90s"}}) as (
        here,
        writes,
    ):
        await until_draining(here)
        await here.sleep(85.0)
        assert writes.evicted() == []
        await here.sleep(10.0)
        assert len(writes.evicted()) == 1
        await until_over(here)


# Volumes and Nodes


async def test_a_machine_is_ended_once_its_volumes_are_detached_or_after_a_time_out() -> None:
    for released in (True, False):
        async with workloads_on_expensive_machine() as (here, writes):
            spec = {"attacher": "ebs.csi.aws.com", "nodeName": DEAR, "source": {"persistentVolumeName": "data"}}
            body = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "va"}, "spec": spec}
            await here.user.create(VOLUME_ATTACHMENTS, body)
            await writes.until_evicted()
            await here.sleep(60.0)
            removal = leaving(here)
            assert removal is not None
            assert removal.detail == "volume data is still attached to it"
            assert DEAR in {machine.id for machine in here.cluster.core.list()}
            if released:
                await here.user.delete(VOLUME_ATTACHMENTS, "va")
                await here.sleep(15.0)
            else:
                await here.sleep(DETACH_SECONDS - 40.0)
            assert DEAR not in {machine.id for machine in here.cluster.core.list()}


async def test_a_node_that_remains_after_its_machine_was_terminated_is_deleted() -> None:
    async with workloads_on_expensive_machine() as (here, writes):

        async def forget(node: dict[str, Any]) -> None:
            """A cloud without a controller."""

        here.cluster.machines._remove = forget  # type: ignore[method-assign]
        await writes.until_evicted()
        await here.sleep(45.0)
        assert DEAR in await names(here)
        assert DEAR not in {machine.id for machine in here.cluster.core.list()}
        await here.sleep(CLEAR_SECONDS)

        assert await is_over(here)
        assert writes.deleted("nodes") == [DEAR]


async def test_an_exclusion_label_set_by_another_owner_stays_after_an_undone_removal() -> None:
    async with workloads_on_expensive_machine() as (here, _):
        await here.user.merge_patch(NODES, DEAR, {"metadata": {"labels": {EXCLUDE_LABEL: "true"}}})
        here.cluster.api.faults.add(Fault(path="/eviction", refusal=refusal()))
        await until_draining(here)
        await here.user.merge_patch(NODES, DEAR, {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})
        await here.sleep(10.0)

        assert leaving(here) is None
        (node,) = [node for node in await here.nodes() if node["metadata"]["name"] == DEAR]
        assert node["metadata"]["labels"][EXCLUDE_LABEL] == "true"
        assert not await is_marked(here)
