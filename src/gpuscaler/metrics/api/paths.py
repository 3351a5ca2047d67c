"""Parses the path and query of a request as the generic API server and custom-metrics-apiserver do.

Sources: ``k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`` (attributes for authorization) and
``sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver/endpoints/handlers/get.go`` (metrics).
"""

from collections.abc import Mapping
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from gpuscaler.kube.users import Attributes

CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
#: The versions of each group, the preferred one first.
VERSIONS: Mapping[str, tuple[str, ...]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
#: Verbs of authorization by HTTP method.
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACE_PARTS = frozenset({"status", "finalize"})


class Metric(Struct, frozen=True, gc=False):
    """A requested metric. ``name`` is ``*`` for all objects that match; for an external metric it is empty."""

    group: str
    version: str
    metric: str
    group_resource: str = ""
    namespace: str = ""
    name: str = ""


class Query(Struct, frozen=True, gc=False):
    """The known parameters; empty if they are left out."""

    labels: str = ""
    metric_labels: str = ""
    fields: str = ""
    pretty: bool = False


class ParsedRequest(Struct, frozen=True, gc=False):
    """A parsed request. ``metric`` is None for a path without a metric; ``invalid`` is the error if the path should have one."""

    attributes: Attributes
    parts: tuple[str, ...]
    query: Query
    metric: Metric | None = None
    invalid: str = ""
    verbose: bool = False


def parse_request(method: str, target: str) -> ParsedRequest:
    """Parse a request. ``target`` is its raw path and query: ``%2A`` is ``*``, and an absolute URL matches no path here."""
    raw, _, query = target.partition("?")
    path = unquote(raw)
    within = path.removeprefix("/").removesuffix("/")
    parts = tuple(within.split("/")) if within else ()
    if len(parts) < 4 or parts[0] != "apis":
        return ParsedRequest(
            Attributes(method.lower(), path), parts, _query(query), verbose="verbose" in parse_qs(query, keep_blank_values=True)
        )
    group, version, rest = parts[1], parts[2], parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_PARTS:
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _VERBS.get(method, method.lower())
    # A request without a name is a list; the lists that could be requested are not served.
    verb = "list" if verb == "get" and not name else verb
    attributes = Attributes(verb, path, group, version, resource, subresource, namespace, name)
    metric, invalid = _metric(parts)
    return ParsedRequest(attributes, parts, _query(query), metric, invalid)


def _metric(parts: tuple[str, ...]) -> tuple[Metric | None, str]:
    group, version = parts[1:3]
    if version not in VERSIONS.get(group, ()) or "" in parts:
        return None, ""
    match group, *parts[3:]:
        case (_, "namespaces", namespace, metric) if group == EXTERNAL:
            return Metric(group, version, metric, namespace=namespace), ""
        case (_, "namespaces", namespace, "metrics", metric) if group == CUSTOM:
            return Metric(group, version, metric, "namespaces", name=namespace), ""
        case (_, "namespaces", namespace, resource, name, metric) if group == CUSTOM:
            return Metric(group, version, metric, _resource(resource), namespace, name), ""
        case (_, "namespaces", _, _) if group == CUSTOM:
            return None, "invalid request path"
        case (_, resource, name, metric) if group == CUSTOM:
            return Metric(group, version, metric, _resource(resource), name=name), ""
        case _:
            return None, ""


def _resource(text: str) -> str:
    """Normalize a resource: ``pods.`` is ``pods`` in the core group."""
    return text.lower().removesuffix(".")


def _query(text: str) -> Query:
    if not text:
        return Query()
    parameters = {key: values[0] for key, values in parse_qs(text, keep_blank_values=True).items()}
    return Query(
        labels=parameters.get("labelSelector", ""),
        metric_labels=parameters.get("metricLabelSelector", ""),
        fields=parameters.get("fieldSelector", ""),
        pretty=parameters.get("pretty", "false").lower() not in ("false", "0"),
    )
