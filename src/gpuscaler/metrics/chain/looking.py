"""Collects the facts about the metrics of one autoscaler, with requests to the API server only."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.portforward import NotAnsweredError, PodPort
from gpuscaler.kube.resources import PODS
from gpuscaler.metrics.autoscale.controller import AUTOSCALERS
from gpuscaler.metrics.chain.judging import ExporterState, Facts
from gpuscaler.metrics.sources.pages import PageReader
from gpuscaler.model.similar import Similar

_GROUPS = {"Pods": "custom.metrics.k8s.io", "Object": "custom.metrics.k8s.io", "External": "external.metrics.k8s.io"}
#: Start of an aggregator's message if the server did not answer.
_UNREACHABLE = "error trying to reach service"
_EXPORTERS = "app.kubernetes.io/name=gpuscaler,app.kubernetes.io/component=exporter"
_PAGE = 16 * 2**20

Json = Mapping[str, Any]
#: Gets status and body of a page of a pod, as :func:`gpuscaler.kube.portforward.get_page` does.
Pages = Callable[[PodPort, str], Awaitable[tuple[int, bytes]]]


async def collect_facts(client: Client, namespace: str, name: str, *, pages: Pages, port: int = 9400) -> tuple[Facts, ...]:
    """The facts of each metric that does not come from metrics-server. ``pages`` gets the pages of exporters, at their ``port``.

    Raises :class:`~gpuscaler.kube.errors.NotFound` if there is no such autoscaler, and other errors of the API server if it or its pods may
    not be read.
    """
    autoscaler = json.loads(await client.get(AUTOSCALERS, name, namespace=namespace))
    spec, status = autoscaler.get("spec") or {}, autoscaler.get("status") or {}
    selector = await scale_selector(client, namespace, spec.get("scaleTargetRef") or {})
    pods = await _pods(client, namespace, selector)
    exporters = await _exporters(client, frozenset(pods.values()), port, pages)
    condition: Json = next((condition for condition in status.get("conditions") or () if condition.get("type") == "ScalingActive"), {})
    scaling_active = (condition.get("status", ""), condition.get("reason", ""), condition.get("message", ""))
    return tuple(
        [
            await _facts(client, namespace, metric, selector=selector, pods=pods, exporters=exporters, condition=scaling_active)
            for metric in spec.get("metrics") or ()
            if metric.get("type") in _GROUPS
        ]
    )


async def scale_selector(client: Client, namespace: str, target: Json) -> str:
    """The label selector of the scaled object, from its scale subresource. Raises ValueError as :func:`metric_path` does."""
    group, _, version = str(target.get("apiVersion", "")).rpartition("/")
    prefix = ("apis", group, version) if group else ("api", version)
    kind, name = str(target.get("kind", "")).lower(), str(target.get("name", ""))
    scale = json.loads(await client.get_once(quoted_path(*prefix, "namespaces", namespace, f"{kind}s", name, "scale")))
    return str((scale.get("status") or {}).get("selector", ""))


async def _pods(client: Client, namespace: str, selector: str) -> dict[str, str]:
    """Running pods and their nodes."""
    listed = await client.list_all(PODS, namespace=namespace, query={"labelSelector": selector})
    pods = (json.loads(body) for body in listed)
    running = (pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running")
    return {pod["metadata"]["name"]: (pod.get("spec") or {}).get("nodeName", "") for pod in running}


async def _exporters(client: Client, nodes: frozenset[str], port: int, pages: Pages) -> dict[str, ExporterState]:
    """Our exporters by node, with the pods that those on ``nodes`` show."""
    exporters: dict[str, ExporterState] = {}
    for pod in map(json.loads, await client.list_all(PODS, query={"labelSelector": _EXPORTERS})):
        metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName", "")
        conditions = (pod.get("status") or {}).get("conditions") or ()
        ready = any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
        shown = f"{metadata['namespace']}/{metadata['name']}"
        exporters[node] = ExporterState(shown, ready)
        if ready and node in nodes:
            try:
                page = PageReader().read(await _page(pages, PodPort(namespace=metadata["namespace"], pod=metadata["name"], port=port)))
            except (ApiError, Unreachable, NotAnsweredError) as error:
                exporters[node] = ExporterState(shown, ready, None, str(error))
            else:
                named = (f"{figure.labels.get('namespace_name', '')}/{figure.labels.get('pod_name', '')}" for figure in page.figures)
                exporters[node] = ExporterState(shown, ready, frozenset(named))
    return exporters


async def _facts(
    client: Client,
    namespace: str,
    metric_spec: Json,
    *,
    selector: str,
    pods: Mapping[str, str],
    exporters: Mapping[str, ExporterState],
    condition: tuple[str, str, str],
) -> Facts:
    kind = str(metric_spec["type"])
    source = metric_spec.get(kind.lower()) or {}
    metric = str((source.get("metric") or {}).get("name", ""))
    group = _GROUPS[kind]
    service, unavailable = await _service(client, f"v1beta1.{group}")
    listed, similar, status, message, values = False, "", 0, "", {}
    if service and not unavailable:
        names = await _listed(client, group)
        listed = any(metric == name.partition("/")[2] or metric == name for name in names)
        similar = "" if listed else _similar(metric, kind, names)
        path, query = metric_path(kind, namespace, source, metric, selector)
        try:
            status, values = 200, _values(json.loads(await client.get_once(f"/apis/{group}/v1beta1{path}", query)).get("items") or ())
        except ApiError as error:
            status, message = error.status, error.message
            # The aggregator reports a server as available that it then does not trust, for example because of an expired certificate.
            unavailable = message if _UNREACHABLE in message else ""
    return Facts(
        kind=kind,
        metric=metric,
        namespace=namespace,
        pods=pods,
        values=values,
        exporters=exporters,
        service=service,
        unavailable=unavailable,
        listed=listed,
        similar=similar,
        status=status,
        message=message,
        condition=condition,
    )


async def _service(client: Client, name: str) -> tuple[str, str]:
    """The Service of an APIService, empty if there is none, and why it is not available."""
    try:
        api_service = json.loads(await client.get_once(f"/apis/apiregistration.k8s.io/v1/apiservices/{name}"))
    except NotFound:
        return "", ""
    service = (api_service.get("spec") or {}).get("service") or {}
    conditions = (api_service.get("status") or {}).get("conditions") or ()
    available: Json = next((condition for condition in conditions if condition.get("type") == "Available"), {})
    why = "" if available.get("status") == "True" else str(available.get("message") or "the APIService is not available")
    return f"Service {service.get('namespace', '')}/{service.get('name', '')}", why


def _similar(metric: str, kind: str, names: Iterable[str]) -> str:
    """The listed metric with the name that is most like ``metric``, of pods if an autoscaler averages it over pods; empty if none is."""
    parts = (name.rpartition("/") for name in names)
    near = Similar().to(metric, [name for resource, _, name in parts if kind != "Pods" or resource == "pods"])
    return near[0] if near else ""


async def _listed(client: Client, group: str) -> Sequence[str]:
    try:
        resource_list = json.loads(await client.get_once(f"/apis/{group}/v1beta1"))
    except ApiError:
        return ()
    return [str(resource.get("name", "")) for resource in resource_list.get("resources") or ()]


def metric_path(kind: str, namespace: str, source: Json, metric: str, selector: str) -> tuple[str, dict[str, str]]:
    """Path and query of the HorizontalPodAutoscaler's request for a metric.

    The author of the autoscaler chose its parts. Raises ValueError if one of them would lead the request elsewhere.
    """
    labels = format_selector((source.get("metric") or {}).get("selector") or {})
    if kind == "External":
        return quoted_path("namespaces", namespace, metric), _query(labelSelector=labels)
    if kind == "Pods":
        return quoted_path("namespaces", namespace, "pods", "*", metric), _query(labelSelector=selector, metricLabelSelector=labels)
    about = source.get("describedObject") or {}
    if about.get("kind") == "Namespace":
        return quoted_path("namespaces", namespace, "metrics", metric), _query(metricLabelSelector=labels)
    group = str(about.get("apiVersion", "")).rpartition("/")[0]
    resource = f"{str(about.get('kind', '')).lower()}s{f'.{group}' if group else ''}"
    return quoted_path("namespaces", namespace, resource, str(about.get("name", "")), metric), _query(metricLabelSelector=labels)


def quoted_path(*parts: str) -> str:
    """The path of these parts, none of which can lead elsewhere. Raises ValueError for one that is no name of anything in Kubernetes."""
    for part in parts:
        # As Kubernetes validates names in paths: servers on the way may decode a quoted slash or percent sign.
        if part in ("", ".", "..") or "/" in part or "%" in part:
            raise ValueError(f"saw {part!r} as a part of the path to request, expected a name without / and %")
    return "".join(f"/{quote(part, safe=':')}" for part in parts)


def format_selector(selector: Json) -> str:
    """A label selector as text."""
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression.get("key", ""), ",".join(expression.get("values") or ())
        terms.append(
            {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}.get(expression.get("operator"), f"!{key}")
        )
    return ",".join(terms)


def _query(**parameters: str) -> dict[str, str]:
    return {name: text for name, text in parameters.items() if text}


def _values(items: Iterable[Json]) -> dict[str, str]:
    """Values by object or, for an external metric, by labels."""
    values = {}
    for item in items:
        name = (item.get("describedObject") or {}).get("name") or json.dumps(item.get("metricLabels") or {})
        values[str(name)] = str(item.get("value", ""))
    return values


async def _page(pages: Pages, pod_port: PodPort) -> bytes:
    """The metrics page of an exporter. Raises :class:`NotAnsweredError` for another status, or if the page is too large."""
    status, body = await pages(pod_port, "/metrics")
    if status != 200:
        raise NotAnsweredError(f"{pod_port}: saw status {status}, expected 200")
    if len(body) > _PAGE:
        raise NotAnsweredError(f"{pod_port}: saw {len(body)} bytes, expected at most {_PAGE}")
    return body
