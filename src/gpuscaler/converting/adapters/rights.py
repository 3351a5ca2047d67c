"""The roles that prometheus-adapter needs. Only of their bindings is a subject corrected: any other role may give more."""

import re
from collections.abc import Collection
from typing import Final

from gpuscaler.converting.objects import Json, get_items, text

READER: Final = "extension-apiserver-authentication-reader"
#: Roles that every cluster has: to ask who a client is and what it may do.
_BUILT_IN: Final = frozenset({("ClusterRole", "system:auth-delegator"), ("Role", READER)})
#: Roles of its manifests and charts, by the end of their names.
_OWN: Final = re.compile(r"(.*[-:])?(resource-reader|server-resources|prometheus-adapter)")
#: What they may read, by the API group.
_READ: Final = {
    "": frozenset({"configmaps", "endpoints", "namespaces", "nodes", "nodes/metrics", "nodes/stats", "pods", "services"}),
    "apps": frozenset({"daemonsets", "deployments", "replicasets", "statefulsets"}),
    "batch": frozenset({"cronjobs", "jobs"}),
    "extensions": frozenset({"deployments", "ingresses", "replicasets"}),
    "networking.k8s.io": frozenset({"ingresses"}),
}
_READING: Final = frozenset({"get", "list", "watch"})


def is_known(kind: str, name: str, roles: Collection[Json]) -> bool:
    """Whether prometheus-adapter needs the role, of which ``roles`` are all definitions, and whether it gives no more than that."""
    if (kind, name) in _BUILT_IN:
        return True
    return _OWN.fullmatch(name) is not None and bool(roles) and all(map(only_reads, roles))


def only_reads(role: Json) -> bool:
    """Whether ``role`` allows only what prometheus-adapter needs: to read objects that metrics are about, and all with metrics."""
    return not role.get("aggregationRule") and all(map(_is_harmless, get_items(role, "rules")))


def _is_harmless(rule: Json) -> bool:
    groups, resources, verbs = (
        {text(item) for item in found} if isinstance(found := rule.get(key), list) else set() for key in ("apiGroups", "resources", "verbs")
    )
    if rule.get("nonResourceURLs"):
        return False
    if groups and all(group == "metrics.k8s.io" or group.endswith(".metrics.k8s.io") for group in groups):
        return True
    return verbs <= _READING and all(resources <= _READ.get(group, frozenset()) for group in groups)
