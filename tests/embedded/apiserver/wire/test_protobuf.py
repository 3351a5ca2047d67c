"""Bodies in Kubernetes' protobuf. The messages here are written field by field, as the encoding says."""

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.embedded.asking import CONFIG_MAPS, PODS, asker, config_map, pod

from gpuscaler.embedded.apiserver.wire.protobuf import MEDIA_TYPE, ProtobufError, decode

Field = tuple[int, "int | str | bytes | float | list[Any]"]


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def message(*fields: Field) -> bytes:
    """Fields by number: numbers, texts, bytes, doubles, and messages as lists of fields."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += _number(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += _number(number << 3) + _number(value)
        else:
            inner = message(*value) if isinstance(value, list) else value.encode() if isinstance(value, str) else value
            out += _number(number << 3 | 2) + _number(len(inner)) + inner
    return out


def wrapped(version: str, kind: str, *fields: Field) -> bytes:
    return b"k8s\0" + message((1, [(1, version), (2, kind)]), (2, message(*fields)), (3, ""), (4, ""))


def test_a_config_map_is_decoded_from_protobuf_without_unset_fields() -> None:
    metadata: list[Field] = [(1, "c"), (2, ""), (3, ""), (8, []), (11, [(1, "app"), (2, "web")]), (11, [(1, "empty"), (2, "")])]
    body = wrapped("v1", "ConfigMap", (1, metadata), (2, [(1, "a"), (2, "b")]), (3, [(1, "raw"), (2, b"\x00\x01")]))
    assert decode(body) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "labels": {"app": "web", "empty": ""}},
        "data": {"a": "b"},
        "binaryData": {"raw": "AAE="},
    }


def test_quantities_times_ports_and_nested_structures_are_decoded_as_in_json() -> None:
    resources: list[Field] = [(1, [(1, "nvidia.com/gpu"), (2, [(1, "8")])])]
    probe: list[Field] = [(1, [(2, [(1, "/ok"), (2, [(1, 1), (2, 0), (3, "http")])])])]
    container: list[Field] = [(1, "c"), (8, resources), (10, probe)]
    volume: list[Field] = [(1, "v"), (2, [(2, [])])]
    spec: list[Field] = [(1, volume), (2, container), (4, 0), (12, 1)]
    body = wrapped("v1", "Pod", (1, [(1, "p"), (8, [(1, 1_767_225_600), (2, 0)])]), (2, spec))
    pod = decode(body)
    assert pod["metadata"] == {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert pod["spec"]["containers"][0]["livenessProbe"] == {"httpGet": {"path": "/ok", "port": "http"}}
    assert pod["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 0
    assert pod["spec"]["hostPID"] is True


def test_negative_protobuf_numbers_keep_their_sign() -> None:
    assert decode(wrapped("scheduling.k8s.io/v1", "PriorityClass", (1, [(1, "low")]), (2, -10)))["value"] == -10


def test_delete_options_of_any_api_group_are_decoded() -> None:
    body = wrapped("apps/v1", "DeleteOptions", (1, 0), (2, [(1, "u")]), (5, "All"))
    assert decode(body) == {
        "apiVersion": "apps/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "dryRun": ["All"],
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "four bytes"),
        (b"k8s\0\x80", "does not end"),
        (b"k8s\0\x0a\x7f", "end within a field"),
        (b"k8s\0\x0b", "wire type 3"),
        (wrapped("v1", "Cat"), 'no kind "Cat" of v1'),
        (wrapped("v1", "ConfigMap", (1, [(8, [(1, 1 << 60)])])), "is not a time"),
        (wrapped("v1", "Pod", (1, [(7, "x")])), "expected a number"),
    ],
)
def test_the_error_describes_a_damaged_or_unknown_protobuf_body(body: bytes, words: str) -> None:
    with pytest.raises(ProtobufError, match=words):
        decode(body)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_raise_only_the_documented_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(b"k8s\0" + message((1, [(1, "v1"), (2, "Pod")]), (2, body)))


async def test_an_object_and_an_eviction_can_be_sent_as_protobuf() -> None:
    ask = asker()
    body = wrapped("v1", "ConfigMap", (1, [(1, "c")]), (2, [(1, "a"), (2, "b")]))
    assert (await ask.ok("POST", CONFIG_MAPS, body, media=MEDIA_TYPE))["data"] == {"a": "b"}
    await ask.ok("POST", PODS, pod())
    eviction = wrapped("policy/v1", "Eviction", (1, [(1, "p"), (3, "default")]), (2, [(1, 0)]))
    await ask.ok("POST", f"{PODS}/p/eviction", eviction, media=MEDIA_TYPE)
    assert (await ask("GET", f"{PODS}/p"))[0] == 404
    status, answer = await ask("POST", CONFIG_MAPS, b"k8s\0\x80", media=MEDIA_TYPE)
    assert (status, answer["reason"]) == (400, "BadRequest")
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c", wrapped("v1", "DeleteOptions", (4, "Background")), media=MEDIA_TYPE)
    assert (await ask("POST", CONFIG_MAPS, config_map()))[0] == 201
