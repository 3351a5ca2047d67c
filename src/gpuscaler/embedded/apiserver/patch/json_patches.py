"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from gpuscaler.embedded.apiserver.wire.failures import Failure, bad_request


def merge(target: Any, patch: Any) -> Any:
    """``target`` after the merge patch: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def json_patch(target: Any, operations: Any) -> Any:
    """``target`` after ``operations``, one after the other. Raises a Failure: 400 for a shape, 422 for an operation that does not apply."""
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    document = deepcopy(target)
    for operation in operations:
        if not isinstance(operation, Mapping) or operation.get("op") not in _OPERATIONS:
            raise bad_request(f"error decoding patch: unexpected operation: {operation!r}")
        document = _OPERATIONS[operation["op"]](document, operation)
    return document


def _refused(message: str) -> Failure:
    return Failure(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")


def _steps(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise _refused(f"path {pointer!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(step: str, length: int) -> int:
    if step.isdecimal() and int(step) < length:
        return int(step)
    raise _refused(f"index {step} is out of range")


def _child(found: Any, step: str) -> Any:
    if isinstance(found, Mapping) and step in found:
        return found[step]
    if isinstance(found, Sequence) and not isinstance(found, str):
        return found[_index(step, len(found))]
    raise _refused(f"path {step!r} does not exist")


def _look(document: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        document = _child(document, step)
    return document


def _add(document: Any, operation: Mapping[str, Any]) -> Any:
    return _put(document, _steps(operation.get("path")), deepcopy(operation.get("value")))


def _put(document: Any, steps: Sequence[str], value: Any) -> Any:
    if not steps:
        return value
    parent = _look(document, steps[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if steps[-1] == "-" else _index(steps[-1], len(parent) + 1), value)
    elif isinstance(parent, dict):
        parent[steps[-1]] = value
    else:
        raise _refused(f"{steps[-1]!r} cannot be added to a value")
    return document


def _take(document: Any, steps: Sequence[str]) -> Any:
    if not steps:
        raise _refused("the whole document cannot be removed")
    parent = _look(document, steps[:-1])
    _child(parent, steps[-1])
    return parent.pop(int(steps[-1]) if isinstance(parent, list) else steps[-1])


def _remove(document: Any, operation: Mapping[str, Any]) -> Any:
    _take(document, _steps(operation.get("path")))
    return document


def _replace(document: Any, operation: Mapping[str, Any]) -> Any:
    steps = _steps(operation.get("path"))
    if steps:
        _take(document, steps)
    return _put(document, steps, deepcopy(operation.get("value")))


def _move(document: Any, operation: Mapping[str, Any]) -> Any:
    return _put(document, _steps(operation.get("path")), _take(document, _steps(operation.get("from"))))


def _copy(document: Any, operation: Mapping[str, Any]) -> Any:
    return _put(document, _steps(operation.get("path")), deepcopy(_look(document, _steps(operation.get("from")))))


def _test(document: Any, operation: Mapping[str, Any]) -> Any:
    if _look(document, _steps(operation.get("path"))) != operation.get("value"):
        raise _refused(f"testing value {operation.get('path')} failed")
    return document


_OPERATIONS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
