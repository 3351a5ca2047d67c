"""Strategic merge patch, as kubectl sends it: lists of objects are merged by a key.

Source: ``k8s.io/apimachinery/pkg/util/strategicpatch`` and the ``patchMergeKey`` tags of ``k8s.io/api``, Kubernetes 1.35. The keys are
looked up only by the name of the list; the one ambiguous name, ``ports``, is distinguished by the list's content.
Taints and tolerations have no key: a patch replaces all of them, and kubectl sends all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuscaler.embedded.apiserver.wire.failures import bad_request

MERGE_KEYS: Final[Mapping[str, str]] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "drivers": "name",
    "env": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "reservedFor": "uid",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
#: Lists of plain values to which a patch adds.
MERGED_VALUES: Final = frozenset({"finalizers", "podCIDRs"})
_ORDER, _DROP, _RETAIN, _PATCH = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys", "$patch"


def merge_key(name: str, items: Sequence[Any]) -> str | None:
    """The key that identifies objects of the list ``name``, or None if such a list is replaced as a whole."""
    if name == "ports":
        return "containerPort" if any("containerPort" in item for item in items if isinstance(item, Mapping)) else "port"
    return MERGE_KEYS.get(name)


def strategic_merge(target: Any, patch: Any) -> Any:
    """``target`` after ``patch``. Raises a 400 Failure for a directive or an element that cannot be applied."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_PATCH, "merge")
    if directive == "replace":
        return _plain({name: value for name, value in patch.items() if name != _PATCH})
    if directive not in ("merge", "delete"):
        raise bad_request(f"Unknown patch type found: {directive}")
    if directive == "delete":
        return {}
    merged = _retained(dict(target) if isinstance(target, dict) else {}, patch)
    for name, value in patch.items():
        if name.startswith("$"):
            _directive(merged, name, value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _value(name, merged.get(name), value)
    for name, value in patch.items():
        if name.startswith(_ORDER):
            _order(merged, name.removeprefix(_ORDER), value)
    return merged


def _retained(target: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    kept = patch.get(_RETAIN)
    return target if kept is None else {name: value for name, value in target.items() if name in kept}


def _directive(merged: dict[str, Any], name: str, value: Any) -> None:
    if name.startswith(_DROP):
        field = name.removeprefix(_DROP)
        merged[field] = [item for item in merged.get(field) or () if item not in value]
    elif name not in (_PATCH, _RETAIN) and not name.startswith(_ORDER):
        raise bad_request(f"unknown directive {name}")


def _value(name: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return strategic_merge(old, new)
    if not isinstance(new, list):
        return new
    if name in MERGED_VALUES:
        return [*(old or ()), *(item for item in new if item not in (old or ()))]
    key = merge_key(name, [*new, *(old or ())]) if all(isinstance(item, dict) for item in new) else None
    return _plain(new) if key is None else _merged(name, key, list(old or ()), new)


def _merged(name: str, key: str, old: list[Any], new: Sequence[dict[str, Any]]) -> list[Any]:
    if any(item == {_PATCH: "replace"} for item in new):
        return [_plain(item) for item in new if item != {_PATCH: "replace"}]
    for item in new:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key} (in {name})")
        place = next((i for i, other in enumerate(old) if other.get(key) == item[key]), None)
        if item.get(_PATCH) == "delete":
            old = [other for other in old if other.get(key) != item[key]]
        elif place is None:
            old.append(_plain({field: value for field, value in item.items() if field != _PATCH}))
        else:
            old[place] = strategic_merge(old[place], item)
    return old


def _order(merged: dict[str, Any], name: str, wanted: Sequence[Any]) -> None:
    """Sort the list ``name`` into the order ``wanted``; other elements stay behind their predecessors."""
    items = merged.get(name)
    if not isinstance(items, list):
        return
    key = merge_key(name, items)
    places = {_identity(item, key): i for i, item in enumerate(wanted)}
    ranked, last = [], -1
    for item in items:
        last = places.get(_identity(item, key), last)
        ranked.append((last, item))
    merged[name] = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def _identity(item: Any, key: str | None) -> Any:
    return item.get(key) if isinstance(item, Mapping) and key else str(item)


def _plain(value: Any) -> Any:
    """A new value, without directives and without nulls, which have nothing to remove there."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None and not name.startswith("$")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
