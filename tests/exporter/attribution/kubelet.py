"""A kubelet's PodResources service on a unix socket, with a real gRPC server. Messages are encoded here by hand, field by field."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc  # type: ignore[import-untyped]  # it ships none


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def part(number: int, body: bytes | str) -> bytes:
    """A field with text or a message."""
    raw = body.encode() if isinstance(body, str) else body
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def count(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def devices(*ids: str, resource: str = "nvidia.com/gpu", numa: int = 0) -> bytes:
    """ContainerDevices, with the topology that a kubelet adds."""
    return part(1, resource) + b"".join(part(2, device_id) for device_id in ids) + part(3, part(1, count(1, numa)))


def claim(*names: str, driver: str = "gpu.nvidia.com", pool: str = "node-a") -> bytes:
    """DynamicResource with one device each; Kubernetes 1.35 also sends the CDI devices and the share."""
    cdi = part(1, part(1, "k8s.gpu.nvidia.com/claim=3f1c"))
    return (
        part(2, "a-claim")
        + part(3, "ml")
        + b"".join(part(4, cdi + part(2, driver) + part(3, pool) + part(4, name) + part(5, "share-1")) for name in names)
    )


def container(name: str, *held: bytes, claims: Sequence[bytes] = ()) -> bytes:
    """ContainerResources, with CPUs and memory, which a reader of GPUs skips."""
    memory = part(1, "memory") + count(2, 2**30)
    packed = part(3, varint(2) + varint(3))
    return (
        part(1, name)
        + b"".join(part(2, device_entry) for device_entry in held)
        + packed
        + part(4, memory)
        + b"".join(part(5, claim) for claim in claims)
    )


def pod(namespace: str, name: str | bytes, *containers: bytes) -> bytes:
    return part(1, name) + part(2, namespace) + b"".join(part(3, container) for container in containers)


#: Every node has pods without devices.
PLAIN = pod("kube-system", "kube-proxy-x7k2p", container("kube-proxy"))


class FakeKubelet:
    """Answers List with ``pods``, unless ``behave`` changes that. ``asked`` counts requests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: list[bytes] = [PLAIN]
        self.asked = 0
        self.behave: Callable[[Any], bytes] | None = None
        self._server: Any = None

    def start(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers([_Handlers(self)])
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        """Stop as a kubelet does: connections are cut; the socket stays or is created again by the next start."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def restart(self) -> None:
        self.stop()
        self.path.unlink(missing_ok=True)
        self.start()

    def hang(self, *, seconds: float) -> threading.Event:
        """Do not answer for ``seconds``. The returned event is set once a request hangs."""
        held, over = threading.Event(), threading.Event()

        def wait(context: Any) -> bytes:
            context.add_callback(over.set)
            held.set()
            over.wait(seconds)
            return self.answer()

        self.behave = wait
        return held

    def fail(self, code: Any, details: str) -> None:
        def refuse(context: Any) -> bytes:
            context.abort(code, details)
            raise AssertionError("abort raises")

        self.behave = refuse

    def answer(self) -> bytes:
        return b"".join(part(1, pod) for pod in self.pods)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # it ships no types
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    def service(self, details: Any) -> Any:
        if details.method != "/v1.PodResourcesLister/List":
            return None

        def listed(request: bytes, context: Any) -> bytes:
            assert request == b""
            self._kubelet.asked += 1
            return self._kubelet.answer() if self._kubelet.behave is None else self._kubelet.behave(context)

        return grpc.unary_unary_rpc_method_handler(listed)


@contextmanager
def kubelet(*, started: bool = True) -> Iterator[FakeKubelet]:
    """A kubelet in its own directory. It is not the test's directory, since the path of a socket may have at most 107 characters."""
    with TemporaryDirectory(prefix="kubelet-") as folder:
        made = FakeKubelet(Path(folder) / "kubelet.sock")
        if started:
            made.start()
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def strict(behind: Path, front: Path) -> Iterator[list[bytes]]:
    """A proxy for ``behind`` that cuts connections if the first request has an authority other than localhost; yields first requests.

    Some servers refuse an authority with encoded slashes; the HTTP/2 headers show it in plain letters.
    """
    seen: list[bytes] = []
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(front))
    door.listen()
    door.settimeout(0.1)
    over = threading.Event()

    def pump(source: socket.socket, sink: socket.socket, check: Callable[[bytes], bool]) -> None:
        try:
            while (data := source.recv(65536)) and check(data):
                sink.sendall(data)
        except OSError:
            return
        finally:
            # Both directions end together.
            for sock in (source, sink):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def allowed(data: bytes) -> bool:
        if b"PodResourcesLister" in data:
            seen.append(data)
            return b"localhost" in data and b"%2F" not in data.upper()
        return True

    def serve(connection: socket.socket) -> None:
        with connection, socket.socket(socket.AF_UNIX) as back:
            back.connect(str(behind))
            answers = threading.Thread(target=pump, args=(back, connection, lambda _: True))
            answers.start()
            pump(connection, back, allowed)
            answers.join()

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = door.accept()
            except TimeoutError:
                continue
            connection.settimeout(5)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield seen
    finally:
        over.set()
        accepting.join()
        door.close()
