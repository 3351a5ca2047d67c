"""The OpenAPI description, small and constant. Without one, kube-apiserver asks every minute and logs that it failed.

Sources: OpenAPI 2.0 (``/openapi/v2``), and KEP-2896 for the index of ``/openapi/v3``.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from gpuscaler import __version__
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL, VERSIONS

#: The paths of each group, and their descriptions.
_PATHS = {
    CUSTOM: (
        (
            "/namespaces/{namespace}/{resource}/{name}/{metric}",
            "A metric of an object in a namespace, or, with the name *, of all objects that match.",
        ),
        ("/namespaces/{namespace}/metrics/{metric}", "A metric of a namespace."),
        ("/{resource}/{name}/{metric}", "A metric of an object without a namespace, or, with the name *, of all objects that match."),
    ),
    EXTERNAL: (("/namespaces/{namespace}/{metric}", "An external metric, as seen from a namespace."),),
}
_QUERY = {CUSTOM: ("labelSelector", "metricLabelSelector"), EXTERNAL: ("labelSelector",)}
_LISTS = {CUSTOM: "MetricValueList", EXTERNAL: "ExternalMetricValueList"}

Json = dict[str, Any]


def version_2(groups: Iterable[str]) -> bytes:
    """The whole description of ``groups`` in OpenAPI 2.0."""
    paths = {path: item for group in groups for version in VERSIONS[group] for path, item in _items(group, version, old=True).items()}
    return msgspec.json.encode({"swagger": "2.0", "info": _info(), "paths": paths})


def version_3(group: str, version: str) -> bytes:
    """The description of one version of a group."""
    return msgspec.json.encode({"openapi": "3.0.0", "info": _info(), "paths": _items(group, version, old=False)})


def index(groups: Iterable[str]) -> bytes:
    """The path of the description of each version; its hash changes with the description."""
    paths = {}
    for group in groups:
        for version in VERSIONS[group]:
            tag = hashlib.sha512(version_3(group, version)).hexdigest().upper()
            paths[f"apis/{group}/{version}"] = {"serverRelativeURL": f"/openapi/v3/apis/{group}/{version}?hash={tag}"}
    return msgspec.json.encode({"paths": paths})


def _info() -> Json:
    return {"title": "gpuscaler metrics", "version": __version__}


def _items(group: str, version: str, *, old: bool) -> Json:
    return {f"/apis/{group}/{version}{path}": {"get": _get(group, path, text, old=old)} for path, text in _PATHS[group]}


def _get(group: str, path: str, text: str, *, old: bool) -> Json:
    kind: Json = {"type": "string"} if old else {"schema": {"type": "string"}}
    named = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, **kind} for name in named]
    parameters += [{"name": name, "in": "query", **kind} for name in _QUERY[group]]
    return {"description": text, "tags": [group], "parameters": parameters, "responses": {"200": {"description": _LISTS[group]}}}
