"""Whoever reaches a port without a credential: how much memory that takes, and how long others wait for their answers meanwhile.

Each attack is played for a minute (``ATTACK_SECONDS``) by a process of its own, which opens again what was closed, 500 a second, while
another client asks ten times a second over connections of its own. 127.0.0.0/8 stands in for many peers.
"""

import json
import os
import resource
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.serving import served
from tests.hostile.workloads import LIMITED

from benchmarks.figures import Figure
from benchmarks.hostile import SIMULATED, free_port
from benchmarks.metrics import METRICS, running
from gpuscaler.exporter.footprint import footprint

SECONDS = float(os.environ.get("ATTACK_SECONDS", "60"))
EVERY = 0.1
#: Connections that are opened again at each step, and how long one is, in seconds: 500 a second.
AGAIN, STEP = 50, 0.1
#: How much more memory an attack may take, in MB, and how long 99 of 100 answers to others, in seconds.
MORE, PATIENCE = 100.0, 0.05
_BEGIN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Attack:
    """``count`` connections of ``peers``. ``first`` is sent at once, ``drip`` ten times a second, both within TLS where it is spoken."""

    what: str
    count: int
    peers: int
    first: bytes = b""
    drip: bytes = b""
    handshake: bool = True


def head(headers: int, length: int) -> bytes:
    """One without its end."""
    return _BEGIN + b"".join(b"X-%05d: %s\r\n" % (number, b"a" * length) for number in range(headers))


#: What the machine is good for by itself.
QUIET = Attack("nobody attacks", 0, 1)
ATTACKS = (
    Attack("1,600 connections without a byte", 1600, 1, handshake=False),
    Attack("10,000 connections without a byte, of 5 peers", 10_000, 5, handshake=False),
    Attack("100 heads of 4,000 lines without their end", 100, 1, head(4000, 240)),
    Attack("560 heads of 120 long lines without their end, of 40 peers", 560, 40, head(120, 8000)),
    Attack("400 heads of 60 kB without their end, of 100 peers", 400, 100, head(7, 8000)),
    Attack("200 heads that drip, of 10 peers", 200, 10, _BEGIN, b"X-A: b\r\n"),
    Attack(
        "200 requests whose body does not come, of 10 peers", 200, 10, b"POST /healthz HTTP/1.1\r\nContent-Length: 100000\r\n\r\nabc", b"x"
    ),
)


def figures() -> Iterator[Figure]:
    for name, server in {"metrics API": metrics_api, "controller": controller, "exporter": exporter}.items():
        with server() as (port, pid, tls):
            time.sleep(5)
            yield attacked(name, QUIET, port=port, pid=pid, tls=tls)
            for attack in ATTACKS:
                yield attacked(name, attack, port=port, pid=pid, tls=tls)


@contextmanager
def metrics_api() -> Iterator[tuple[int, int, bool]]:
    with running(namespaces=4, pods=50, metrics=METRICS[:1]) as here:
        yield here.port, here.process.pid, True


@contextmanager
def controller() -> Iterator[tuple[int, int, bool]]:
    port = free_port()
    with TemporaryDirectory() as folder, served(Path(folder)) as cluster:
        file = Path(folder) / "run.yaml"
        file.write_text(f"{LIMITED}{SIMULATED}http: {{address: '127.0.0.1:{port}'}}\n")
        with _process("run", "--config", str(file), "--kubeconfig", str(cluster.kubeconfig)) as pid:
            yield _reachable(port), pid, False


@contextmanager
def exporter() -> Iterator[tuple[int, int, bool]]:
    port = free_port()
    with _process("exporter", "--backend", "simulated", "--listen", f"127.0.0.1:{port}", "--kubelet-socket", "/nonexistent") as pid:
        yield _reachable(port), pid, False


@contextmanager
def _process(*arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-m", "gpuscaler", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _reachable(port: int) -> int:
    end = time.monotonic() + 60
    while True:
        try:
            _ask(port, tls=None)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return port


def attacked(name: str, attack: Attack, *, port: int, pid: int, tls: bool) -> Figure:
    context = _careless() if tls else None
    before = _resident(pid)
    told = json.dumps({"name": attack.what, "port": port, "tls": tls})
    waits, failed, most = list[float](), 0, before
    with subprocess.Popen([sys.executable, "-m", "benchmarks.attacks", told], stdout=subprocess.PIPE, text=True) as attacker:
        end = time.monotonic() + SECONDS
        while (began := time.monotonic()) < end:
            try:
                _ask(port, tls=context)
            except OSError:
                failed += 1
            waits.append(time.monotonic() - began)
            most = max(most, _resident(pid))
            time.sleep(max(0.0, EVERY - (time.monotonic() - began)))
        attacker.terminate()
    slowest = statistics.quantiles(waits, n=100)[98]
    return Figure(
        what=f"{name}: {attack.what}",
        peers="1,600 without a byte: 492 MB; 560 heads: 1,030 MB; 64 without a byte blinded an exporter",
        reach=f"within {MORE:g} MB of before, others answered within {PATIENCE * 1000:g} ms (p99)",
        measured=f"{most - before:+.1f} MB of {before:.0f}, p99 {slowest * 1000:.1f} ms, {failed} of {len(waits)} failed",
        reached=most - before <= MORE and slowest <= PATIENCE and not failed,
        values={"before_mb": before, "most_mb": most, "p99": slowest, "median": statistics.median(waits), "failed": failed},
    )


def _ask(port: int, *, tls: ssl.SSLContext | None) -> None:
    """Once, over a connection of its own. Raises OSError where no answer comes."""
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        made = tls.wrap_socket(raw) if tls else raw
        made.sendall(_BEGIN + b"Connection: close\r\n\r\n")
        if b"HTTP/1.1 200" not in made.recv(4096):
            raise OSError("no answer")


def _resident(pid: int) -> float:
    found = footprint(pid)
    return found.resident_bytes / 1e6 if found else 0.0


def _careless() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Attacker:
    """Plays one attack until it is ended, step by step."""

    def __init__(self, attack: Attack, port: int, *, tls: bool) -> None:
        self.attack, self.port = attack, port
        self.context = _careless() if tls and attack.handshake else None
        self.held: dict[int, socket.socket] = {}
        #: How many are opened in this step: all of them in the first.
        self.most = attack.count
        self.closed = selectors.DefaultSelector()

    def step(self) -> None:
        for key, _ in self.closed.select(0):
            self._look(key.fd, self.held[key.fd])
        for place in range(len(self.held), min(self.attack.count, len(self.held) + self.most)):
            with suppress(OSError):
                self._open(place)
        self.most = AGAIN
        for fd, made in list(self.held.items()):
            self._send(fd, made, self.attack.drip)

    def _open(self, place: int) -> None:
        made = socket.socket()
        made.settimeout(1)
        made.bind((f"127.0.0.{2 + place % self.attack.peers}", 0))
        made.connect(("127.0.0.1", self.port))
        if self.context is not None:
            made = self.context.wrap_socket(made)
        made.setblocking(False)
        self.held[made.fileno()] = made
        self.closed.register(made.fileno(), selectors.EVENT_READ)
        self._send(made.fileno(), made, self.attack.first)

    def _send(self, fd: int, made: socket.socket, text: bytes) -> None:
        if text:
            self._tried(fd, lambda: made.send(text))

    def _look(self, fd: int, made: socket.socket) -> None:
        if self._tried(fd, lambda: made.recv(65536)) == b"":
            self._drop(fd)

    def _tried(self, fd: int, call: Callable[[], object]) -> object:
        try:
            return call()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError:
            self._drop(fd)
            return None

    def _drop(self, fd: int) -> None:
        if fd in self.held:
            self.closed.unregister(fd)
            self.held.pop(fd).close()


def play(told: dict[str, object]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    attack = next(one for one in (QUIET, *ATTACKS) if one.what == told["name"])
    attacker = Attacker(attack, int(str(told["port"])), tls=bool(told["tls"]))
    while True:
        began = time.monotonic()
        attacker.step()
        time.sleep(max(0.0, STEP - (time.monotonic() - began)))


if __name__ == "__main__":
    play(json.loads(sys.argv[1]))
