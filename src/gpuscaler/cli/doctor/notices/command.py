"""The command line of the test message: which queue, which controller, and what is printed."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE, namespace_of, resolve_access

if TYPE_CHECKING:
    from gpuscaler.cli.doctor.notices.following import MessageRun
    from gpuscaler.clouds.aws.api.calls import Calls
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.settings.run_settings import RunSettings


def send_test_message(kubeconfig: Path | None, context: str, config: str | None, *, as_json: bool) -> int:
    """Send a test message to the queue of the run file, and report whether the controller received it; returns the exit status."""
    from gpuscaler.cli.plan import load_settings
    from gpuscaler.clouds.aws.api.calls import Calls, MissingPackageError

    if config is None:
        raise click.UsageError("saw --send-test-message without --config, expected both; name the run file, which names the queue")
    settings = load_settings(config)
    if settings.cloud != "aws":
        seen = f"saw --send-test-message with cloud: {settings.cloud}, expected cloud: aws"
        raise click.UsageError(f"{seen}; gpuscaler reads a queue of notices on AWS only")
    if not settings.aws.queue_url:
        click.echo(
            f"{config}: aws.queue_url: saw no queue, expected an SQS queue that gets the notices of EC2; nothing was sent. "
            "See docs/how-to/aws.md",
            err=True,
        )
        return 2
    try:
        calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    except MissingPackageError as error:
        click.echo(str(error), err=True)
        return 2
    return _run(kubeconfig, context, settings, calls, as_json=as_json)


def _run(kubeconfig: Path | None, context: str, settings: "RunSettings", calls: "Calls", *, as_json: bool) -> int:
    from gpuscaler.cli.doctor.notices.following import DENIED, NOT_SENT, RECEIVED, MessageRun
    from gpuscaler.cli.leading import run_with_transport
    from gpuscaler.clouds.aws.api.asking import AsyncCalls
    from gpuscaler.clouds.aws.machines.sending import MessageSender
    from gpuscaler.kube.client import Client

    access, ident = resolve_access(kubeconfig, context), uuid4().hex[:12]

    async def follow(transport: "HttpTransport") -> int:
        with ThreadPoolExecutor(max_workers=1) as executor:
            async_calls = AsyncCalls(calls, executor, fence=lambda _seconds: None, now=time.time, sleep=asyncio.sleep)
            region = next(iter(settings.aws.regions), "")
            run = MessageRun(
                client=Client(transport),
                sender=MessageSender(async_calls, settings.aws.queue_url, ident, region=region),
                ident=ident,
                namespace=namespace_of(settings.namespace, access),
                now=time.time,
                say=_say,
            )
            try:
                await run.run()
            finally:
                _print(run, settings.aws.queue_url, as_json=as_json)
        return {RECEIVED: 0, DENIED: FORBIDDEN, NOT_SENT: UNREACHABLE}.get(run.result, 1)

    return run_with_transport(access, follow)


def document_of(run: "MessageRun", queue: str) -> dict[str, Any]:
    """The result as JSON."""
    from gpuscaler.cli.doctor.notices.following import NOT_PROVED, PROVED, RECEIVED

    return {
        "queue": queue,
        "id": run.ident,
        "received": run.result == RECEIVED,
        "text": run.text,
        "took": None if run.took is None else round(run.took, 1),
        "proved": list(PROVED[: run.proved]),
        "not_proved": [*PROVED[run.proved :], NOT_PROVED],
        "left": run.left,
    }


def _print(run: "MessageRun", queue: str, *, as_json: bool) -> None:
    from gpuscaler.cli.printing import escape_controls

    document = document_of(run, queue)
    with suppress(BrokenPipeError):
        if as_json:
            click.echo(json.dumps(document, indent=2))
            return
        lines = [f"Queue {queue}: {run.text}."]
        lines += [f"Proved: {text}." for text in document["proved"]]
        lines += [f"Not proved: {text}." for text in document["not_proved"]]
        if run.left:
            lines.append(f"The message: {run.left}.")
        click.echo("\n".join(map(escape_controls, lines)), err=not document["received"])


def _say(text: str) -> None:
    from gpuscaler.cli.printing import escape_controls

    with suppress(OSError, ValueError):
        click.echo(escape_controls(text), err=True)
