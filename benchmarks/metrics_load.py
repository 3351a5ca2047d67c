"""Sends requests to a metrics API over TLS as a front proxy does, as fast as it answers, and prints the results as JSON.

The first argument is a file of JSON with ``port``, ``ca``, ``certificate``, ``key``, ``connections``, ``seconds`` and ``paths``.
"""

import itertools
import json
import select
import socket
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEAD = (
    "GET {path} HTTP/1.1\r\nHost: metrics\r\nAccept: application/json, */*\r\nUser-Agent: kube-controller-manager/v1.35.4\r\n"
    "X-Remote-User: system:serviceaccount:kube-system:horizontal-pod-autoscaler\r\n"
    "X-Remote-Group: system:serviceaccounts\r\nX-Remote-Group: system:authenticated\r\n\r\n"
)


@dataclass(slots=True)
class Connection:
    sock: ssl.SSLSocket
    began: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)
    expected_bytes: int = -1


def send_requests(job: dict[str, Any]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=job["ca"])
    context.check_hostname = False
    context.load_cert_chain(job["certificate"], job["key"])
    requests = itertools.cycle([_HEAD.format(path=path).encode() for path in job["paths"]])
    poll = select.epoll()
    connections: dict[int, Connection] = {}
    for _ in range(job["connections"]):
        raw = socket.create_connection(("127.0.0.1", job["port"]))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = context.wrap_socket(raw, server_hostname="metrics")
        sock.setblocking(False)
        connections[sock.fileno()] = Connection(sock)
        poll.register(sock.fileno(), select.EPOLLIN)
    seconds: list[float] = []
    wrong: dict[str, int] = {}
    size, last = 0, b""
    began = time.perf_counter()
    until = began + job["seconds"]
    for connection in connections.values():
        connection.began = time.perf_counter()
        connection.sock.send(next(requests))
    while time.perf_counter() < until:
        for number, _ in poll.poll(1.0):
            connection = connections[number]
            answer = receive_answer(connection)
            if answer is None:
                continue
            now = time.perf_counter()
            seconds.append(now - connection.began)
            size += len(answer)
            last = answer
            if not answer.startswith(b"HTTP/1.1 200"):
                status_line = answer[:40].decode(errors="replace")
                wrong[status_line] = wrong.get(status_line, 0) + 1
            connection.began = now
            connection.sock.send(next(requests))
    took = time.perf_counter() - began
    seconds.sort()
    result: dict[str, Any] = (
        {f"p{share}": seconds[min(len(seconds) - 1, len(seconds) * share // 100)] for share in (50, 99)} if seconds else {}
    )
    result |= {"requests": len(seconds), "per_second": len(seconds) / took, "mean_bytes": size / max(1, len(seconds))}
    return result | {"wrong": wrong, "values": last.count(b'"describedObject"')}


def receive_answer(connection: Connection) -> bytes | None:
    """The complete answer once it has arrived."""
    while True:
        try:
            piece = connection.sock.recv(65536)
        except ssl.SSLWantReadError:
            break
        if not piece:
            raise ConnectionError("the server closed the connection")
        connection.buffer += piece
    if connection.expected_bytes < 0:
        end = connection.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(connection.buffer[:end]).lower()
        connection.expected_bytes = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    if len(connection.buffer) < connection.expected_bytes:
        return None
    answer = bytes(connection.buffer)
    connection.buffer.clear()
    connection.expected_bytes = -1
    return answer


if __name__ == "__main__":
    print(json.dumps(send_requests(json.loads(Path(sys.argv[1]).read_text()))))
