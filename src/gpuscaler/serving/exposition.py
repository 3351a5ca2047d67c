"""Metrics in the formats of Prometheus."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def routes(registry: CollectorRegistry) -> list[web.RouteDef]:
    """Return the route ``/metrics``, in the requested format: OpenMetrics or Prometheus' text format."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content})

    return [web.get("/metrics", metrics)]
