"""Discovery: versions, groups, health."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpuscaler.embedded.apiserver.kinds import BUDGETS, KINDS, PODS, Kind
from gpuscaler.embedded.apiserver.wire.replies import json_reply, text_reply
from gpuscaler.kube.transport import Answer, Request

VERSION: Final = {"major": "1", "minor": "35", "gitVersion": "v1.35.0+gpuscaler", "gitTreeState": "clean", "platform": "linux/amd64"}
#: The newer form of discovery: all groups in one answer.
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#: Aggregated groups, with their versions in the newer form.
Others = Callable[[], Mapping[str, Sequence[Mapping[str, Any]]]]
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def answer(request: Request, others: Others) -> Answer | None:
    """The answer to a request about the server itself, or None if ``request`` is about something else."""
    path = request.path.rstrip("/")
    if path in ("/healthz", "/livez", "/readyz"):
        return text_reply("ok")
    if path == "/version":
        return json_reply(VERSION)
    if path in ("/api", "/apis"):
        return _roots(path, request, others)
    steps = path.strip("/").split("/")
    if len(steps) == 2 and steps[0] == "apis" and (versions := others().get(steps[1])):
        return json_reply({"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1], _named(versions))})
    version = steps[1] if steps[0] == "api" and len(steps) == 2 else "/".join(steps[1:]) if steps[0] == "apis" and len(steps) == 3 else ""
    kinds = [kind for kind in KINDS if kind.api_version == version]
    if not kinds:
        return None
    resources = [entry for kind in kinds for entry in _entries(kind)]
    return json_reply({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})


def _roots(path: str, request: Request, others: Others) -> Answer:
    beside = {} if path == "/api" else others()
    groups = _groups(core=path == "/api")
    accept = request.headers.get("accept", "")
    if "as=APIGroupDiscoveryList" in accept and "v=v2" in accept.replace("v=v2beta1", ""):
        items = [{"metadata": {"name": group, "creationTimestamp": None}, "versions": list(_aggregated(group))} for group in groups]
        items += [
            {"metadata": {"name": group, "creationTimestamp": None}, "versions": list(versions)} for group, versions in beside.items()
        ]
        body = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}
        answered = json_reply(body)
        headers = {**answered.headers, "content-type": AGGREGATED}
        return Answer(answered.status, headers, answered.pieces)
    if path == "/api":
        return json_reply({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
    api_groups = [_group(group, _versions(group)) for group in groups]
    api_groups += [_group(group, _named(versions)) for group, versions in beside.items()]
    return json_reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": api_groups})


def _groups(*, core: bool) -> list[str]:
    return list(dict.fromkeys(kind.group for kind in KINDS if (not kind.group) == core))


def _versions(group: str) -> list[str]:
    """The versions of a group, stable ones first, as clients prefer them."""
    versions = dict.fromkeys(kind.version for kind in KINDS if kind.group == group)
    return sorted(versions, key=lambda version: ("alpha" in version, "beta" in version))


def _group(group: str, named: Iterable[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in named]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _named(versions: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(version["version"]) for version in versions]


def _parts(kind: Kind) -> Iterable[tuple[str, list[str], dict[str, str]]]:
    own = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    if kind.status:
        yield "status", ["get", "patch", "update"], own
    if kind.scale:
        yield "scale", ["get", "patch", "update"], {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    if kind is PODS:
        yield "binding", ["create"], {"group": "", "version": "v1", "kind": "Binding"}
        yield "eviction", ["create"], {"group": BUDGETS.group, "version": "v1", "kind": "Eviction"}


def _entries(kind: Kind) -> Iterable[dict[str, Any]]:
    base = {"namespaced": kind.namespaced}
    yield {
        **base,
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "kind": kind.kind,
        "verbs": _VERBS,
        "shortNames": list(kind.short),
        "categories": list(kind.categories),
    }
    for part, verbs, answered in _parts(kind):
        yield {**base, "name": f"{kind.plural}/{part}", "singularName": "", "verbs": verbs, **answered}


def _aggregated(group: str) -> Iterable[dict[str, Any]]:
    for version in _versions(group):
        resources = [_resource(kind) for kind in KINDS if (kind.group, kind.version) == (group, version)]
        yield {"version": version, "freshness": "Current", "resources": resources}


def _resource(kind: Kind) -> dict[str, Any]:
    parts = [{"subresource": part, "responseKind": answered, "verbs": verbs} for part, verbs, answered in _parts(kind)]
    return {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.kind.lower(),
        "verbs": _VERBS,
        "shortNames": list(kind.short),
        "categories": list(kind.categories),
        "subresources": parts,
    }
