"""Server-side apply, as far as one applier can see: fields that it names are set, fields that it no longer names are removed.

Ownership is kept in ``managedFields`` as in Kubernetes, but only that of appliers: fields written by updates or other
patches have no owner, and are taken over without a conflict.

Source of the format: ``sigs.k8s.io/structured-merge-diff`` and ``k8s.io/apimachinery/pkg/apis/meta/v1`` (FieldsV1), Kubernetes 1.35.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.patch.strategic import MERGED_VALUES, merge_key
from gpuscaler.embedded.apiserver.routing import Target
from gpuscaler.embedded.apiserver.store import Object
from gpuscaler.embedded.apiserver.wire.failures import Failure, bad_request

#: One step into an object: a field, ``k:{...}`` for an element of a keyed list, ``v:...`` for a value of a set.
Path = tuple[str, ...]
_IDENTITY: Final = ("apiVersion", "kind")
_METADATA: Final = frozenset({"name", "namespace", "managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"})


def server_side_apply(place: Target, old: Object, config: Any, *, query: Mapping[str, str], now: str) -> Object:
    """``old`` (empty if there is none) after the apply of ``config``. Raises a Failure: 400, or 409 for fields of another applier."""
    manager = query.get("fieldManager")
    if not manager:
        raise bad_request('PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch')
    if not isinstance(config, dict) or config.get("apiVersion") != place.kind.api_version or config.get("kind") != place.kind.kind:
        raise bad_request(f"an apply of {place.kind.kind} needs apiVersion {place.kind.api_version} and kind {place.kind.kind}")
    if (config.get("metadata") or {}).get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    entries = list((old.get("metadata") or {}).get("managedFields") or ())
    own_entry = next((entry for entry in entries if _is_entry_of(entry, manager, place.part)), None)
    others = [entry for entry in entries if entry is not own_entry]
    leaves = dict(_leaves(config, ()))
    lost = _clashes(place, old, leaves, others, force=query.get("force") in ("true", "1"))
    new: Object = deepcopy(old) if old else {"metadata": {"name": place.name}}
    kept = {path for entry in others for path in _paths(entry["fieldsV1"], ())}
    for path in _paths(own_entry["fieldsV1"], ()) if own_entry else ():
        if path not in leaves and path not in kept:
            _remove(new, path)
    new = _overlay(new, config)
    entry: Object = {"manager": manager, "operation": "Apply", "apiVersion": place.kind.api_version, "time": now, "fieldsType": "FieldsV1"}
    entry |= {"fieldsV1": _tree(leaves)} | ({"subresource": place.part} if place.part else {})
    if own_entry and own_entry["fieldsV1"] == entry["fieldsV1"]:
        entry["time"] = own_entry["time"]
    new["metadata"]["managedFields"] = [*(_without(other, lost) for other in others), entry]
    return new


def _is_entry_of(entry: Mapping[str, Any], manager: str, part: str) -> bool:
    return entry.get("manager") == manager and entry.get("operation") == "Apply" and entry.get("subresource", "") == part


def _clashes(place: Target, old: Object, leaves: Mapping[Path, Any], others: Sequence[Mapping[str, Any]], *, force: bool) -> set[Path]:
    """The fields of other appliers that would change: a conflict, or taken from them by ``force``."""
    current = dict(_leaves(old, ()))
    clashes = [
        (entry["manager"], path)
        for entry in others
        for path in _paths(entry["fieldsV1"], ())
        if leaves.get(path, {}) not in ({}, []) and path[-1][:2] == "f:" and current.get(path) != leaves[path]
    ]
    if clashes and not force:
        raise _conflict(place.kind, clashes)
    return {path for _, path in clashes}


def _conflict(kind: Kind, clashes: Sequence[tuple[str, Path]]) -> Failure:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": _dotted(path)} for manager, path in clashes
    ]
    word = "conflict" if len(clashes) == 1 else "conflicts"
    conflicts = ", ".join(f'conflict with "{manager}": {_dotted(path)}' for manager, path in clashes)
    return Failure(
        409, "Conflict", f"Apply failed with {len(clashes)} {word}: {conflicts}", details={"kind": kind.plural, "causes": causes}
    )


def _dotted(path: Path) -> str:
    return "".join(f".{step[2:]}" if step[:2] == "f:" else f"[{step[2:]}]" for step in path)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """All fields that ``value`` sets: plain values, lists that are replaced as a whole, elements of others, and empty objects."""
    for name, inner in value.items():
        if (not path and name in _IDENTITY) or (path == ("f:metadata",) and name in _METADATA):
            continue
        here = (*path, f"f:{name}")
        key = _keyed(name, inner)
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, here)
        elif key is not None:
            for item in inner:
                yield (*here, _element(key, item)), None
                yield from _leaves(item, (*here, _element(key, item)))
        elif name in MERGED_VALUES and isinstance(inner, list):
            for item in inner:
                yield (*here, f"v:{msgspec.json.encode(item).decode()}"), item
        else:
            yield here, inner


def _keyed(name: str, value: Any) -> str | None:
    """The merge key of a list whose elements all have it."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    key = merge_key(name, value)
    return key if key is not None and all(key in item for item in value) else None


def _element(key: str, item: Mapping[str, Any]) -> str:
    return f"k:{msgspec.json.encode({key: item[key]}).decode()}"


def _tree(leaves: Mapping[Path, Any]) -> Object:
    tree: Object = {}
    for path in leaves:
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return tree


def _paths(tree: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for step, inner in tree.items():
        if step == ".":
            yield path
        elif inner:
            yield from _paths(inner, (*path, step))
        else:
            yield (*path, step)


def _without(entry: Mapping[str, Any], lost: set[Path]) -> Object:
    """Another applier's entry, without the fields that were forced from it. Fields that both set to the same value belong to both."""
    return {**entry, "fieldsV1": _tree(dict.fromkeys(path for path in _paths(entry["fieldsV1"], ()) if path not in lost))}


def _remove(obj: Any, path: Path) -> None:
    for place, step in enumerate(path):
        if obj is None:
            return
        last = place == len(path) - 1
        if step.startswith("f:"):
            if not isinstance(obj, dict):
                return
            if last:
                obj.pop(step[2:], None)
                return
            obj = obj.get(step[2:])
            continue
        wanted = msgspec.json.decode(step[2:])
        if not isinstance(obj, list):
            return
        match = [item for item in obj if item == wanted or (isinstance(wanted, dict) and wanted.items() <= item.items())]
        if last:
            obj[:] = [item for item in obj if item not in match]
            return
        obj = match[0] if match else None


def _overlay(old: Any, new: Any, name: str = "") -> Any:
    if isinstance(new, dict):
        base = dict(old) if isinstance(old, dict) else {}
        return base | {field: _overlay(base.get(field), value, field) for field, value in new.items()}
    if not isinstance(new, list):
        return new
    if name in MERGED_VALUES:
        return [*(old or ()), *(item for item in new if item not in (old or ()))]
    key = _keyed(name, new)
    if key is None:
        return new
    merged = list(old or ())
    for item in new:
        place = next((i for i, other in enumerate(merged) if other.get(key) == item[key]), None)
        if place is None:
            merged.append(item)
        else:
            merged[place] = _overlay(merged[place], item)
    return merged
