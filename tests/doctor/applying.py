"""Applies the commands that findings print, as kubectl would, to objects in memory."""

import base64
import json
import re
import shlex
import subprocess
from copy import deepcopy
from typing import Any

import yaml

from gpuscaler.embedded.apiserver.patch.json_patches import json_patch, merge
from gpuscaler.embedded.apiserver.patch.strategic import strategic_merge

Json = dict[str, Any]


class CannotApplyError(Exception):
    """A command that is not one of those that tests can apply."""


def apply_command(objects: list[Json], command: str) -> list[Json]:
    """The objects after ``command``: one of kubectl patch, label, annotate, taint, delete, and apply or replace with a heredoc."""
    if " | kubectl patch secret " in command:
        return _rewritten(objects, command)
    line, _, document = command.partition("\n")
    words = shlex.split(line)
    if words[:1] != ["kubectl"]:
        raise CannotApplyError(f"saw {words[:1]}, expected kubectl: {command}")
    verb, rest = words[1], words[2:]
    if verb in ("apply", "replace", "create"):
        return _applied(objects, document)
    options, places = _options(rest)
    if words[1:3] == ["rollout", "restart"]:
        # The webhooks of the cluster change the new pods, so that they are not known.
        return [item for item in objects if not _is_pod_of(item, places[2], options.get("namespace", ""))]
    kind, name, *arguments = places
    index = _index(objects, kind, name, options.get("namespace", ""))
    if verb == "delete":
        return [*objects[:index], *objects[index + 1 :]]
    if verb == "taint":
        verb, arguments = "patch", []
        options = {"type": "merge", "patch": json.dumps({"spec": {"taints": _tainted(objects[index], places[2])}})}
    changed = _changed(deepcopy(objects[index]), verb, arguments, options)
    return [_rolled_out(item, changed) for item in (*objects[:index], changed, *objects[index + 1 :])]


def _rewritten(objects: list[Json], command: str) -> list[Json]:
    """The objects after a Secret was read, passed through commands of the shell, and written back."""
    read, *filters, write = command.split(" | ")
    options, places = _options(shlex.split(read)[2:])
    kind, name = places
    data = objects[_index(objects, kind, name, options.get("namespace", ""))]["data"]
    template = options["output"].removeprefix("go-template=")
    text = re.sub(r'{{base64decode \(index .data "([^"]+)"\)}}', lambda match: base64.b64decode(data[match[1]]).decode(), template)
    text = re.sub(r'{{index .data "([^"]+)"}}', lambda match: data[match[1]], text)
    if filters:
        text = subprocess.run(["sh", "-c", " | ".join(filters)], input=text, capture_output=True, text=True, check=True).stdout
    assert write.endswith("--patch-file /dev/stdin")
    return apply_command(objects, f"{write.removesuffix('--patch-file /dev/stdin')}--patch {shlex.quote(text)}")


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    places: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--overwrite":
            continue
        if word.startswith("--"):
            options[word[2:]] = next(rest)
        else:
            places.append(word)
    return options, places


def _index(objects: list[Json], kind: str, name: str, namespace: str) -> int:
    for index, item in enumerate(objects):
        metadata = item["metadata"]
        if (item["kind"].lower(), metadata["name"], metadata.get("namespace", "")) == (kind.lower(), name, namespace):
            return index
    raise CannotApplyError(f"there is no {kind} {namespace}/{name}")


def _changed(item: Json, verb: str, arguments: list[str], options: dict[str, str]) -> Json:
    if verb == "patch":
        patch = json.loads(options["patch"])
        apply = {"merge": merge, "strategic": strategic_merge, "json": json_patch}[options.get("type", "strategic")]
        changed: Json = apply(item, patch)
        return changed
    if verb in ("label", "annotate"):
        place = item["metadata"].setdefault("labels" if verb == "label" else "annotations", {})
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if equals:
                place[key] = value
            else:
                place.pop(key.removesuffix("-"), None)
        return item
    raise CannotApplyError(f"saw the verb {verb}, expected patch, label, annotate or delete")


def _rolled_out(item: Json, workload: Json) -> Json:
    """``item`` as it is once the controller of the changed ``workload`` has made its pods again, each on the node of its predecessor."""
    owners = [owner["name"].removesuffix(f"-{item['metadata'].get('labels', {}).get('pod-template-hash', '')}") for owner in _owners(item)]
    same = item["metadata"].get("namespace") == workload["metadata"].get("namespace")
    if item["kind"] != "Pod" or not same or workload["metadata"]["name"] not in owners or "template" not in workload.get("spec", {}):
        return item
    template = deepcopy(workload["spec"]["template"])
    node = {name: item["spec"][name] for name in ("nodeName",) if name in item["spec"]}
    metadata = {**item["metadata"], "annotations": template.get("metadata", {}).get("annotations", {})}
    return {**item, "metadata": metadata, "spec": {**template["spec"], **node}}


def _is_pod_of(item: Json, workload: str, namespace: str) -> bool:
    names = [owner["name"].removesuffix(f"-{item['metadata'].get('labels', {}).get('pod-template-hash', '')}") for owner in _owners(item)]
    return item["kind"] == "Pod" and item["metadata"].get("namespace", "") == namespace and workload in names


def _owners(item: Json) -> list[Json]:
    return [owner for owner in item["metadata"].get("ownerReferences", []) if owner["kind"] in ("ReplicaSet", "StatefulSet", "DaemonSet")]


def _tainted(node: Json, taint: str) -> list[Json]:
    """The taints of ``node`` with ``taint``, ``key=value:Effect``."""
    name, _, effect = taint.rpartition(":")
    key, _, value = name.partition("=")
    kept = [item for item in node.get("spec", {}).get("taints", []) if (item["key"], item["effect"]) != (key, effect)]
    return [*kept, {"key": key, "effect": effect, **({"value": value} if value else {})}]


def _applied(objects: list[Json], document: str) -> list[Json]:
    text = document.rsplit("\nEOF", 1)[0]
    for new in yaml.safe_load_all(text):
        identity = (new["kind"], new["metadata"]["name"], new["metadata"].get("namespace", ""))
        objects = [item for item in objects if (item["kind"], item["metadata"]["name"], item["metadata"].get("namespace", "")) != identity]
        objects.append(new)
    return objects
