"""Objects with a field that is nested more deeply than the decoder follows, as anyone who may write one can make them."""

import json
import sys

import pytest
from tests.kube.scripted import NO_STREAMS, SILENCE, Json, Reply, Scripted, bookmark, pod, reflect
from tests.kube.test_picture import Servers, picture_of, until_synced

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import header_of
from gpuscaler.kube.resources import PODS, WATCHED
from gpuscaler.kube.snapshot import snapshot
from gpuscaler.model.decoding.depth import without_depths

DEPTH = 5 * sys.getrecursionlimit()
MARK = '"DEEP"'


def deep(name: str, *, node: str = "") -> bytes:
    """A pod with managed fields of ``DEPTH`` levels."""
    item: Json = pod(name, node=node)
    item["metadata"]["managedFields"] = [{"manager": "m", "fieldsV1": "DEEP"}]
    item["metadata"]["annotations"] = {"text": 'a "quoted\\" {[,'}
    return json.dumps(item, separators=(",", ":")).replace(MARK, '{"f:a":[' * DEPTH + "]}" * DEPTH).encode()


def pages_with(*items: bytes) -> bytes:
    return b'{"kind":"PodList","items":[' + b",\n ".join(items) + b'],"apiVersion":"v1","metadata":{"resourceVersion":"100"}}'


def plain(name: str) -> bytes:
    return json.dumps(pod(name)).encode()


@pytest.mark.parametrize("items", [[deep("a"), plain("b")], [plain("a"), deep("b", node="n1")], [deep("a", node="n1"), deep("b")]])
async def test_pages_with_a_deep_object_list_all_objects(items: list[bytes]) -> None:
    reflected, reflector = await reflect(Scripted(NO_STREAMS, Reply([pages_with(*items)])))

    assert reflector.synced
    assert reflected.names == ["a", "b"]
    assert reflected.aside == {}


async def test_a_list_of_a_client_has_deep_objects_without_their_depths() -> None:
    listed = await Client(Scripted(Reply([pages_with(deep("a"), plain("b"))]))).list_all(PODS)

    assert [json.loads(item)["metadata"]["name"] for item in listed] == ["a", "b"]
    assert json.loads(listed[0])["metadata"]["annotations"] == {"text": 'a "quoted\\" {[,'}
    assert listed[1] == plain("b")


async def test_the_picture_of_a_watched_cluster_has_deep_objects() -> None:
    stream = b"".join(b'{"type":"ADDED","object":' + item + b"}\n" for item in (deep("a"), plain("b"), deep("c", node="n1")))
    async with picture_of(pods=Scripted(Reply([stream + bookmark(100, end=True), SILENCE]))) as picture:
        await until_synced(picture)
        cluster = (await picture.take()).cluster

    assert sorted(cluster.pods) == ["team/a", "team/b", "team/c"]
    assert cluster.pods["team/c"].node_name == "n1"
    assert cluster.set_aside == ()


async def test_a_snapshot_has_deep_objects() -> None:
    empty = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
    bodies = {resource: pages_with(deep("a")) if resource == PODS else empty for resource in WATCHED}
    servers = Servers({resource: Scripted(Reply([body])) for resource, body in bodies.items()})

    assert list((await snapshot(Client(servers))).cluster.pods) == ["team/a"]


def test_the_header_of_a_deep_object_is_read() -> None:
    assert header_of(deep("a")).name == "a"


@pytest.mark.parametrize("text", ['{"a":"[[[","b":[1,{"c":[]}]}', "[]", '"{"', "[" * 500, "]" * 500, '{"a":"\\"[' + "[" * 200])
def test_what_is_not_deep_or_not_json_is_kept(text: str) -> None:
    assert without_depths(text.encode()) == text.encode()


async def test_deep_text_that_is_no_list_is_an_error() -> None:
    reflected, reflector = await reflect(Scripted(NO_STREAMS, Reply([b"[" * 100_000])), seconds=2)

    assert "are not a List in JSON" in reflector.trouble
    assert reflected.names == []
