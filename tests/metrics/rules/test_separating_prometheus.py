"""Checks the proofs with a real Prometheus: one query for all objects gives the same values as one query for each object."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.metrics.real_prometheus import binary, real_prometheus, store
from tests.metrics.rules.making import POD, a_rule
from tests.metrics.rules.promql_cases import OBJECTS, draw, page

from gpuscaler.metrics.rules.separating import prove

pytestmark = pytest.mark.looptime(False)  # real processes take real time

CASES = 250
#: Number of stored scrapes, a second apart: more than the longest range of a query.
SCRAPES = 8

Answer = Counter[tuple[tuple[tuple[str, str], ...], str]]


class PrometheusQueries:
    def __init__(self, session: aiohttp.ClientSession, url: str, at: float) -> None:
        self.session, self.url, self.at = session, url, at

    async def __call__(self, query: str) -> list[dict[str, Any]] | None:
        """The samples, or None if Prometheus rejects the query."""
        async with self.session.post(f"{self.url}/api/v1/query", data={"query": query, "time": str(self.at)}) as reply:
            body = await reply.json()
        return body["data"]["result"] if body["status"] == "success" and body["data"]["resultType"] == "vector" else None


def samples_of(samples: list[dict[str, Any]], namespace: str | None, pod: str) -> Answer:
    """The samples of one object, without the labels that identify it."""
    selected = [
        sample for sample in samples if sample["metric"].get("pod") == pod and namespace in (None, sample["metric"].get("namespace"))
    ]
    return Counter(
        (
            tuple(sorted((label, value) for label, value in sample["metric"].items() if label not in ("namespace", "pod"))),
            f"{float(sample['value'][1]):.9g}",
        )
        for sample in selected
    )


async def test_one_query_for_all_objects_gives_the_same_values_as_one_query_for_each(tmp_path: Path) -> None:
    began = time.time() - SCRAPES - 1
    store(binary(), tmp_path, {began + step: page(step) for step in range(1, SCRAPES + 1)})
    seen: Counter[str] = Counter()
    async with real_prometheus(binary(), tmp_path) as prometheus, aiohttp.ClientSession() as session:
        ask = PrometheusQueries(session, prometheus.url, began + SCRAPES + 0.5)
        for number in range(CASES):
            seen[await compare(ask, draw(1, number))] += 1
    assert seen["cluster"] > CASES // 10, seen
    assert seen["namespace"] > 5, seen
    assert seen["names"] > CASES // 10, seen


async def compare(ask: PrometheusQueries, template: str) -> str:
    """The proven breadth of the template, or ``refused`` if Prometheus rejects the query for an object; asserts that it is correct."""
    rule = a_rule(template)
    proof = prove(rule, "x", POD)
    if proof.breadth == "names":
        return "names"
    alone = {}
    for namespace, pod in OBJECTS:
        samples = await ask(rule.query("x", resource=POD, namespace=namespace, names=[pod]))
        if samples is None:
            return "refused"
        alone[namespace, pod] = samples_of(samples, None, pod)
    for space in {"": ""} if proof.breadth == "cluster" else dict.fromkeys(namespace for namespace, _ in OBJECTS):
        query = rule.wide_query("x", resource=POD, namespace=space)
        samples = await ask(query)
        assert samples is not None, query
        for (namespace, pod), expected in alone.items():
            if space in ("", namespace):
                assert samples_of(samples, None if space else namespace, pod) == expected, (query, namespace, pod)
    return proof.breadth
