"""``gpuscaler exporter --scheduled-events`` as users start it, with a metadata service and an API server on sockets."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.test_exporter import Started, started
from tests.cli.walls import WALLED
from tests.exporter.scheduled_events.azure import NODE, azure, event
from tests.patience import PATIENCE

from gpuscaler.cli import main

pytestmark = pytest.mark.looptime(False)

METRIC = "gpuscaler_exporter_scheduled_event_timestamp_seconds"


async def until_shown(running: Started) -> None:
    """Wait until an event is on the page of metrics."""
    async with asyncio.timeout(PATIENCE):
        while not (await asyncio.to_thread(running.metrics)).values(METRIC):  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(0.05)


async def test_without_an_api_server_the_events_are_on_its_pages(tmp_path: Path) -> None:
    async with azure() as service:
        service.schedule(event())
        arguments = ("--backend", "simulated", "--scheduled-events", "--metadata-url", service.url, "--node-name", NODE)
        with started(*arguments, HOME=str(tmp_path), **WALLED) as running:
            await until_shown(running)
            scrape, page = running.metrics(), json.loads(await asyncio.to_thread(running.get, "/scheduled-events"))
            front = await asyncio.to_thread(running.get, "/")
            log = list(running.log)

    assert scrape.value(METRIC, kind="Preempt", node_name=NODE) == 1_800_000_030.0
    assert scrape.value("gpuscaler_exporter_working", part="events") == 1
    assert page["event"]["kind"] == "Preempt"
    assert "Preempt of this machine" in front
    assert any("only on this exporter's page" in line["message"] for line in log)


def test_without_the_option_there_is_no_page_of_events() -> None:
    with started("--backend", "simulated", **WALLED) as running:
        assert running.metrics().values("gpuscaler_exporter_working", part="events") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--acknowledge-scheduled-events",), "saw no --scheduled-events, expected both"),
        (("--scheduled-events", "--scheduled-events-interval", "1s"), "saw '1s', expected a duration from 2s to 60s"),
        (("--scheduled-events", "--metadata-url", "https://169.254.169.254/x"), "expected http://HOST[:PORT][/PATH]"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(main, ["exporter", *arguments])

    assert done.exit_code == 2
    assert words in done.output
