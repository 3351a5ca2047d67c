"""Faults on demand, and their effects on the transport in memory."""

import asyncio

import pytest
from tests.embedded.asking import CONFIG_MAPS, NODES, Asker, asker, config_map, node, virtual_clock

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault, broken, throttled, unavailable
from gpuscaler.embedded.apiserver.kinds import NODES as NODE_KIND
from gpuscaler.embedded.apiserver.wire.failures import conflict, expired
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.errors import Unreachable


@pytest.mark.parametrize(
    ("refusal", "code", "retry_after"),
    [
        (throttled(7), 429, 7),
        (broken(), 500, None),
        (unavailable(), 503, 1),
        (expired("gone"), 410, None),
        (conflict(NODE_KIND, "n"), 409, None),
    ],
)
async def test_an_injected_refusal_is_returned_the_given_number_of_times(refusal: Exception, code: int, retry_after: int | None) -> None:
    api = ApiServer(virtual_clock)
    api.faults.add(Fault(path="^/api/v1/nodes", times=2, refusal=refusal))  # type: ignore[arg-type]  # all of them are Failures
    ask = asker(api)
    assert (await ask("GET", CONFIG_MAPS))[0] == 200
    for _ in range(2):
        status, answer = await ask("GET", NODES)
        assert (status, answer.get("details", {}).get("retryAfterSeconds")) == (code, retry_after)
    assert (await ask("GET", NODES))[0] == 200


async def test_a_fault_can_match_one_method_and_a_query() -> None:
    api = ApiServer(virtual_clock)
    api.faults.add(Fault(method="POST", path=r"nodes\?dryRun=All", refusal=broken()))
    ask = asker(api)
    assert (await ask("POST", NODES, node()))[0] == 201
    assert (await ask("POST", NODES, node("m"), dryRun="All"))[0] == 500
    api.faults.clear()
    assert (await ask("POST", NODES, node("m"), dryRun="All"))[0] == 201


async def test_a_fault_with_a_probability_affects_that_share_of_requests() -> None:
    api = ApiServer(virtual_clock, seed=1)
    api.faults.add(Fault(chance=0.3, refusal=broken()))
    ask = asker(api)
    hits = sum([(await ask("GET", NODES))[0] == 500 for _ in range(200)])
    assert 40 <= hits <= 80


async def test_a_delayed_response_arrives_late_or_times_out() -> None:
    api = ApiServer(virtual_clock)
    api.faults.add(Fault(delay=10.0))
    ask = asker(api)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await ask.ok("GET", NODES, timeout=20.0)
    assert loop.time() - began == pytest.approx(10)
    with pytest.raises(Unreachable, match=r"GET /api/v1/nodes: no answer came in 5 s"):
        await ask("GET", NODES, timeout=5.0)
    assert loop.time() - began == pytest.approx(15)


@pytest.mark.parametrize(("sever", "kept"), [("before", False), ("after", True)])
async def test_after_a_broken_connection_a_write_may_have_taken_effect_or_not(sever: str, kept: bool) -> None:
    api = ApiServer(virtual_clock)
    api.faults.add(Fault(method="POST", times=1, sever=sever))  # type: ignore[arg-type]  # one of its words
    ask = asker(api)
    with pytest.raises(Unreachable, match="the connection broke"):
        await ask("POST", CONFIG_MAPS, config_map())
    assert ((await ask("GET", f"{CONFIG_MAPS}/c"))[0] == 200) is kept


async def test_a_response_body_can_be_truncated() -> None:
    api = ApiServer(virtual_clock)
    ask = asker(api)
    await ask.ok("POST", CONFIG_MAPS, config_map())
    api.faults.add(Fault(times=1, cut=30))
    with pytest.raises(Unreachable):
        await ask("GET", CONFIG_MAPS)


async def test_a_disconnected_transport_is_unreachable_until_it_is_restored() -> None:
    api = ApiServer(virtual_clock)
    transport = MemoryTransport(api, delay=0.5)
    ask, other = Asker(transport), asker(api)
    transport.cut()
    with pytest.raises(Unreachable):
        await ask("GET", NODES, timeout=3.0)
    assert (await other("GET", NODES))[0] == 200
    waiting = asyncio.create_task(ask("GET", NODES))
    await asyncio.sleep(2)
    transport.mend()
    assert (await waiting)[0] == 200
    await transport.close()
