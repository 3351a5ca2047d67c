"""The exporter's watcher with the metadata service of the simulated Azure account, which was written independently of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import Conditions, making
from gpuscaler.exporter.scheduled_events.metadata_service import MetadataService
from gpuscaler.exporter.scheduled_events.watching import EventWatcher

pytestmark = pytest.mark.looptime(False)

SCALE_SET = "aks-spot-12345678-vmss"


class Drained:
    """A Node without pods that matter."""

    def __init__(self) -> None:
        self.written: list[str | None] = []

    async def annotate(self, value: str | None) -> None:
        self.written.append(value)

    async def is_drained(self) -> bool:
        return True


@asynccontextmanager
async def spot_machines() -> AsyncIterator[Azure]:
    """An account with a spot scale set of two machines."""
    served = Azure(conditions=Conditions(retry_after=0, spelling="kept"))
    making.create_scale_set(served.account, "rg", SCALE_SET, SIZE, count=2, spot=True)
    await served.open()
    try:
        yield served
    finally:
        await served.close()


def watcher(service: MetadataService, node: str, writer: Drained, *, acknowledges: bool = False) -> EventWatcher:
    return EventWatcher(
        service, writer, node, interval=2.0, log=lambda _level, _text: None, clock=lambda: 1000.0, acknowledges=acknowledges
    )


async def test_an_eviction_is_seen_by_its_own_machine_only_and_ends_with_it() -> None:
    async with spot_machines() as azure, _service(azure, 0) as first, _service(azure, 1) as second:
        kept, evicted = Drained(), Drained()
        others = watcher(first, f"{SCALE_SET}000000", kept)
        own = watcher(second, f"{SCALE_SET}000001", evicted)
        await azure.call("PUT", "/_control/interrupt", {"machine": f"{SCALE_SET}_1", "notice": 30})
        await others.poll()
        await own.poll()

        assert others.events == ()
        assert [event.event.kind for event in own.events] == ["Preempt"]
        assert own.events[0].event.at == azure.time + 30.0
        azure.later(31)
        await others.poll()
        assert kept.written == [None]
        assert others.reading == ""


async def test_an_acknowledged_eviction_happens_at_once() -> None:
    async with spot_machines() as azure, _service(azure, 1) as service:
        own = watcher(service, f"{SCALE_SET}000001", Drained(), acknowledges=True)
        await azure.call("PUT", "/_control/interrupt", {"machine": f"{SCALE_SET}_1", "notice": 30})
        await own.poll()

        assert [len(scale_set.machines) for scale_set in azure.account.all_scale_sets()] == [1]


def _service(azure: Azure, number: int) -> MetadataService:
    return MetadataService(f"{azure.url}/_machines/{SCALE_SET}_{number}")
