"""The proxy subresource of pods."""

import pytest
from tests.embedded.asking import PODS, Asker

from gpuscaler.embedded.apiserver.api import ApiServer
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
async def test_the_handler_registered_for_a_pods_port_answers_with_status_path_and_query(name: str) -> None:
    api, ask = await played()
    api.proxies.register("default", "web", 8080, echo)

    assert await ask("GET", f"{PODS}/{name}/proxy/a/b%20c", q="1") == (418, {"path": "/a/b%20c", "query": {"q": "1"}})
    assert (await ask("GET", f"{PODS}/{name}/proxy"))[1]["path"] == "/"


async def test_a_missing_pod_is_not_found_and_an_unregistered_port_is_refused() -> None:
    api, ask = await played()
    api.proxies.register("default", "gone", 8080, echo)

    assert (await ask("GET", f"{PODS}/gone:8080/proxy/"))[1]["reason"] == "NotFound"
    status, refused = await ask("GET", f"{PODS}/web:8080/proxy/")
    assert (status, refused["reason"]) == (503, "ServiceUnavailable")
