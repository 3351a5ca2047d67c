"""Metrics as Prometheus reads them."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def routes(registry: CollectorRegistry) -> list[web.RouteDef]:
    """``/metrics``, in the format that is asked for: OpenMetrics or Prometheus' own text."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content})

    return [web.get("/metrics", metrics)]
