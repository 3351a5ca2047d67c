"""Makes ``src/gpuscaler/embedded/apiserver/wire/protobuf_fields.json`` from the .proto files of Kubernetes' Go modules.

Run from the project's root, with Go on PATH and the modules in its cache: ``python tools/make_protobuf_fields.py v0.35.4``.

For every message that a client may send to the embedded API server, the file maps each number to its field: its name, its type (a message's
name, ``string``, ``bytes``, ``int``, ``bool``, ``double``) and its cardinality (``""``, ``repeated``, ``map``).
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuscaler.embedded.apiserver.kinds import KINDS

OUT = Path("src/gpuscaler/embedded/apiserver/wire/protobuf_fields.json")
MODULES = {
    "k8s.io/api": (
        "core/v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v1", "autoscaling/v2", "coordination/v1", "storage/v1",
        "scheduling/v1", "scheduling/v1alpha1", "node/v1", "events/v1", "resource/v1",
    ),
    "k8s.io/apimachinery": ("pkg/apis/meta/v1", "pkg/api/resource", "pkg/util/intstr", "pkg/runtime"),
}  # fmt: skip
#: Messages without a stored kind of their own that are sent all the same.
OTHERS = ("meta.v1.DeleteOptions", "policy.v1.Eviction", "core.v1.Binding", "autoscaling.v1.Scale", "runtime.Unknown")
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s+(?:(optional|repeated|required) )?(map<string, ([\w.]+)>|[\w.]+) (\w+) = (\d+);", re.MULTILINE)
_SCALARS = {"int32": "int", "int64": "int", "uint32": "int", "uint64": "int", "bool": "bool", "string": "string", "bytes": "bytes"}


def folder(module: str, version: str) -> Path:
    cache = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(cache) / f"{module}@{version}"


def short(name: str) -> str:
    """``.k8s.io.api.core.v1.Pod`` as ``core.v1.Pod``."""
    name = name.lstrip(".").removeprefix("k8s.io.")
    return re.sub(r"^(api|apimachinery\.pkg\.apis|apimachinery\.pkg\.api|apimachinery\.pkg\.util|apimachinery\.pkg)\.", "", name)


def messages(text: str) -> Iterator[tuple[str, dict[str, list[str]]]]:
    package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
    assert package is not None
    for name, body in _MESSAGE.findall(text):
        fields = {}
        for often, kind, value, field, number in _FIELD.findall(body):
            type_name = value or kind
            full = _SCALARS.get(type_name) or (
                "double" if type_name == "double" else short(type_name if "." in type_name else f"{package[1]}.{type_name}")
            )
            fields[number] = [field, full, "map" if value else often if often == "repeated" else ""]
        yield short(f"{package[1]}.{name}"), fields


def reachable(all_messages: dict[str, dict[str, list[str]]], roots: list[str]) -> dict[str, dict[str, list[str]]]:
    """The messages reachable from ``roots``."""
    result: dict[str, dict[str, list[str]]] = {}
    while roots:
        name = roots.pop()
        if name not in result:
            result[name] = all_messages[name]
            roots += [kind for _, kind, _ in all_messages[name].values() if "." in kind]
    return dict(sorted(result.items()))


def main() -> None:
    version = sys.argv[1]
    all_messages: dict[str, dict[str, list[str]]] = {}
    for module, packages in MODULES.items():
        for package in packages:
            all_messages |= dict(messages((folder(module, version) / package / "generated.proto").read_text()))
    roots = [f"{kind.group.partition('.')[0] or 'core'}.{kind.version}.{kind.kind}" for kind in KINDS if not kind.custom]
    used = reachable(all_messages, [*roots, *OTHERS])
    lines = [f'"{name}":{json.dumps(fields, separators=(",", ":"))}' for name, fields in used.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(used)} messages of {version}")


if __name__ == "__main__":
    main()
