"""Objects with a field that is nested more deeply than the decoder follows, as anyone who may write one can make them."""

import json
import sys

import pytest
from tests.kube.scripted import NO_STREAMS, SILENCE, Json, Reply, Scripted, bookmark, listed, pod, reflect
from tests.kube.test_picture import Servers, picture_of, until_synced

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import header_of
from gpuscaler.kube.resources import PODS, WATCHED
from gpuscaler.kube.snapshot import snapshot
from gpuscaler.model.decoding.depth import without_depths

DEPTH = 5 * sys.getrecursionlimit()
MARK = '"DEEP"'
REASON = "saw values nested too deeply, expected a Kubernetes object"


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
async def test_a_deep_object_of_a_page_is_set_aside_and_the_others_are_read(items: list[bytes]) -> None:
    reflected, reflector = await reflect(Scripted(NO_STREAMS, Reply([pages_with(*items)])))
    hidden = {f"Pod team/{name}" for name, item in zip("ab", items, strict=True) if b"fieldsV1" in item}

    assert reflector.synced
    assert {f"Pod team/{name}" for name in reflected.names} == {"Pod team/a", "Pod team/b"} - hidden
    assert reflected.aside == dict.fromkeys(hidden, REASON)


async def test_a_list_of_a_client_has_deep_objects_without_their_depths() -> None:
    items = await Client(Scripted(Reply([pages_with(deep("a"), plain("b"))]))).list_all(PODS)

    assert [json.loads(item)["metadata"]["name"] for item in items] == ["a", "b"]
    assert json.loads(items[0])["metadata"]["annotations"] == {"text": 'a "quoted\\" {[,'}
    assert items[1] == plain("b")


async def test_an_object_that_becomes_deep_keeps_its_record() -> None:
    deeper = b'{"type":"MODIFIED","object":' + deep("a") + b"}\n"
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a"), pod("b")), deeper, SILENCE])))

    assert reflected.names == ["a", "b"]
    assert reflected.aside == {"Pod team/a": REASON}


async def test_a_picture_names_deep_objects_with_their_nodes() -> None:
    stream = b"".join(b'{"type":"ADDED","object":' + item + b"}\n" for item in (deep("a"), plain("b"), deep("c", node="n1")))
    async with picture_of(pods=Scripted(Reply([stream + bookmark(100, end=True), SILENCE]))) as picture:
        await until_synced(picture)
        cluster = (await picture.take()).cluster

    assert sorted(cluster.pods) == ["team/b"]
    assert sorted((entry.object, entry.node) for entry in cluster.set_aside) == [("Pod team/a", ""), ("Pod team/c", "n1")]


async def test_a_snapshot_names_deep_objects() -> None:
    empty = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
    bodies = {resource: pages_with(deep("a"), plain("b")) if resource == PODS else empty for resource in WATCHED}
    servers = Servers({resource: Scripted(Reply([body])) for resource, body in bodies.items()})

    cluster = (await snapshot(Client(servers))).cluster

    assert list(cluster.pods) == ["team/b"]
    assert [entry.object for entry in cluster.set_aside] == ["Pod team/a"]


def test_the_header_of_a_deep_object_is_read() -> None:
    assert header_of(deep("a")).name == "a"


@pytest.mark.parametrize("text", ['{"a":"[[[","b":[1,{"c":[]}]}', "[]", '"{"', "[" * 500, "]" * 500, '{"a":"\\"[' + "[" * 200])
def test_what_is_not_deep_or_not_json_is_kept(text: str) -> None:
    assert without_depths(text.encode()) == text.encode()


async def test_deep_text_that_is_no_list_is_an_error() -> None:
    reflected, reflector = await reflect(Scripted(NO_STREAMS, Reply([b"[" * 100_000])), seconds=2)

    assert "are not a List in JSON" in reflector.trouble
    assert reflected.names == []
