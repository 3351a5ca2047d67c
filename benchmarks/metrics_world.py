"""The metrics API's dependencies, in a separate process: an API server with pods, and a stand-in for Prometheus.

The first argument is JSON: ``pods`` of each of ``namespaces``, ``metrics``, and the PEM of an authority, ``ca``. Lines of JSON on standard
input: ``{"delay": SECONDS}`` delays Prometheus, ``{"forget": true}`` resets the counters; each is answered with the requests since then.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.transport import Answer, Request

_REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
APPS = 10


@dataclass
class World:
    namespaces: int
    pods: int
    metrics: tuple[str, ...]
    delay: float = 0.0
    request_counts: dict[str, int] = field(default_factory=dict)
    longest_query: int = 0
    _vectors: dict[tuple[str, bool], bytes] = field(default_factory=dict)

    def objects(self) -> list[dict[str, Any]]:
        return [self._pod(f"team-{space}", f"model-{number}", number) for space in range(self.namespaces) for number in range(self.pods)]

    def _pod(self, namespace: str, name: str, number: int) -> dict[str, Any]:
        """A pod about as large as those of a model server."""
        container = {
            "name": "main",
            "image": "registry.example/llm/server:v1",
            "env": [{"name": f"SETTING_{setting}", "value": "a value of some length"} for setting in range(20)],
            "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app": f"app-{number * APPS // self.pods}", "tier": "serving", "pod-template-hash": "5d4f8c7b9"},
            },
            "spec": {"containers": [container], "nodeName": f"node-{number}"},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }

    def vector(self, query: str) -> bytes:
        """Every pod's number, or the time of its sample, as of now."""
        timestamps = "timestamp(" in query
        name = next(name for name in self.metrics if name in query)
        template = self._vectors.get((name, timestamps))
        if template is None:
            template = self._vectors[name, timestamps] = self._vector(name, timestamps=timestamps)
        now = time.time()
        # Sampled within the last 15 seconds, as with a scrape interval of 15 s.
        return template.replace(b"@NOW", f"{now:.3f}".encode()).replace(b"@AT", f"{now - 7.5:.3f}".encode())

    def _vector(self, name: str, *, timestamps: bool) -> bytes:
        result = []
        for space in range(self.namespaces):
            for number in range(self.pods):
                labels = {"namespace_name": f"team-{space}", "pod_name": f"model-{number}"}
                if not timestamps:
                    labels |= {
                        "__name__": name,
                        "uuid": f"GPU-{space}-{number}",
                        "node_name": f"node-{number}",
                        "instance": "10.0.0.1:9400",
                    }
                result.append({"metric": labels, "value": ["@NOW", "@AT" if timestamps else str(number % 100)]})
        text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}, separators=(",", ":"))
        return text.replace('"@NOW"', "@NOW").encode()

    async def prometheus(self, request: web.Request) -> web.Response:
        form = dict(request.query) if request.method == "GET" else dict(await request.post())
        query = str(form.get("query", form.get("match[]", "")))
        self.request_counts[request.path] = self.request_counts.get(request.path, 0) + 1
        self.longest_query = max(self.longest_query, len(query))
        await asyncio.sleep(self.delay)
        if request.path == "/api/v1/query":
            return web.Response(body=self.vector(query), content_type="application/json")
        if request.path == "/api/v1/labels":
            data: list[str] = ["__name__", "instance", "namespace_name", "node_name", "pod_name", "uuid"]
        else:
            data = list(self.metrics)
        return web.json_response({"status": "success", "data": data})


def authentication_config(ca: str) -> dict[str, Any]:
    """The front proxies' configuration that an API server publishes."""
    data = {
        "client-ca-file": ca,
        "requestheader-client-ca-file": ca,
        "requestheader-allowed-names": '["proxy"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    metadata = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class PermissiveApi:
    """An API server that allows everything to all clients."""

    def __init__(self, api: ApiServer, world: World) -> None:
        self._api, self._world = api, world

    async def forwarded(self, _request: Request) -> None:
        """Forwarding to a pod's port is not used."""

    @asynccontextmanager
    async def handle(self, request: Request) -> AsyncIterator[Answer]:
        listed = request.path.endswith("/pods") and "watch" not in request.query
        kind = "review" if request.path == _REVIEW else "list" if listed else "other"
        self._world.request_counts[kind] = self._world.request_counts.get(kind, 0) + 1
        if kind != "review":
            async with self._api.handle(request) as answer:
                yield answer
            return

        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":true}}'

        yield Answer(201, {"content-type": "application/json"}, pieces())


async def run(arguments: dict[str, Any]) -> None:
    world = World(arguments["namespaces"], arguments["pods"], tuple(arguments["metrics"]))
    api = ApiServer(time.time)
    api.load([authentication_config(arguments["ca"]), *world.objects()])
    serving = await serve(cast("ApiServer", PermissiveApi(api, world)))
    app = web.Application()
    app.router.add_route("*", "/api/v1/{path:.*}", world.prometheus)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"api": serving.url, "prometheus": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        world.delay = command.get("delay", world.delay)
        print(json.dumps({"request_counts": world.request_counts, "longest_query": world.longest_query}), flush=True)
        if command.get("forget"):
            world.request_counts, world.longest_query = {}, 0


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
