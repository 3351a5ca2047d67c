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
from benchmarks.hostile import SIMULATED, free_port
from benchmarks.metrics import METRICS, run_metrics_api
from gpuscaler.exporter.footprint import footprint

SECONDS = float(os.environ.get("ATTACK_SECONDS", "60"))
CHOSEN, SERVERS = os.environ.get("ATTACK", ""), os.environ.get("ATTACKED", "metrics API, controller, exporter")
#: Seconds until a request counts as failed.
PATIENCE_FAILED = 5.0
EVERY = 0.1
PROBE = "127.0.0.1"
#: Limits: additional memory during an attack in MB, and p99 of the answers to other clients in seconds.
MORE, PATIENCE = 100.0, 0.05
#: Every n-th request comes from an address that has sent none before.
STRANGE = 5
#: Seconds before and after the attack itself that are not measured.
SETTLE = 1.0
_ASKED = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@dataclass(frozen=True)
class Serving:
    """A server under attack and one of the same kind without an attack: two ports, and the process of the first."""

    port: int
    quiet: int
    pid: int
    tls: bool


def figures() -> Iterator[Figure]:
    chosen = [attack for attack in (QUIET, *ATTACKS) if CHOSEN in attack.what]
    for name, server in {"metrics API": metrics_api, "controller": controller, "exporter": exporter}.items():
        if name not in SERVERS:
            continue
        with server() as here:
            time.sleep(5)
            for attack in chosen:
                yield measure_attack(name, attack, here)


@contextmanager
def metrics_api() -> Iterator[Serving]:
    with (
        run_metrics_api(namespaces=4, pods=50, metrics=METRICS[:1]) as here,
        run_metrics_api(namespaces=4, pods=50, metrics=METRICS[:1]) as beside,
    ):
        yield Serving(here.port, beside.port, here.process.pid, tls=True)


@contextmanager
def controller() -> Iterator[Serving]:
    ports = free_port(), free_port()
    with TemporaryDirectory() as folder, served(Path(folder)) as cluster, ExitStack() as stack:
        pids = []
        for place, port in enumerate(ports):
            file = Path(folder) / f"run-{place}.yaml"
            file.write_text(f"{LIMITED}{SIMULATED}http: {{address: '127.0.0.1:{port}'}}\n")
            command = ("run", "--config", str(file), "--kubeconfig", str(cluster.kubeconfig))
            pids.append(stack.enter_context(_process(*command)))
        yield Serving(_wait_until_reachable(ports[0]), _wait_until_reachable(ports[1]), pids[0], tls=False)


@contextmanager
def exporter() -> Iterator[Serving]:
    ports = free_port(), free_port()
    with ExitStack() as stack:
        pids = []
        for port in ports:
            command = ("exporter", "--backend", "simulated", "--listen", f"127.0.0.1:{port}", "--kubelet-socket", "/nonexistent")
            pids.append(stack.enter_context(_process(*command)))
        yield Serving(_wait_until_reachable(ports[0]), _wait_until_reachable(ports[1]), pids[0], tls=False)


@contextmanager
def _process(*arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-m", "gpuscaler", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _wait_until_reachable(port: int) -> int:
    end = time.monotonic() + 60
    while not _is_answered(port, source=PROBE, tls=False):
        if time.monotonic() > end:
            raise TimeoutError(f"saw no answer on port {port}")
        time.sleep(0.1)
    return port


def measure_attack(name: str, attack: Attack, here: Serving) -> Figure:
    arguments = json.dumps({"name": attack.what, "port": here.port, "tls": here.tls})
    before, used = _resident_mb(here.pid), _cpu_seconds(here.pid)
    waits: dict[str, list[float]] = {"known": [], "strange": [], "quiet": []}
    failed, most = {"known": 0, "strange": 0}, before
    with subprocess.Popen([sys.executable, "-m", "benchmarks.attacker", arguments]) as attacker:
        time.sleep(SETTLE)
        began, rounds = time.monotonic(), 0
        while (now := time.monotonic()) < began + SECONDS:
            rounds += 1
            address = _new_address(int(began * 10) + rounds) if rounds % STRANGE == 0 else ""
            client = "strange" if address else "known"
            failed[client] += not _time_request(waits[client], here.port, source=address or PROBE, tls=here.tls)
            _time_request(waits["quiet"], here.quiet, source=PROBE, tls=here.tls)
            most = max(most, _resident_mb(here.pid))
            time.sleep(max(0.0, EVERY - (time.monotonic() - now)))
        share = (_cpu_seconds(here.pid) - used) / (time.monotonic() - began + SETTLE)
        attacker.terminate()
    slowest, unknown, quiet = map(p99, waits.values())
    return Figure(
        what=f"{name}: {attack.what}",
        peers="1,600 without a byte: 492 MB; 560 heads: 1,030 MB; 64 without a byte blinded an exporter",
        reach=f"at most {MORE:g} MB more memory, others answered within {PATIENCE * 1000:g} ms (p99)",
        measured=(
            f"{most - before:+.1f} MB of {before:.0f}, {share:.0%} of a core, p99 {slowest * 1000:.1f} ms, "
            f"{slowest / max(quiet, 1e-6):.1f} times a server without an attack; "
            f"new addresses {unknown * 1000:.1f} ms; {failed['known']} and {failed['strange']} of {rounds} failed"
        ),
        reached=most - before <= MORE and slowest <= PATIENCE and not any(failed.values()),
        values={
            "before_mb": before,
            "most_mb": most,
            "p99": slowest,
            "p99_new": unknown,
            "p99_quiet": quiet,
            "median": statistics.median(waits["known"] or [0.0]),
            "median_quiet": statistics.median(waits["quiet"] or [0.0]),
            "failed": failed["known"],
            "failed_new": failed["strange"],
            "core": share,
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
        with socket.create_connection(("127.0.0.1", port), PATIENCE_FAILED, (source, 0)) as raw:
            sock = unverified_tls().wrap_socket(raw) if tls else raw
            sock.sendall(_ASKED)
            return b"HTTP/1.1 200" in sock.recv(4096)
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    usage = footprint(pid)
    return usage.cpu_seconds if usage else 0.0


def _resident_mb(pid: int) -> float:
    usage = footprint(pid)
    return usage.resident_bytes / 1e6 if usage else 0.0
