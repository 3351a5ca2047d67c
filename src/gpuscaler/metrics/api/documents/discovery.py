"""Discovery documents for clients and kube-aggregator: lists by version, and the aggregated list of everything.

Sources: ``k8s.io/apimachinery`` (APIGroup, APIResourceList), ``k8s.io/api/apidiscovery`` v2 and v2beta1, KEP-3352.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuscaler.metrics.api.documents.encoding import encode
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL, VERSIONS
from gpuscaler.metrics.sources.values import MetricInfo

#: Placeholder while there are no metrics: clients never cache an empty list, and would request it again for every command.
EMPTY: Mapping[str, str] = {CUSTOM: "custommetrics", EXTERNAL: "externalmetrics"}
_LISTS: Mapping[str, str] = {CUSTOM: "MetricValueList", EXTERNAL: "ExternalMetricValueList"}
_AGGREGATED = re.compile(r"\s*application/json((?:\s*;\s*[a-z]+=[^;,]*)+)\s*")
_VERBS = ["get"]

Json = dict[str, Any]


def aggregated_version(accept: str) -> str:
    """The version of ``apidiscovery.k8s.io`` that an Accept header prefers, empty for the old form."""
    for media_range in accept.split(","):
        match = _AGGREGATED.fullmatch(media_range)
        parameters: dict[str, str] = dict(part.strip().partition("=")[::2] for part in match[1].split(";")[1:]) if match else {}
        if (
            parameters.get("g") == "apidiscovery.k8s.io"
            and parameters.get("as") == "APIGroupDiscoveryList"
            and parameters.get("v") in ("v2", "v2beta1")
        ):
            return parameters["v"]
        if media_range.partition(";")[0].strip() in ("application/json", "*/*", "application/*") and not parameters.get("g"):
            return ""
    return ""


def content_type(version: str) -> str:
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated_discovery(version: str, custom: Sequence[MetricInfo] | None, external: Sequence[str] | None) -> bytes:
    """The aggregated discovery document. A group that is None is not served."""
    groups = {
        CUSTOM: None if custom is None else _custom_resources(custom),
        EXTERNAL: None if external is None else _external_resources(external),
    }
    items = [
        {
            "metadata": {"name": group, "creationTimestamp": None},
            "versions": [{"version": group_version, "resources": resources, "freshness": "Current"} for group_version in VERSIONS[group]],
        }
        for group, resources in groups.items()
        if resources is not None
    ]
    return encode({"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {}, "items": items})


def group_list(groups: Iterable[str]) -> bytes:
    return encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in groups]})


def api_group(name: str) -> bytes:
    return encode({"kind": "APIGroup", "apiVersion": "v1", **_group(name)})


def resource_list(name: str, version: str, *, custom: Sequence[MetricInfo] = (), external: Sequence[str] = ()) -> bytes:
    """The list of one version of the group ``name``."""
    kind = _LISTS[name]
    if name == CUSTOM:
        names = [(f"{metric_info.group_resource}/{metric_info.metric}", metric_info.namespaced) for metric_info in _of_one_scope(custom)]
    else:
        names = [(metric, True) for metric in external]
    resources = [
        {"name": metric, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": _VERBS}
        for metric, namespaced in names or [(EMPTY[name], True)]
    ]
    return encode({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{name}/{version}", "resources": resources})


def etag(body: bytes) -> str:
    return f'"{hashlib.sha512(body).hexdigest().upper()}"'


def _group(name: str) -> Json:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in VERSIONS[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _custom_resources(metrics: Sequence[MetricInfo]) -> list[Json]:
    """Metrics as subresources of the resources they describe. A parent has no kind, since it cannot be read itself."""
    parents: dict[str, Json] = {}
    for metric_info in _of_one_scope(metrics):
        scope = "Namespaced" if metric_info.namespaced else "Cluster"
        parent = parents.setdefault(metric_info.group_resource, {**_resource(metric_info.group_resource, "", scope), "subresources": []})
        parent["subresources"].append({"subresource": metric_info.metric, "responseKind": _kind(_LISTS[CUSTOM]), "verbs": _VERBS})
    return list(parents.values()) or [_resource(EMPTY[CUSTOM], _LISTS[CUSTOM], "Namespaced")]


def _external_resources(metrics: Sequence[str]) -> list[Json]:
    return [_resource(metric, _LISTS[EXTERNAL], "Namespaced") for metric in metrics or (EMPTY[EXTERNAL],)]


def _resource(name: str, kind: str, scope: str) -> Json:
    return {"resource": name, "responseKind": _kind(kind), "scope": scope, "singularResource": "", "verbs": _VERBS if kind else []}


def _kind(kind: str) -> Json:
    # Never null: some clients crash on it.
    return {"group": "", "version": "", "kind": kind}


def _of_one_scope(metrics: Sequence[MetricInfo]) -> list[MetricInfo]:
    """Leave out metrics that give their resource another scope than its first metric: clients would reject the whole group."""
    scopes: dict[str, bool] = {}
    return [
        metric_info
        for metric_info in metrics
        if scopes.setdefault(metric_info.group_resource, metric_info.namespaced) == metric_info.namespaced
    ]
