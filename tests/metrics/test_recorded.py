"""Our answers compared with those of prometheus-adapter v0.12.0, recorded on a real control plane (1.35.4) with a real Prometheus.

``recorded/rules.yaml`` has the rules and ``recorded/page.txt`` the scraped page. Compared are the status of an answer, and its objects and
values or its message. If ours must differ, ``answers.json`` has the expected answer and the reason.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.metrics.building import pod
from tests.metrics.real_prometheus import PATIENCE, binary, real_prometheus, store

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.metrics.api.answering import Responder
from gpuscaler.metrics.api.documents.statuses import Failure
from gpuscaler.metrics.api.paths import parse_request as read_path
from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.metrics.sources.discovering import Discoverer, RelistTimes
from gpuscaler.metrics.sources.evaluating import Evaluator, Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.prometheus import Prometheus, access_of, server_of
from gpuscaler.metrics.sources.source import PrometheusSource

pytestmark = pytest.mark.looptime(False)  # real processes take real time

RECORDED = Path(__file__).parent / "recorded"
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "ml", "labels": {"app": "web"}},
    "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}}},
}


@asynccontextmanager
async def answering(folder: Path) -> AsyncIterator[Responder]:
    api = ApiServer(time.time)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    api.load([namespace, pod("a", app="x"), pod("b", app="x"), DEPLOYMENT])
    page = (RECORDED / "page.txt").read_text(encoding="utf-8")
    store(binary(), folder, {time.time() - seconds: page for seconds in (15, 10, 5)})
    async with real_prometheus(binary(), folder) as running:
        prometheus = Prometheus([server_of(access_of(running.url))], clock=time.monotonic, timeout=5.0)
        rules = read_rules((RECORDED / "rules.yaml").read_text(encoding="utf-8"))
        source = PrometheusSource(
            Discoverer(prometheus, rules, wall=time.time, looks=RelistTimes(interval=1.0, max_age=600)),
            Evaluator(prometheus, clock=time.monotonic, timing=Timing(period=1.0)),
            Objects(Client(MemoryTransport(api)), clock=time.monotonic, random=Random(1)),
            clock=time.monotonic,
        )
        task = asyncio.create_task(source.run())
        try:
            yield Responder(source)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await prometheus.close()


async def asked(answers: Responder, path: str) -> list[Any]:
    """Status, and objects with their values or the message, in the format of the file."""
    try:
        reply = await answers.answer(read_path("GET", path), {})  # type: ignore[arg-type]  # no header is looked at for metrics
    except Failure as failure:
        return [failure.code, failure.message]
    items = json.loads(reply.body)["items"]
    abouts = [item.get("describedObject", {}) for item in items]
    values = [item["value"] for item in items]
    return [
        reply.status,
        [[about.get("kind"), about.get("apiVersion"), about.get("name"), value] for about, value in zip(abouts, values, strict=True)],
    ]


async def test_every_recorded_request_is_answered_like_prometheus_adapter_or_better(tmp_path: Path) -> None:
    recorded = json.loads((RECORDED / "answers.json").read_text(encoding="utf-8"))
    async with answering(tmp_path) as answers:
        async with asyncio.timeout(PATIENCE):
            while not (answers.source.external_metrics() and len(answers.source.custom_metrics()) >= 7):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        replies = {case["path"]: await asked(answers, case["path"]) for case in recorded}
    assert replies == {case["path"]: case.get("ours", case["adapter"]) for case in recorded}
    assert all(case["why"] and case["ours"] != case["adapter"] for case in recorded if "ours" in case)
