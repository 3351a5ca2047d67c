"""The pages about metrics and records are complete, and list nothing else."""

import re
from pathlib import Path

import msgspec
from tests.control.records.test_service import running_service

from gpuscaler.control.records.events import happening
from gpuscaler.control.records.events.happening import EVENTS
from gpuscaler.control.records.status.pages import Pages
from gpuscaler.control.records.status.status import (
    BreakerStatus,
    Limit,
    MachineCount,
    PendingPods,
    PoolStatus,
    Process,
    Status,
    StatusEntry,
)

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def words(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text()))


async def test_the_metrics_reference_page_lists_exactly_the_existing_metrics() -> None:
    async with running_service() as (client, service):
        await client.submit("a")
        await client.sleep(120.0)
        served = {family.name for family in service.metrics.registry.collect()}

    assert {word for word in words("metrics.md") if re.fullmatch(r"(gpuscaler|process)_\w+", word)} == served


async def test_the_metrics_reference_page_names_every_label() -> None:
    async with running_service() as (client, service):
        await client.submit("a")
        await client.sleep(120.0)
        samples = [sample for family in service.metrics.registry.collect() for sample in family.samples]

    assert {label for sample in samples for label in sample.labels} - {"le"} - words("metrics.md") == set()


def test_the_records_reference_page_names_every_event() -> None:
    assert {template.reason for template in EVENTS.values()} - words("records.md") == set()


def test_the_records_reference_page_names_every_kind_of_log_line() -> None:
    kinds = {value for name, value in vars(happening).items() if name.isupper() and isinstance(value, str)}

    assert len(kinds) > 20
    assert kinds - words("records.md") == set()


def test_the_records_reference_page_names_every_field_of_the_status() -> None:
    shapes = (Status, Process, PoolStatus, MachineCount, Limit, BreakerStatus, PendingPods)
    fields = {field.encode_name for shape in shapes for field in msgspec.structs.fields(shape)}

    assert fields - words("records.md") == set()
    assert {field.encode_name for field in msgspec.structs.fields(StatusEntry)} == {"about", "text", "at", "decision"}


def test_the_records_reference_page_names_every_http_page() -> None:
    routes = {route.path for route in Pages(None, None, None, leading=lambda: True, now=lambda: 0.0).routes()}  # type: ignore[arg-type]  # nothing is asked
    shown = {re.sub(r"\{(\w+)[^}]*\}", lambda match: match[1].upper(), route) for route in routes}

    assert shown - words("records.md") == set()
