"""The test message of ``gpuscaler doctor``: the controller records and ignores it, and it never stays in the queue."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.control.aws_stage import REGION, Stage, aws_stage
from tests.embedded.aws.memory import LoopExecutor

from gpuscaler.cli.doctor.notices.following import (
    DENIED,
    NO_CONTROLLER,
    NOT_RECEIVED,
    NOT_SENT,
    PATIENCE,
    RECEIVED,
    MessageRun,
)
from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.machines.notices import TEST_KIND, TEST_SOURCE
from gpuscaler.clouds.aws.machines.sending import MessageSender
from gpuscaler.embedded.aws.queue_state import Message

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

IDENT = "0123456789ab"


def message_run(here: Stage, url: str) -> MessageRun:
    calls = Calls(sleep=lambda _seconds: None, random=Random(0), session=here.session)
    async_calls = AsyncCalls(calls, LoopExecutor(), fence=lambda _seconds: None, now=here.now, sleep=asyncio.sleep)
    return MessageRun(
        client=here.user,
        sender=MessageSender(async_calls, url, IDENT, region=REGION),
        ident=IDENT,
        namespace="kube-system",
        now=here.now,
        say=lambda _text: None,
    )


def messages(here: Stage) -> list[Message]:
    return list(here.region.queues["events"].messages.values())


def put(here: Stage, *instances: str) -> None:
    """Put warnings about machines of others into the queue."""
    for instance in instances:
        detail = {"instance-id": instance, "instance-action": "terminate"}
        event = {"detail-type": "EC2 Spot Instance Interruption Warning", "time": "2026-11-21T12:00:00Z", "detail": detail}
        here.region.queues["events"].send(json.dumps(event), ident=here.region.uuid(), now=here.now())


async def ready(here: Stage, url: str = "", **start: Any) -> None:
    """Start a controller that reads the queue at ``url``, none if it is empty, and wait for its status."""
    here.group("spot", market="spot")
    here.start(here.settings(queue_url=url) if url else here.settings(), **start)
    await here.deploy("serve", 1)
    await here.sleep(120.0)
    if not url:
        # Nothing has read the notices about the machine's start.
        here.region.queues["events"].messages.clear()


async def test_a_message_that_the_controller_receives_is_recorded_ignored_and_deleted(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here, url)
        machines = here.machines()
        run = message_run(here, url)
        await run.run()
        await here.sleep(60.0)

        assert (run.result, run.proved, run.left) == (RECEIVED, 2, "")
        assert run.took is not None
        assert run.took < 20.0
        assert (await here.status()).test_message.id == IDENT
        assert not (await here.status()).troubles
        assert messages(here) == []
        assert here.machines() == machines
        assert await here.all_bound()


async def test_a_message_that_no_controller_takes_is_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        put(here, "i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2")
        others = [message.id for message in messages(here)]
        run = message_run(here, url)
        began = here.now()
        await run.run()

        assert (run.result, run.proved) == (NOT_RECEIVED, 1)
        assert "no controller reported the message within 1m" in run.text
        assert "it was still in the queue, and was removed: the controller does not read this queue" in run.left
        assert PATIENCE <= here.now() - began < PATIENCE + 30
        assert [message.id for message in messages(here)] == others
        # Another reader gets them at once.
        assert len(here.region.queues["events"].ready(here.now())) == len(others)


async def test_a_message_that_another_program_takes_is_reported_so(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        run = message_run(here, url)
        running = asyncio.ensure_future(run.run())
        await here.sleep(5.0)
        here.region.queues["events"].messages.clear()
        await running

        assert run.result == NOT_RECEIVED
        assert "the queue is empty now: another program takes its messages" in run.left


async def test_a_queue_that_moves_messages_away_is_not_read(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        here.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": '{"maxReceiveCount": 1}'})
        here.session.call_counts.clear()
        run = message_run(here, url)
        await run.run()

        assert run.result == NOT_RECEIVED
        assert "it may still be in the queue" in run.left
        assert "ReceiveMessage" not in here.session.call_counts
        (message,) = messages(here)
        event = json.loads(message.body)
        assert (event["source"], event["detail-type"]) == (TEST_SOURCE, TEST_KIND)


async def test_an_interrupted_run_removes_its_message(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        run = message_run(here, url)
        running = asyncio.ensure_future(run.run())
        await here.sleep(5.0)
        assert len(messages(here)) == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert messages(here) == []


async def test_a_message_whose_answer_is_lost_is_followed_and_removed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        here.fault(operation="SendMessage", sever="after", times=1)
        run = message_run(here, url)
        await run.run()

        assert (run.result, run.proved) == (NOT_RECEIVED, 0)
        assert messages(here) == []


async def test_without_permission_nothing_is_sent_and_the_right_is_named(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here, url)
        here.fault(operation="SendMessage", code="AccessDenied", status=403)
        run = message_run(here, url)
        await run.run()

        assert (run.result, run.proved) == (DENIED, 0)
        assert "IAM does not allow sqs:SendMessage in us-east-1" in run.text


async def test_without_permission_to_receive_the_message_is_left_and_that_is_said(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here)
        here.fault(operation="ReceiveMessage", code="AccessDenied", status=403)
        run = message_run(here, url)
        await run.run()

        assert run.result == NOT_RECEIVED
        assert "IAM does not allow sqs:ReceiveMessage" in run.left
        assert "the test message may still be in the queue" in run.left


async def test_a_queue_that_does_not_exist_is_named_in_the_error(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        await ready(here, url)
        run = message_run(here, url.replace("events", "other"))
        await run.run()

        assert run.result == NOT_SENT
        assert "SendMessage answered" in run.text


async def test_without_a_controller_nothing_is_sent(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        url = here.queue()
        run = message_run(here, url)
        await run.run()

        assert run.result == NO_CONTROLLER
        assert "no controller runs" in run.text
        assert "nothing was sent" in run.text
        assert messages(here) == []
