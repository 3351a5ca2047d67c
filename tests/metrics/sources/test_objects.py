"""The objects that metrics describe, with the embedded API server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from tests import objects

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import DEPLOYMENTS, PODS
from gpuscaler.metrics.sources.objects import Index, LabelDecoder, ObjectDescription, Objects
from gpuscaler.metrics.sources.values import EVERYTHING, Unavailable
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.selector_text import parse_selector

APP = parse_selector("app=llm")


def labelled(**labels: str) -> ObjectDescription:
    return ObjectDescription(LabelSet(labels))


def pod(name: str, namespace: str = "team", **labels: str) -> dict[str, Any]:
    return objects.pod(name, labels=labels, metadata={"namespace": namespace})


@asynccontextmanager
async def watched(*objects: Mapping[str, Any]) -> AsyncIterator[tuple[Objects, Client, ApiServer]]:
    api = ApiServer(lambda: 1_780_000_000.0)
    api.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}, *objects])
    client = Client(MemoryTransport(api))
    watched = Objects(client, clock=asyncio.get_running_loop().time, random=Random(1))
    running = asyncio.create_task(watched.run())
    try:
        yield watched, client, api
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_objects_are_selected_by_namespace_and_labels_and_sorted() -> None:
    index = Index()
    index.apply({"a/p2": labelled(app="llm"), "a/p1": labelled(app="llm"), "a/q": labelled(app="x"), "b/p1": labelled(app="llm")})
    assert index.select("a", APP) == (("a", "p1"), ("a", "p2"))
    assert index.select("", APP) == (("a", "p1"), ("a", "p2"), ("b", "p1"))
    assert index.select("a", EVERYTHING) == (("a", "p1"), ("a", "p2"), ("a", "q"))
    assert index.select("nowhere", APP) == ()
    assert len(index) == 4


def test_the_same_selection_is_the_same_tuple_until_its_own_namespace_changes() -> None:
    index = Index()
    index.apply({"a/p1": labelled(app="llm"), "b/p1": labelled(app="llm")})
    here, everywhere = index.select("a", APP), index.select("", APP)
    index.apply({"a/p1": labelled(app="llm")})
    assert index.select("a", APP) is here
    assert index.select("", APP) is everywhere
    index.apply({"b/p2": labelled(app="llm")})
    assert index.select("a", APP) is here
    assert index.select("", APP) == (*everywhere, ("b", "p2"))
    index.apply({"a/p1": None})
    assert index.select("a", APP) == ()


def test_cluster_scoped_objects_are_selected_without_a_namespace() -> None:
    index = Index()
    index.apply({"n1": labelled(app="llm"), "n2": labelled()})
    assert index.select("", APP) == (("", "n1"),)
    assert index.described(("", "n1")) == labelled(app="llm")


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        (b'{"metadata":{"name":"p","namespace":"a","labels":{"app":5}}}', "a/p"),
        (b'{"metadata":{"namespace":"a"}}', ""),
        (b"{", ""),
    ],
)
def test_an_object_that_cannot_be_parsed_is_ignored(text: bytes, identity: str) -> None:
    decoded = LabelDecoder(PODS).read(text)
    assert decoded.aside is not None
    assert decoded.identity == identity


@pytest.mark.parametrize(
    ("status", "address"),
    [('{"phase":"Running","podIP":"10.0.0.1"}', "10.0.0.1"), ('{"phase":"Pending","podIP":"10.0.0.1"}', ""), ("null", ""), ("{}", "")],
)
def test_only_a_running_pod_has_an_address(status: str, address: str) -> None:
    decoded = LabelDecoder(PODS).read(f'{{"metadata":{{"name":"p","namespace":"a"}},"status":{status}}}'.encode())
    assert repr(decoded.items) == repr((ObjectDescription(LabelSet(), address),))


async def test_pods_come_from_one_watch_and_are_not_listed_again() -> None:
    async with watched() as (objects, client, _):
        await client.create(PODS, pod("p1", app="llm"), namespace="team")
        await asyncio.sleep(5)
        assert objects.synced
        await client.create(PODS, pod("p2", app="llm"), namespace="team")
        await client.merge_patch(PODS, "p1", {"metadata": {"labels": {"app": "other"}}}, namespace="team")
        await asyncio.sleep(5)
        for _ in range(100):
            assert (await objects.index(PODS)).select("team", APP) == (("team", "p2"),)
        assert objects.lists == 1


async def test_another_resource_is_watched_from_the_first_request_for_it() -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team", "labels": {"app": "llm"}},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}},
        },
    }
    async with watched(deployment) as (objects, _, _):
        await asyncio.sleep(5)
        assert objects.lists == 1
        assert (await objects.index(DEPLOYMENTS)).select("team", APP) == (("team", "web"),)
        assert (await objects.index(DEPLOYMENTS)).select("team", EVERYTHING) == (("team", "web"),)
        assert objects.lists == 2


async def test_the_error_says_why_objects_cannot_be_listed() -> None:
    async with watched() as (objects, _, api):
        api.faults.add(Fault(method="GET", path="/deployments", refusal=Failure(403, "Forbidden", "deployments.apps is forbidden")))
        with pytest.raises(Unavailable, match=r"unable to list matching resources: deployments.apps: .*grant both verbs"):
            await objects.index(DEPLOYMENTS)
