"""Leases and Events with every field of Kubernetes 1.29 to 1.37, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest
from tests.model.releases.fields import full, releases

from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.leases import LeaderElection
from gpuscaler.kube.resources import CORE_EVENTS, LEASES

#: Fields that the holder of a lease writes; ``strategy`` and ``preferredHolder`` are for coordinated leader election.
OURS = {"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}


def virtual() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    running = asyncio.create_task(work)
    try:
        await asyncio.sleep(5)
        yield
        await asyncio.sleep(5)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("release", releases())
async def test_a_leader_keeps_what_others_wrote_into_the_lease(release: str) -> None:
    client = Client(MemoryTransport(ApiServer(virtual)))
    spec = {**full("coordination/v1.LeaseSpec", release), "holderIdentity": "", "leaseTransitions": 4}
    await client.create(LEASES, {"metadata": {"name": "gpuscaler"}, "spec": spec}, namespace="default")
    led = asyncio.Event()

    async def lead() -> None:
        led.set()
        await asyncio.sleep(60)

    election = LeaderElection(client, name="gpuscaler", namespace="default", identity="one", clock=virtual, wall=virtual, random=Random(1))
    async with beside(election.run(lead)):
        assert led.is_set()
    lease = msgspec.json.decode(await client.get(LEASES, "gpuscaler", namespace="default"))["spec"]
    assert lease["leaseTransitions"] == 5
    assert {key: value for key, value in lease.items() if key not in OURS} == {key: value for key, value in spec.items() if key not in OURS}


@pytest.mark.parametrize("release", releases())
async def test_events_of_the_scheduler_are_read_whatever_other_fields_they_have(release: str) -> None:
    client = Client(MemoryTransport(ApiServer(virtual)))
    fields = {
        "apiVersion": "v1",
        "kind": "Event",
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "metadata": {"name": "a.1"},
    }
    about = {"kind": "Pod", "namespace": "default", "name": "a"}
    event = {**full("core/v1.Event", release), **fields, "involvedObject": about, "series": None, "lastTimestamp": "2026-11-01T12:00:09Z"}
    attempts = Attempts(client)

    async with beside(attempts.run()):
        await client.create(CORE_EVENTS, event, namespace="default")
    assert (dict(attempts), attempts.messages) == ({"default/a": 1793534409.0}, {"default/a": "0/3 nodes are available"})
