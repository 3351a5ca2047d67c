"""Log lines of `gpuscaler metrics` about why it is not ready."""

import asyncio

import structlog

from gpuscaler.serving.health import log_problems


async def test_the_reason_why_the_server_is_not_ready_is_logged_when_the_reason_changes_or_ends() -> None:
    wrong = {"source": "", "trust": ""}
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(log_problems({"source": lambda: wrong["source"], "trust": lambda: wrong["trust"]}))
        for trouble in ("", 'cannot list resource "pods"', 'cannot list resource "pods"', 'cannot watch resource "pods"', ""):
            wrong["source"] = trouble
            await asyncio.sleep(10)
        task.cancel()

    assert [(log["event"], log["part"], log.get("problem", "")) for log in logs] == [
        ("not ready", "source", 'cannot list resource "pods"'),
        ("not ready", "source", 'cannot watch resource "pods"'),
        ("ready again", "source", ""),
    ]
