"""What a printed command of kubectl patch makes of an object: its change, for a patch of the file that the object is in."""

import copy
import json
import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

#: The fields by which a strategic merge finds items of the lists that checks patch.
_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
#: Mappings that are the same as none when they are empty.
_OF_KEYS = ("annotations", "labels")


def patched(data: Any, commands: Iterable[str]) -> Any:
    """``data`` after ``commands``; None if they are not all patches of objects."""
    new = copy.deepcopy(data)
    any_command = False
    for command in commands:
        words = shlex.split(command) if command.startswith("kubectl patch ") else []
        options = dict(pairwise(words))
        if "--patch" not in options:
            return None
        any_command = True
        patch = json.loads(options["--patch"])
        kind = options.get("--type", "strategic")
        new = _operated(new, patch) if kind == "json" else _merged(new, patch, strategic=kind == "strategic")
        if new is None:
            return None
    return new if any_command else None


def _merged(target: Any, patch: Any, *, strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key in _KEYS and isinstance(value, list) and isinstance(result.get(key), list):
            result[key] = _merged_list(result[key], value, _KEYS[key])
            if not result[key]:
                del result[key]
        else:
            result[key] = _merged(result.get(key), value, strategic=strategic)
            if key in _OF_KEYS and not result[key]:
                del result[key]
    return result


def _merged_list(target: list[Any], patch: list[Any], name: str) -> list[Any]:
    result = list(target)
    for item in patch:
        index = next((place for place, old in enumerate(result) if isinstance(old, dict) and old.get(name) == item.get(name)), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(item)
        else:
            result[index] = _merged(result[index], item, strategic=True)
    return result


def _operated(target: Any, operations: Any) -> Any:
    for operation in operations if isinstance(operations, list) else []:
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
        at = target
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at.get(step)
            if not isinstance(at, dict | list):
                return None
        if isinstance(at, list) and last == "-":
            at.append(operation["value"])
            continue
        place: Any = int(last) if isinstance(at, list) else last
        if operation["op"] == "remove":
            del at[place]
        elif operation["op"] in ("add", "replace") and not (isinstance(at, list) and operation["op"] == "add"):
            at[place] = operation["value"]
        elif operation["op"] == "add":
            at.insert(place, operation["value"])
        else:
            return None
    return target
