"""The classification of requests, without any names in it."""

import pytest

from gpuscaler.kube.requests import BUCKETS, Latency, RequestKind, request_kind
from gpuscaler.kube.transport import Request

CASES = [
    ("GET", "/api/v1/pods", "list pods"),
    ("GET", "/api/v1/namespaces/ns/pods", "list pods"),
    ("GET", "/api/v1/namespaces/ns/pods/p", "get pods"),
    ("GET", "/api/v1/nodes/n", "get nodes"),
    ("GET", "/api/v1/namespaces", "list namespaces"),
    ("GET", "/api/v1/namespaces/ns", "get namespaces"),
    ("PUT", "/api/v1/namespaces/ns/status", "update namespaces/status"),
    ("POST", "/api/v1/namespaces/ns/pods/p/eviction", "create pods/eviction"),
    ("PATCH", "/api/v1/nodes/n/status", "patch nodes/status"),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "update leases.coordination.k8s.io"),
    ("DELETE", "/api/v1/nodes/n", "delete nodes"),
    ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection pods"),
    ("GET", "/version", "get /version"),
    ("GET", "/apis/apps/v1", "get /apis"),
    ("GET", "/", "get /"),
]


@pytest.mark.parametrize(("method", "path", "expected"), CASES)
def test_a_request_is_classified_by_verb_and_resource(method: str, path: str, expected: str) -> None:
    assert request_kind(Request(method, path)) == RequestKind(*expected.split(" "))


@pytest.mark.parametrize(("value", "expected"), [("true", "watch"), ("1", "watch"), ("false", "list"), ("", "list")])
def test_a_watch_is_distinguished_from_a_list(value: str, expected: str) -> None:
    assert request_kind(Request("GET", "/api/v1/pods", {"watch": value})).verb == expected


def test_latencies_fall_into_buckets() -> None:
    latency = Latency()
    for seconds in (0.001, 0.005, 0.006, 61.0):
        latency.add(seconds)
    assert latency.counts == [2, 1, *[0] * (len(BUCKETS) - 2), 1]
    assert latency.total == pytest.approx(61.012)
