"""Queries the metrics APIs for the metrics of a HorizontalPodAutoscaler, through the API server like any client.

Sources of paths and words: ``k8s.io/metrics/pkg/client`` and ``k8s.io/kubernetes/pkg/controller/podautoscaler/metrics``, Kubernetes 1.35.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from gpuscaler.embedded.apiserver.kinds import BY_NAME
from gpuscaler.embedded.apiserver.kubectl.discovery import AGGREGATED
from gpuscaler.embedded.apiserver.kubectl.reviews import AUTOSCALERS
from gpuscaler.embedded.workloads.steps import seconds_of
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.transport import Request
from gpuscaler.model.durations import parse_duration
from gpuscaler.model.quantities import parse_milli
from gpuscaler.simulation.horizontal.specs import (
    Autoscaler,
    Metric,
    MetricAnswer,
    MetricSelector,
    ObjectSample,
    PodSamples,
    Sample,
    SeriesSamples,
    Unavailable,
)

_CUSTOM, _EXTERNAL, _RESOURCE = "custom.metrics.k8s.io", "external.metrics.k8s.io", "metrics.k8s.io"
#: The supported versions of custom metrics.
_VERSIONS: Final = ("v1beta2", "v1beta1")
#: Every client here may do everything; servers beside the API server get the user's name.
_HEADERS: Final = {"accept": "application/json", "impersonate-user": AUTOSCALERS}
#: The window in seconds of a sample that does not state one.
_WINDOW: Final = 60.0

Json = Mapping[str, Any]


class _UnansweredError(Exception):
    """There was no answer; the text is the metrics client's."""


class MetricsClient:
    """Reads the metrics of autoscalers through ``client``. An error is returned as an answer, too."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def answer(self, autoscaler: Autoscaler, metric: Metric, pods: str) -> MetricAnswer:
        """The answer for ``metric``; ``pods`` is the selector of the target's pods as text."""
        api = {"Resource": "resource", "ContainerResource": "resource", "External": "external"}.get(metric.type, "custom")
        try:
            match metric.type:
                case "Resource" | "ContainerResource":
                    return await self._resource(autoscaler.namespace, metric, pods)
                case "Pods":
                    return await self._pods(autoscaler.namespace, metric, pods)
                case "Object":
                    return await self._object(autoscaler.namespace, metric)
                case _:
                    return await self._external(autoscaler.namespace, metric)
        except _UnansweredError as error:
            return Unavailable(f"unable to fetch metrics from {api} metrics API: {error}")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            return Unavailable(f"unable to fetch metrics from {api} metrics API: saw an answer that cannot be read: {error}")

    async def _resource(self, namespace: str, metric: Metric, pods: str) -> MetricAnswer:
        path = f"/apis/{_RESOURCE}/v1beta1/namespaces/{namespace}/pods"
        samples = {}
        for item in await self._items(path, {"labelSelector": pods}, f"pods.{_RESOURCE}"):
            uses = [container["usage"] for container in item["containers"] if metric.container in ("", container["name"])]
            if uses and all(metric.name in use for use in uses):
                amount = sum(parse_milli(use[metric.name]) for use in uses)
                window = parse_duration(item["window"]) if item.get("window") else _WINDOW
                samples[item["metadata"]["name"]] = Sample(amount, seconds_of(item["timestamp"]), window)
        return PodSamples(samples) if samples else Unavailable("no metrics returned from resource metrics API")

    async def _pods(self, namespace: str, metric: Metric, pods: str) -> MetricAnswer:
        query = {"labelSelector": pods, **_selector_query(metric.selector)}
        path = f"/apis/{_CUSTOM}/{await self._version()}/namespaces/{namespace}/pods/*/{quote(metric.name, safe='')}"
        items = await self._items(path, query, f"pods.{_CUSTOM} *")
        samples = {item["describedObject"]["name"]: _sample(item) for item in items}
        return PodSamples(samples) if samples else Unavailable("no metrics returned from custom metrics API")

    async def _object(self, namespace: str, metric: Metric) -> MetricAnswer:
        described = metric.described
        kind = None if described is None else BY_NAME.get((described.api_version or "v1", described.kind))
        if described is None or kind is None:
            raise _UnansweredError(f'no matches for kind "{described.kind if described else ""}"')
        name, value = quote(described.name, safe=""), quote(metric.name, safe="")
        if kind.plural == "namespaces":
            rest = f"namespaces/{name}/metrics/{value}"
        else:
            rest = f"{f'namespaces/{namespace}/' if kind.namespaced else ''}{kind.qualified}/{name}/{value}"
        path = f"/apis/{_CUSTOM}/{await self._version()}/{rest}"
        items = await self._items(path, _selector_query(metric.selector), f"{kind.plural}.{_CUSTOM} {described.name}")
        milli = next((parse_milli(item["value"]) for item in items), None)
        return Unavailable("no metrics returned from custom metrics API") if milli is None else ObjectSample(milli)

    async def _external(self, namespace: str, metric: Metric) -> MetricAnswer:
        path = f"/apis/{_EXTERNAL}/v1beta1/namespaces/{namespace}/{quote(metric.name, safe='')}"
        selector = _requirement_text(metric.selector)
        items = await self._items(path, {"labelSelector": selector} if selector else {}, f"{metric.name}.{_EXTERNAL}")
        values = tuple(parse_milli(item["value"]) for item in items)
        return SeriesSamples(values) if values else Unavailable("no metrics returned from external metrics API")

    async def _version(self) -> str:
        """The version of custom metrics to query. Raises :class:`_UnansweredError`."""
        groups = await self._get("/apis", {}, _CUSTOM, {"accept": AGGREGATED})
        versions = next((group["versions"] for group in groups["items"] if group["metadata"]["name"] == _CUSTOM), ())
        # Versions whose server does not answer are stale, and ignored.
        served = [version["version"] for version in versions if version["freshness"] == "Current"]
        version = next((candidate for candidate in _VERSIONS if candidate in served), "")
        if not version:
            raise _UnansweredError("no known available metric versions found")
        return version

    async def _items(self, path: str, query: Mapping[str, str], what: str) -> Iterable[Json]:
        items: Iterable[Json] = (await self._get(path, query, what)).get("items") or ()
        return items

    async def _get(self, path: str, query: Mapping[str, str], what: str, headers: Mapping[str, str] = _HEADERS) -> Json:
        try:
            async with self._client.exchange(Request("GET", path, query, headers)) as answer:
                content: Json = msgspec.json.decode(b"".join([piece async for piece in answer.pieces]))
        except ApiError as error:
            raise _UnansweredError(_error_message(error, what)) from error
        except Unreachable as error:
            raise _UnansweredError(str(error)) from error
        return content


def _error_message(error: ApiError, what: str) -> str:
    """The message that a client makes from an answer that is no Status."""
    if error.reason:
        return error.message
    words = {503: "the server is currently unable to handle the request", 404: "the server could not find the requested resource"}
    return f"{words[error.status]} (get {what})" if error.status in words else error.message


def _sample(item: Json) -> Sample:
    seconds = item.get("windowSeconds", item.get("window"))
    return Sample(parse_milli(item["value"]), seconds_of(item.get("timestamp")), _WINDOW if seconds is None else float(seconds))


def _selector_query(selector: MetricSelector | None) -> dict[str, str]:
    text = _requirement_text(selector)
    return {"metricLabelSelector": text} if text else {}


def _requirement_text(selector: MetricSelector | None) -> str:
    """A selector in the form of a query."""
    if selector is None:
        return ""
    terms = [f"{key}={value}" for key, value in selector.labels]
    for requirement in selector.expressions:
        some = f"({','.join(requirement.values)})"
        terms.append(
            {"In": f"{requirement.key} in {some}", "NotIn": f"{requirement.key} notin {some}", "Exists": requirement.key}.get(
                requirement.operator, f"!{requirement.key}"
            )
        )
    return ",".join(terms)
