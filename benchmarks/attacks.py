"""Attacks without credentials on a reachable port: how much memory they take, and how long other clients wait meanwhile.

Each attack is played for a minute (``ATTACK_SECONDS``) by a separate process (:mod:`benchmarks.attacker`), while another client sends ten
requests a second over its own connections, alternately to this server and to one of the same kind without an attack: slowness of the
machine itself, above all from the attacker's own work, affects both. ``ATTACK`` selects the attacks whose names contain it, ``ATTACKED``
the servers.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.serving import served
from tests.hostile.workloads import LIMITED

from benchmarks.attacker import ATTACKS, QUIET, REQUEST, Attack, unverified_tls
from benchmarks.figures import Figure
from benchmarks.hostile import SIMULATED_CLOUD, free_port
from benchmarks.metrics import METRICS, run_metrics_api
from gpuscaler.exporter.footprint import footprint

ATTACK_SECONDS = float(os.environ.get("ATTACK_SECONDS", "60"))
ATTACK_FILTER, SERVER_FILTER = os.environ.get("ATTACK", ""), os.environ.get("ATTACKED", "metrics API, controller, exporter")
#: Seconds until a request counts as failed.
REQUEST_TIMEOUT = 5.0
REQUEST_INTERVAL = 0.1
CLIENT_ADDRESS = "127.0.0.1"
#: Limits: additional memory during an attack in MB, and p99 of the answers to other clients in seconds.
MAX_ADDED_MB, MAX_P99_SECONDS = 100.0, 0.05
#: Every n-th request comes from an address that has sent none before.
NEW_ADDRESS_EVERY = 5
#: Seconds before and after the attack itself that are not measured.
SETTLE_SECONDS = 1.0
_LAST_REQUEST = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@dataclass(frozen=True)
class AttackedServer:
    """A server under attack and one of the same kind without an attack: two ports, and the process of the first."""

    port: int
    quiet_port: int
    pid: int
    tls: bool


def figures() -> Iterator[Figure]:
    chosen = [attack for attack in (QUIET, *ATTACKS) if ATTACK_FILTER in attack.name]
    for name, start_server in {"metrics API": run_metrics_apis, "controller": run_controllers, "exporter": run_exporters}.items():
        if name not in SERVER_FILTER:
            continue
        with start_server() as server:
            time.sleep(5)
            for attack in chosen:
                yield measure_attack(name, attack, server)


@contextmanager
def run_metrics_apis() -> Iterator[AttackedServer]:
    with (
        run_metrics_api(namespaces=4, pods=50, metrics=METRICS[:1]) as attacked,
        run_metrics_api(namespaces=4, pods=50, metrics=METRICS[:1]) as quiet,
    ):
        yield AttackedServer(attacked.port, quiet.port, attacked.process.pid, tls=True)


@contextmanager
def run_controllers() -> Iterator[AttackedServer]:
    ports = free_port(), free_port()
    with TemporaryDirectory() as folder, served(Path(folder)) as cluster, ExitStack() as stack:
        pids = []
        for number, port in enumerate(ports):
            file = Path(folder) / f"run-{number}.yaml"
            file.write_text(f"{LIMITED}{SIMULATED_CLOUD}http: {{address: '127.0.0.1:{port}'}}\n")
            command = ("run", "--config", str(file), "--kubeconfig", str(cluster.kubeconfig))
            pids.append(stack.enter_context(_run_process(*command)))
        yield AttackedServer(_wait_until_reachable(ports[0]), _wait_until_reachable(ports[1]), pids[0], tls=False)


@contextmanager
def run_exporters() -> Iterator[AttackedServer]:
    ports = free_port(), free_port()
    with ExitStack() as stack:
        pids = []
        for port in ports:
            command = ("exporter", "--backend", "simulated", "--listen", f"127.0.0.1:{port}", "--kubelet-socket", "/nonexistent")
            pids.append(stack.enter_context(_run_process(*command)))
        yield AttackedServer(_wait_until_reachable(ports[0]), _wait_until_reachable(ports[1]), pids[0], tls=False)


@contextmanager
def _run_process(*arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-m", "gpuscaler", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _wait_until_reachable(port: int) -> int:
    end = time.monotonic() + 60
    while not _is_answered(port, source=CLIENT_ADDRESS, tls=False):
        if time.monotonic() > end:
            raise TimeoutError(f"saw no answer on port {port}")
        time.sleep(0.1)
    return port


def measure_attack(name: str, attack: Attack, server: AttackedServer) -> Figure:
    arguments = json.dumps({"name": attack.name, "port": server.port, "tls": server.tls})
    before, cpu_before = _resident_mb(server.pid), _cpu_seconds(server.pid)
    waits: dict[str, list[float]] = {"known": [], "new": [], "quiet": []}
    failed, peak = {"known": 0, "new": 0}, before
    with subprocess.Popen([sys.executable, "-m", "benchmarks.attacker", arguments]) as attacker:
        time.sleep(SETTLE_SECONDS)
        began, rounds = time.monotonic(), 0
        while (now := time.monotonic()) < began + ATTACK_SECONDS:
            rounds += 1
            new_address = _new_address(int(began * 10) + rounds) if rounds % NEW_ADDRESS_EVERY == 0 else ""
            client = "new" if new_address else "known"
            failed[client] += not _time_request(waits[client], server.port, source=new_address or CLIENT_ADDRESS, tls=server.tls)
            _time_request(waits["quiet"], server.quiet_port, source=CLIENT_ADDRESS, tls=server.tls)
            peak = max(peak, _resident_mb(server.pid))
            time.sleep(max(0.0, REQUEST_INTERVAL - (time.monotonic() - now)))
        core = (_cpu_seconds(server.pid) - cpu_before) / (time.monotonic() - began + SETTLE_SECONDS)
        attacker.terminate()
    p99_known, p99_new, p99_quiet = map(p99, waits.values())
    return Figure(
        what=f"{name}: {attack.name}",
        peers="1,600 without a byte: 492 MB; 560 heads: 1,030 MB; 64 without a byte blinded an exporter",
        reach=f"at most {MAX_ADDED_MB:g} MB more memory, others answered within {MAX_P99_SECONDS * 1000:g} ms (p99)",
        measured=(
            f"{peak - before:+.1f} MB of {before:.0f}, {core:.0%} of a core, p99 {p99_known * 1000:.1f} ms, "
            f"{p99_known / max(p99_quiet, 1e-6):.1f} times a server without an attack; "
            f"new addresses {p99_new * 1000:.1f} ms; {failed['known']} and {failed['new']} of {rounds} failed"
        ),
        reached=peak - before <= MAX_ADDED_MB and p99_known <= MAX_P99_SECONDS and not any(failed.values()),
        values={
            "before_mb": before,
            "most_mb": peak,
            "p99": p99_known,
            "p99_new": p99_new,
            "p99_quiet": p99_quiet,
            "median": statistics.median(waits["known"] or [0.0]),
            "median_quiet": statistics.median(waits["quiet"] or [0.0]),
            "failed": failed["known"],
            "failed_new": failed["new"],
            "core": core,
        },
    )


def _new_address(number: int) -> str:
    return f"127.{9 + number // 62_500 % 200}.{number // 250 % 250}.{1 + number % 250}"


def p99(waits: list[float]) -> float:
    """The p99 of ``waits``, 0 if there are none."""
    return statistics.quantiles(waits * 2, n=100, method="inclusive")[98] if waits else 0.0


def _time_request(waits: list[float], port: int, *, source: str, tls: bool) -> bool:
    began = time.monotonic()
    answered = _is_answered(port, source=source, tls=tls)
    waits.append(time.monotonic() - began)
    return answered


def _is_answered(port: int, *, source: str, tls: bool) -> bool:
    """Whether an answer came, over a separate connection from ``source``."""
    try:
        with socket.create_connection(("127.0.0.1", port), REQUEST_TIMEOUT, (source, 0)) as raw:
            sock = unverified_tls().wrap_socket(raw) if tls else raw
            sock.sendall(_LAST_REQUEST)
            return b"HTTP/1.1 200" in sock.recv(4096)
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    usage = footprint(pid)
    return usage.cpu_seconds if usage else 0.0


def _resident_mb(pid: int) -> float:
    usage = footprint(pid)
    return usage.resident_bytes / 1e6 if usage else 0.0
