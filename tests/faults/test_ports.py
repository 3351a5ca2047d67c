"""F51 and F52: clients that reach our ports without a credential, and false or over-reaching exporters."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.metrics.building import pod
from tests.metrics.sources.test_direct import APART, becomes, duty_line, exporter, is_not_asked, on, page, scraped
from tests.serving.test_listening import closed, connected, made_by, probe, secured, served, until

from gpuscaler.serving.connections import Bounds

pytestmark = pytest.mark.looptime(False)

#: The defaults, but with short waits.
SOON = Bounds(first_byte=0.2, head=0.2)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.serving.listening.LOOK", 0.02)


async def test_f51_hundreds_of_idle_connections_block_no_probe_and_start_no_tls_handshake(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context, bounds=Bounds()) as server:
        with ExitStack() as stack:
            for number in range(300):
                connected(stack, server, source=f"127.0.0.{2 + number % 50}")
            assert await probe(server, trust) == 200
            assert len(server.listener.connections) <= Bounds().waiting
            assert server.listener.handshakes == set()


async def test_f51_a_connection_with_an_endless_request_head_is_closed_in_time() -> None:
    async with served(bounds=SOON) as server:
        with ExitStack() as stack:
            slow = connected(stack, server)
            slow.send(b"GET /healthz HTTP/1.1\r\nHost")
            assert await closed(slow)
            await until(lambda: server.listener.connections.closed == {"time: no complete head": 1})


async def test_f51_a_flood_of_connections_from_many_addresses_delays_neither_known_nor_new_clients(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context, bounds=Bounds(turns=10, turns_at_once=1, first_byte=30)) as server:
        flood = {f"127.0.1.{number}": trust for number in range(1, 60)}
        with ExitStack() as stack:
            assert await probe(server, trust) == 200
            # They are answered before, too, but later than the probe; and they begin handshakes faster than there are turns.
            for source in list(flood)[:3]:
                assert await probe(server, trust, source=source) == 200
            for source in flood:
                for _ in range(2):
                    connected(stack, server, source=source).send(b"\x16\x03\x01\x02\x00\x01")
            await until(lambda: len(server.listener.connections) > 100)
            begun = made_by(server)
            assert await probe(server, trust) == 200
            assert await probe(server, trust, source="127.0.0.9") == 200
            # At ten turns a second neither waited for more than the next three turns.
            assert len(begun) <= 8


async def test_f52_values_of_an_exporter_about_pods_of_other_nodes_are_ignored() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40)), "127.0.0.2": page(duty_line(100), duty_line(90, "p1"))}, *APART) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "90"})


async def test_f52_a_pod_with_the_labels_of_an_exporter_that_no_daemon_set_owns_is_not_an_exporter() -> None:
    forged = {**exporter("forged", "127.0.0.2"), "metadata": on("n1", pod("forged", "gpus"))["metadata"]}
    forged["metadata"]["labels"] = {"app.kubernetes.io/component": "exporter"}
    await is_not_asked(forged)
