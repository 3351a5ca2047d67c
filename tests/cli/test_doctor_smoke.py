"""Smoke tests on a cluster with a controller and a simulated cloud, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.smoking import stage
from tests.control.world import in_pieces
from tests.objects import node, pod

from gpuscaler.cli.doctor.following import RefusedError
from gpuscaler.control.loop.holding import write_holds
from gpuscaler.doctor.smoke import timeline as stages
from gpuscaler.doctor.smoke.job import KEPT_SECONDS
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden, Unreachable
from gpuscaler.kube.resources import JOBS, NODES, PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.model.holds import Hold

pytestmark = pytest.mark.looptime(noop_cycles=1)


async def test_a_job_runs_on_a_machine_that_is_bought_for_it_and_nothing_stays(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run()
        verdict = await run.run()

        assert verdict.ran
        assert await here.left() == []
        assert await here.all(NODES) == []
        assert run.left == ""
        assert run.ending == f"Node {run.timeline.node} was removed."
        rows = {row.stage: row for row in run.timeline.rows()}
        assert list(rows) == [name for name in stages.STAGES if name in rows] or stages.OPENED in rows
        assert {stages.CREATED, stages.WAITING, stages.ORDERED, stages.REGISTERED, stages.READY, stages.GPU_SEEN} <= rows.keys()
        assert {stages.BOUND, stages.STARTED, stages.FINISHED, stages.GONE, stages.REMOVED} <= rows.keys()
        assert rows[stages.ORDERED].detail.startswith("g4dn.xlarge on-demand in us-east-1a ordered")
        assert 15 <= rows[stages.REGISTERED].at <= 30
        assert rows[stages.FINISHED].at - rows[stages.STARTED].at == pytest.approx(5, abs=1)
        assert 60 <= rows[stages.REMOVED].at - rows[stages.FINISHED].at <= 120
        assert sum(row.took for row in rows.values()) == pytest.approx(max(row.at for row in rows.values()))


async def test_the_job_limits_itself_even_if_nothing_follows_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = asyncio.create_task(here.run(deadline=300.0).run())
        (job,) = await here.until(JOBS)

        assert job["spec"]["activeDeadlineSeconds"] == 300
        assert (job["spec"]["backoffLimit"], job["spec"]["ttlSecondsAfterFinished"]) == (0, KEPT_SECONDS)
        assert "ownerReferences" not in job["metadata"]
        assert job["spec"]["template"]["metadata"]["annotations"]["gpuscaler.io/disruption"] == "allow"
        await run


@pytest.mark.parametrize("moment", ["created", "ordered", "running", "finished"])
async def test_an_interruption_at_any_moment_leaves_nothing(tmp_path: Path, moment: str) -> None:
    words = {
        "created": "Creating Job",
        "ordered": stages.ORDERED,
        "running": stages.STARTED,
        "finished": "Waiting for the removal of node",
    }
    async with stage(tmp_path) as here:
        run = here.run()
        running = asyncio.create_task(run.run())
        await here.until_said(words[moment])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert run.left == ""
        assert await here.left() == []


class Persistent:
    """A transport whose writes reach the server two seconds late, also if nothing waits for the answer any more."""

    def __init__(self, inner: MemoryTransport) -> None:
        self._inner = inner
        self._sent: set[asyncio.Future[Any]] = set()

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        async def call() -> Answer:
            if request.method in ("POST", "DELETE"):
                await asyncio.sleep(2.0)
            async with self._inner.exchange(request) as answer:
                return Answer(answer.status, answer.headers, in_pieces(b"".join([piece async for piece in answer.pieces])))

        sent = asyncio.ensure_future(call())
        self._sent.add(sent)
        yield await asyncio.shield(sent)

    async def close(self) -> None:
        await self._inner.close()


async def test_an_interruption_while_the_job_is_being_created_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        running = asyncio.create_task(here.run(client=Client(Persistent(MemoryTransport(here.api)))).run())
        await here.until_said("Creating Job")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert await here.left() == []
        await asyncio.sleep(10)
        assert await here.left() == []


@pytest.mark.parametrize("moment", ["Creating Job", "Removing the Job"])
async def test_further_interruptions_do_not_end_the_removal(tmp_path: Path, moment: str) -> None:
    async with stage(tmp_path) as here:
        run = here.run(client=Client(Persistent(MemoryTransport(here.api))))
        running = asyncio.create_task(run.run())
        await here.until_said("Creating Job")
        if moment == "Removing the Job":
            running.cancel()
            await here.until_said(moment)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await running

        assert run.left == ""
        assert await here.left() == []


async def test_what_is_left_is_known_before_the_removal_ends(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run(client=Client(Persistent(MemoryTransport(here.api))))
        running = asyncio.create_task(run.run())
        await here.until_said("Creating Job")
        running.cancel()
        await asyncio.sleep(0.1)
        assert run.test.removal_command in run.left
        # The whole program ends.
        (removal,) = (task for task in asyncio.all_tasks() if task.get_name() == "remove the Job of the smoke test")
        removal.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert run.test.removal_command in run.left


async def test_a_free_gpu_is_used_and_its_node_is_not_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        first = here.run()
        second = here.run(name="gpuscaler-smoke-2")
        running = asyncio.create_task(first.run())
        await here.until_said("Waiting for the removal")
        verdict = await second.run()

        assert verdict.ran
        assert second.timeline.node == first.timeline.node
        assert "was there before and had room: no machine was bought" in second.ending
        assert stages.REGISTERED not in {row.stage for row in second.timeline.rows()}
        assert (await running).ran


async def test_a_new_machine_can_be_forced(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        first = here.run()
        running = asyncio.create_task(first.run())
        await here.until_said("Waiting for the removal")
        second = here.run(name="gpuscaler-smoke-2", new_machine=True)
        verdict = await second.run()

        assert verdict.ran
        assert second.timeline.on_new_node
        assert second.timeline.node != first.timeline.node
        assert (await running).ran


async def test_a_pod_that_fits_nowhere_ends_the_test_at_once_with_the_reason(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run(node_selector={"team": "research"})
        began = asyncio.get_running_loop().time()
        verdict = await run.run()

        assert not verdict.ran
        assert verdict.text.startswith("no machine of any pool fits it: pool gpu:")
        assert "team" in verdict.text
        assert asyncio.get_running_loop().time() - began < 30
        assert await here.left() == []


async def test_without_events_the_status_says_that_the_pod_fits_nowhere(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.api.faults.add(Fault(method="GET", path="/default/events", refusal=Failure(403, "Forbidden", "events is forbidden")))
        verdict = await here.run(node_selector={"team": "research"}).run()

        assert verdict.text.startswith("no machine of any pool fits it: pool gpu:")
        assert any("events cannot be read" in line for line in here.said)


async def test_a_hold_on_buying_ends_the_test_with_its_sentence(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        await write_holds(here.user, "kube-system", {"buying": Hold(since=1.0, by="me", reason="costs")})
        await asyncio.sleep(30)
        verdict = await here.run().run()

        assert not verdict.ran
        assert "on hold" in verdict.text
        assert await here.left() == []


async def test_a_job_that_fails_is_reported_with_its_exit_code_and_message(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run()
        running = asyncio.create_task(run.run())
        await here.until_said(stages.STARTED)
        await here.fail_pod("Failed to initialize NVML:\n  Driver/library version mismatch")
        verdict = await running

        assert not verdict.ran
        assert verdict.text == ("its container failed with exit code 9 (Error): Failed to initialize NVML: Driver/library version mismatch")
        assert run.ending.startswith(f"Node {run.timeline.node} is still there")
        assert await here.left() == []


async def test_an_image_that_cannot_be_pulled_ends_the_test(tmp_path: Path) -> None:
    async with stage(tmp_path, pull="10m") as here:
        running = asyncio.create_task(here.run().run())
        await here.until_said(stages.BOUND)
        (job_pod,) = await here.all(PODS)
        waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/nothing"'}
        status = {"phase": "Pending", "containerStatuses": [{"name": "smoke-test", "state": {"waiting": waiting}}]}
        name = job_pod["metadata"]["name"]
        await here.user.merge_patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        verdict = await running

        assert verdict.text == 'its container cannot start: ImagePullBackOff: Back-off pulling image "nowhere/nothing"'
        assert await here.left() == []


async def test_a_job_that_something_else_deletes_ends_the_test(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        running = asyncio.create_task(here.run().run())
        await here.until_said(stages.ORDERED)
        await here.user.delete(JOBS, "gpuscaler-smoke-1", namespace="default", propagation="Background")
        verdict = await running

        assert verdict.text == "the Job was deleted by something else"


async def test_after_the_deadline_the_test_says_what_it_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run(deadline=15.0)
        verdict = await run.run()

        assert verdict.text == "not finished within 15s: still waiting for the ordered machine"
        assert run.ending.startswith("A machine was ordered for it")
        assert await here.left() == []


async def test_a_node_that_others_use_is_not_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run()
        running = asyncio.create_task(run.run())
        await here.until_said("Waiting for the removal")
        await here.user.create(PODS, pod("other", 0, nodeName=run.timeline.node), namespace="default")
        assert (await running).ran

        assert run.ending == (
            f"Node {run.timeline.node} is kept for 1 other pod, such as default/other: it is removed 1m after the last of them."
        )


async def test_without_a_controller_nothing_is_created(tmp_path: Path) -> None:
    async with stage(tmp_path, running=False) as here:
        with pytest.raises(RefusedError, match="no controller runs: ConfigMap kube-system/gpuscaler-status: saw none"):
            await here.run().run()
        assert await here.left() == []


async def test_a_controller_that_has_ended_is_noticed_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        await here.stop()
        with pytest.raises(RefusedError, match="Lease kube-system/gpuscaler: saw no holder"):
            await here.run().run()
        await asyncio.sleep(300)
        with pytest.raises(RefusedError, match="saw a status that is 5m"):
            await here.run().run()
        assert await here.left() == []


async def test_a_controller_that_ends_meanwhile_ends_the_test(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        running = asyncio.create_task(here.run().run())
        await here.until_said(stages.ORDERED)
        await here.stop()
        verdict = await running

        assert not verdict.ran
        assert verdict.text.startswith("no controller runs: ConfigMap kube-system/gpuscaler-status: saw a status that is 3m")
        assert await here.left() == []


async def test_a_missing_right_to_create_jobs_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    message = 'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the namespace "default"'
    async with stage(tmp_path) as here:
        here.api.faults.add(Fault(method="POST", path="/jobs", refusal=Failure(403, "Forbidden", message)))
        run = here.run()
        with pytest.raises(Forbidden, match='cannot create resource "jobs"'):
            await run.run()
        assert run.left == ""
        assert await here.left() == []


@pytest.mark.parametrize("path", ["/pods", "/nodes"])
async def test_a_missing_right_to_read_is_found_before_anything_is_created(tmp_path: Path, path: str) -> None:
    async with stage(tmp_path) as here:
        here.api.faults.add(Fault(method="GET", path=f"{path}\\?.*limit=", refusal=Failure(403, "Forbidden", f"{path} is forbidden")))
        with pytest.raises(Forbidden, match=path):
            await here.run().run()
        assert here.said == []


async def test_a_job_that_cannot_be_deleted_is_named_with_the_command(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.api.faults.add(Fault(method="DELETE", path="/jobs", times=1, refusal=Failure(403, "Forbidden", "jobs is forbidden")))
        run = here.run()
        verdict = await run.run()

        assert verdict.ran
        assert run.left.startswith("Job default/gpuscaler-smoke-1 could not be removed (jobs is forbidden")
        command = "kubectl delete job,pod --namespace default --selector gpuscaler.io/smoke-test=gpuscaler-smoke-1"
        assert run.left.endswith(f"Remove it now: {command}")
        assert stages.GONE not in {row.stage for row in run.timeline.rows()}
        await asyncio.sleep(KEPT_SECONDS + 10)
        assert await here.left() == []


async def test_a_short_loss_of_the_connection_is_awaited(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        running = asyncio.create_task(here.run().run())
        await here.until_said(stages.ORDERED)
        here.api.faults.add(Fault(method="GET", path="/jobs/gpuscaler-smoke-1", sever="before"))
        await asyncio.sleep(40)
        here.api.faults.clear()

        assert (await running).ran
        assert any("the connection is lost" in line for line in here.said)


async def test_a_long_loss_of_the_connection_ends_the_test_and_says_what_is_left(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        run = here.run()
        running = asyncio.create_task(run.run())
        await here.until_said(stages.ORDERED)
        here.api.faults.add(Fault(path="smoke", sever="before"))
        with pytest.raises(Unreachable):
            await running

        assert run.left.startswith("Job default/gpuscaler-smoke-1 could not be removed")
        assert "the Job ends by itself 30m after its creation" in run.left


async def test_a_lost_answer_to_the_creation_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.api.faults.add(Fault(method="POST", path="/jobs", sever="after", times=1))
        with pytest.raises(Unreachable):
            await here.run().run()
        assert await here.left() == []


async def test_nodes_without_the_resource_are_not_excluded_from_a_new_machine(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.api.load([node("plain"), node("full", 1, labels={"kubernetes.io/hostname": "host-of-full"})])
        run = here.run(new_machine=True)
        verdict = await run.run()

        assert verdict.ran
        assert run.test.avoided == ("host-of-full",)
