"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from collections.abc import Mapping
from typing import Any

from jsonpatch import InvalidJsonPatch, JsonPatch, JsonPatchException
from jsonpointer import JsonPointerException

from gpuscaler.embedded.apiserver.wire.failures import Failure, bad_request

OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


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
    for operation in operations:
        if not isinstance(operation, Mapping) or operation.get("op") not in OPERATIONS:
            raise bad_request(f"error decoding patch: unexpected operation: {operation!r}")
    try:
        return JsonPatch(operations).apply(target)
    except (JsonPatchException, InvalidJsonPatch, JsonPointerException, TypeError) as error:
        # The library notices some invalid operations only when it applies them.
        raise Failure(422, "Invalid", f"the server rejected our request due to an error in our request: {error}") from error
