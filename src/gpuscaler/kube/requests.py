"""Classifies requests and counts their results, for the metrics of the client."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gpuscaler.kube.transport import Request

_VERBS: Mapping[str, str] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
#: Upper bounds of the latency buckets in seconds, those of client-go's request duration.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class RequestKind(NamedTuple):
    """Verb and resource of a request, in the API's terms: ``evict`` is ``create`` of ``pods/eviction``."""

    verb: str
    resource: str


def request_kind(request: Request) -> RequestKind:
    """The verb and resource of a request, derived from its method and path as in the API server.

    Names and namespaces are left out to keep the number of values small: they become labels of a metric.
    """
    return _request_kind(request.method, request.path, request.query.get("watch") in {"1", "true"})


@lru_cache(maxsize=4096)
def _request_kind(method: str, path: str, watch: bool) -> RequestKind:
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, path_parts = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, path_parts = parts[1], parts[3:]
    else:
        return RequestKind(_VERBS.get(method, "get"), f"/{parts[0]}" if parts else "/")
    # A namespace itself, its status and its finalizer are .../namespaces/NAME[/status|/finalize]; anything else is inside the namespace.
    if path_parts[0] == "namespaces" and len(path_parts) > 2 and path_parts[2] not in {"status", "finalize"}:
        path_parts = path_parts[2:]
    plural = f"{path_parts[0]}.{group}" if group else path_parts[0]
    resource = f"{plural}/{path_parts[2]}" if len(path_parts) > 2 else plural
    named = len(path_parts) > 1
    if method not in _VERBS:
        return RequestKind("watch" if watch else "get" if named else "list", resource)
    return RequestKind("deletecollection" if method == "DELETE" and not named else _VERBS[method], resource)


@dataclass(slots=True)
class Latency:
    """Seconds until the heads of answers: the count of each bucket of ``BUCKETS`` (plus one for the rest), and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class RequestMetrics:
    """Counts of requests by verb, resource and status (0: no answer), latencies, waits, retries and withheld writes."""

    requests: Counter[tuple[RequestKind, int]] = field(default_factory=Counter)
    latencies: dict[RequestKind, Latency] = field(default_factory=dict)
    retries: Counter[RequestKind] = field(default_factory=Counter)
    withheld: Counter[RequestKind] = field(default_factory=Counter)
    limited_seconds: float = 0.0

    def count_answer(self, kind: RequestKind, status: int, seconds: float) -> None:
        self.requests[kind, status] += 1
        latency = self.latencies.get(kind)
        if latency is None:
            latency = self.latencies[kind] = Latency()
        latency.add(seconds)
