"""A source as in production, with a Prometheus in memory and the embedded API server, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from tests import objects
from tests.metrics.prometheus_double import EPOCH, PrometheusDouble

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.metrics.rules.reading import RuleSet, read_rules
from gpuscaler.metrics.sources.discovering import Discoverer, RelistTimes
from gpuscaler.metrics.sources.evaluating import Evaluator, Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.source import PrometheusSource

#: Rules of Alibaba Cloud's write-up (2018), with a rule whose query cannot cover all objects at once, and an external one.
RULES = """
rules:
- seriesQuery: '{__name__=~"^nvidia_gpu_.*",uuid!=""}'
  resources:
    overrides:
      node_name: {resource: node}
      pod_name: {resource: pod}
      namespace_name: {resource: namespace}
  name: {matches: ^nvidia_gpu_(.*)$, as: "${1}_current"}
  metricsQuery: <<.Series>>{<<.LabelMatchers>>}
- seriesQuery: 'http_requests{pod!=""}'
  resources: {template: <<.Resource>>}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: 'odd{pod!=""}'
  resources: {template: <<.Resource>>}
  metricsQuery: 'sum(<<.Series>>{pod=~"<<index .LabelValuesByName "pod">>"}) by (<<.GroupBy>>)'
externalRules:
- seriesQuery: 'queue_length'
  resources: {overrides: {namespace: {resource: namespace}}}
"""


@dataclass
class Serving:
    prometheus: PrometheusDouble
    source: PrometheusSource
    client: Client
    api: ApiServer


def pod(name: str, namespace: str = "ml", **labels: str) -> dict[str, Any]:
    return objects.pod(name, labels=labels, metadata={"namespace": namespace})


@asynccontextmanager
async def serving(
    *objects: Mapping[str, Any],
    rules: str | RuleSet = RULES,
    prometheus: PrometheusDouble | None = None,
    relist: float = 60.0,
    **timing: float,
) -> AsyncIterator[Serving]:
    """A running source without requests yet; the caller lets time pass."""
    clock = asyncio.get_running_loop().time
    api = ApiServer(lambda: EPOCH + clock())
    api.load(objects)
    client = Client(MemoryTransport(api))
    prometheus = prometheus or PrometheusDouble()
    source = PrometheusSource(
        Discoverer(
            prometheus,
            read_rules(rules) if isinstance(rules, str) else rules,
            wall=lambda: EPOCH + clock(),
            looks=RelistTimes(interval=relist, max_age=600),
        ),
        Evaluator(prometheus, clock=clock, timing=Timing(**timing)),
        Objects(client, clock=clock, random=Random(1)),
        clock=clock,
    )
    running = asyncio.create_task(source.run())
    try:
        yield Serving(prometheus, source, client, api)
    finally:
        running.cancel()
        await asyncio.wait([running])
