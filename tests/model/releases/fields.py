"""The fields of Kubernetes' objects in each release from 1.29 to 1.37, found by ``extract`` in Kubernetes' sources."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]

#: A sample value of each scalar type.
_VALUES: Mapping[str, Any] = {
    "string": "text",
    "bool": True,
    "int32": 3,
    "int64": 3,
    "time": "2026-11-01T12:00:00Z",
    "quantity": "3",
    "int-or-string": "30%",
    "any": {"key": "text"},
}


class Field(NamedTuple):
    """A field: ``type`` as in ``fields.json``, and the first and last release that have it."""

    type: str
    first: str
    last: str

    def of(self, release: str) -> bool:
        return number(self.first) <= number(release) <= number(self.last)

    @property
    def inner(self) -> str:
        """The type of what a list or a mapping holds, or the type itself."""
        return self.type.replace("[]", "").replace("{}", "")


def number(release: str) -> int:
    """Return the minor number of a release."""
    return int(release.split(".")[1])


@cache
def _read() -> tuple[tuple[str, ...], Mapping[str, Mapping[str, Field]]]:
    told = json.loads(Path(__file__).with_name("fields.json").read_text(encoding="utf-8"))
    releases: list[str] = told["releases"]

    def field(said: str) -> Field:
        kind, _, span = said.partition(" ")
        first, _, last = span.partition("-")
        return Field(kind, first or releases[0], last or releases[-1])

    return tuple(releases), {kind: {name: field(said) for name, said in fields.items()} for kind, fields in told["types"].items()}


def releases() -> tuple[str, ...]:
    return _read()[0]


def types() -> Mapping[str, Mapping[str, Field]]:
    """Return the fields of every type by ``group/version.Name``, where the group is the first part of its API group."""
    return _read()[1]


def type_of(api_version: str, kind: str) -> str:
    """Return the type of a kind: ``core/v1.Pod`` for ``v1`` and ``Pod``, ``resource/v1.ResourceClaim`` for ``resource.k8s.io/v1``."""
    group, slash, version = api_version.rpartition("/")
    return f"{group.split('.')[0] if slash else 'core'}/{version}.{kind}"


def has(api_version: str, kind: str, release: str) -> bool:
    """Whether a release has a kind in a version of its API group."""
    fields = types().get(type_of(api_version, kind), {})
    return "metadata" in fields and fields["metadata"].of(release)


def full(name: str, release: str, inside: tuple[str, ...] = ()) -> Json:
    """Return a value of the type ``name`` with all fields of ``release``; recursive types end at the second level."""
    return {
        key: _full(field.type, release, (*inside, name))
        for key, field in types()[name].items()
        if field.of(release) and field.inner not in inside
    }


def _full(kind: str, release: str, inside: tuple[str, ...]) -> Any:
    if kind.startswith("[]"):
        return [_full(kind[2:], release, inside)]
    if kind.startswith("{}"):
        return {"key": _full(kind[2:], release, inside)}
    return _VALUES[kind] if kind in _VALUES else full(kind, release, inside)


def strange(value: Any, kind: str, release: str, path: str = "") -> Iterator[str]:
    """Return the paths in a value of the type ``kind`` that ``release`` does not have."""
    if kind.startswith("[]"):
        for index, item in enumerate(value):
            yield from strange(item, kind[2:], release, f"{path}[{index}]")
    elif kind.startswith("{}"):
        for key, item in value.items():
            yield from strange(item, kind[2:], release, f"{path}[{key}]")
    elif kind in _VALUES:
        if isinstance(value, dict | list) and kind != "any":
            yield f"{path}: {value!r} is no {kind}"
    else:
        for key, item in value.items():
            field = types()[kind].get(key)
            if field is None or not field.of(release):
                yield f"{path}.{key}"
            else:
                yield from strange(item, field.type, release, f"{path}.{key}")


def dressed(value: Any, kind: str, wire: Any, release: str) -> Any:
    """Add to ``value`` of the type ``kind`` all fields of ``release`` that its decoder ``wire`` does not name."""
    if kind.startswith(("[]", "{}")):
        inner, of_wire = kind[2:], inside_of(wire)
        if isinstance(value, list):
            return [dressed(raw, inner, of_wire, release) for raw in value]
        return {key: dressed(raw, inner, of_wire, release) for key, raw in value.items()}
    read = structure(wire)
    if kind in _VALUES or read is None:
        return value
    named = {field.encode_name: field.type for field in read.fields}
    fields = types()[kind]
    more = {key: _full(field.type, release, (kind,)) for key, field in fields.items() if key not in named and field.of(release)}
    return more | {key: dressed(raw, fields[key].type, named.get(key), release) for key, raw in value.items()}


def structure(wire: Any) -> Any:
    """Return the structure that a type of ``msgspec.inspect`` is or contains as an option; None if there is none."""
    if isinstance(wire, msgspec.inspect.UnionType):
        return next((decoded for raw in wire.types if (decoded := structure(raw)) is not None), None)
    return wire if isinstance(wire, msgspec.inspect.StructType) else None


def inside_of(wire: Any) -> Any:
    """The type of what a list or a mapping holds."""
    match wire:
        case msgspec.inspect.UnionType(types=inner):
            return next((decoded for raw in inner if (decoded := inside_of(raw)) is not None), None)
        case msgspec.inspect.ListType(item_type=inner) | msgspec.inspect.DictType(value_type=inner):
            return inner
    return None
