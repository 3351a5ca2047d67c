"""The proxy subresource of pods."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from tests.embedded.asking import PODS, Asker

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.objects.proxying import to_local
from gpuscaler.embedded.apiserver.wire.replies import json_reply
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.transport import Answer, Request

POD = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "web:1"}]}}


async def played() -> tuple[ApiServer, Asker]:
    api = ApiServer(lambda: 0.0)
    ask = Asker(MemoryTransport(api))
    await ask.ok("POST", PODS, POD)
    return api, ask


async def echo(request: Request) -> Answer:
    return json_reply({"path": request.path, "query": dict(request.query)}, status=418)


@pytest.mark.parametrize("name", ["web:8080", "http:web:8080", "https:web:8080"])
async def test_who_is_registered_for_a_port_of_a_pod_answers_with_status_path_and_query(name: str) -> None:
    api, ask = await played()
    api.proxies.register("default", "web", 8080, echo)

    assert await ask("GET", f"{PODS}/{name}/proxy/a/b%20c", q="1") == (418, {"path": "/a/b%20c", "query": {"q": "1"}})
    assert (await ask("GET", f"{PODS}/{name}/proxy"))[1]["path"] == "/"


async def test_a_pod_that_is_not_there_is_not_found_and_a_port_that_nobody_has_is_refused() -> None:
    api, ask = await played()
    api.proxies.register("default", "gone", 8080, echo)

    assert (await ask("GET", f"{PODS}/gone:8080/proxy/"))[1]["reason"] == "NotFound"
    status, refused = await ask("GET", f"{PODS}/web:8080/proxy/")
    assert (status, refused["reason"]) == (503, "ServiceUnavailable")


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.path} {self.headers.get('authorization')}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listening() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.looptime(False)
async def test_a_server_of_this_machine_plays_a_pod_and_sees_no_credentials() -> None:
    api, ask = await played()
    with listening() as url:
        api.proxies.register("default", "web", 80, to_local(url))
        answer = await ask("GET", f"{PODS}/web/proxy/x", headers={"authorization": "Bearer secret-token"}, y="2")
    await asyncio.sleep(0)

    assert answer == (200, "/x?y=2 None")
    status, refused = await ask("GET", f"{PODS}/web/proxy/x")
    assert (status, refused["reason"]) == (503, "ServiceUnavailable")
