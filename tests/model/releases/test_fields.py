"""Every field of Kubernetes 1.29 to 1.37, decoded by the controller's readers."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.model.releases.fields import full, has, inside_of, releases, structure, type_of, types

from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.resources import WATCHED, Resource
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.kinds import reader_of

#: Fields that are read although no release from 1.29 on has them: until 1.22, node.k8s.io/v1alpha1 had all fields there.
OLDER = {"WireRuntimeClass.spec"}
#: The kinds of Kubernetes itself; the others are custom resources.
NATIVE = tuple(resource for resource in WATCHED if not resource.group.endswith(("x-k8s.io", "sigs.k8s.io", "volcano.sh")))


def served(resource: Resource, release: str) -> Resource | None:
    """Return the resource in the newest version of a release, as found by the controller."""
    versions = [resource.at(version) for version in (resource.version, *resource.older)]
    return next((resource for resource in versions if has(resource.api_version, resource.kind, release)), None)


@pytest.mark.parametrize("release", releases())
def test_every_release_serves_the_resources_that_the_controller_requires(release: str) -> None:
    missing = [resource.label for resource in WATCHED if not resource.optional and served(resource, release) is None]
    assert missing == []


@pytest.mark.parametrize(
    ("release", "missing"),
    [
        ("1.31", {"resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io"}),
        ("1.32", set()),
        ("1.35", set()),
    ],
)
def test_device_claims_are_read_from_the_release_with_the_beta_on(release: str, missing: set[str]) -> None:
    claims = [resource for resource in WATCHED if resource.group == "resource.k8s.io"]
    assert {resource.label for resource in claims if served(resource, release) is None} == missing


@pytest.mark.parametrize(("release", "kind"), [("1.34", None), ("1.35", "Workload"), ("1.36", "PodGroup"), ("1.37", "PodGroup")])
def test_native_gangs_of_kubernetes_are_read_from_releases_that_have_them(release: str, kind: str | None) -> None:
    decoded = [
        resource.kind for resource in WATCHED if resource.group == "scheduling.k8s.io" and resource.optional and served(resource, release)
    ]
    assert decoded == ([kind] if kind else [])


@pytest.mark.parametrize("release", releases())
def test_an_object_with_every_field_of_its_release_is_read(release: str) -> None:
    decoded = {}
    for resource in NATIVE:
        raw = served(resource, release)
        if raw is None:
            continue
        whole = {**full(type_of(raw.api_version, raw.kind), release), "apiVersion": raw.api_version, "kind": raw.kind}
        read = ObjectDecoder(raw, Interner()).read(msgspec.json.encode(whole))
        assert read.aside is None, f"{raw.kind}: {read.aside}"
        decoded[raw.kind] = len(read.items)
    assert decoded == dict.fromkeys(decoded, 1)
    assert len(decoded) >= 18


@pytest.mark.parametrize("release", releases())
def test_an_object_of_any_release_with_only_a_name_is_read(release: str) -> None:
    for resource in NATIVE:
        raw = served(resource, release)
        if raw is not None:
            bare = {"apiVersion": raw.api_version, "kind": raw.kind, "metadata": {"name": "bare"}}
            read = ObjectDecoder(raw, Interner()).read(msgspec.json.encode(bare))
            assert (read.aside, read.identity.rpartition("/")[2]) == (None, "bare")


def test_every_field_that_is_read_exists_in_some_release() -> None:
    """A structure may decode several types, such as all controllers: each of its fields must exist in one of them."""
    read: dict[type, set[str]] = {}
    for resource in NATIVE:
        reader = reader_of(resource.api_version, resource.kind)
        assert reader is not None
        wire = reader.decode.__self__.type  # type: ignore[attr-defined]
        _gather(msgspec.inspect.type_info(wire), {name for name in types() if name.rpartition(".")[2] == resource.kind}, read)
    unknown_fields = {
        f"{wire.__name__}.{name}"
        for wire, fields in read.items()
        for name in _names(wire)
        if not any(name in types()[their] for their in fields)
    }
    assert unknown_fields == OLDER


def _gather(wire: Any, fields: set[str], read: dict[type, set[str]]) -> None:
    """Record the types that a structure and its members decode."""
    structure = _struct(wire)
    if structure is None or fields <= read.get(structure.cls, set()):
        return
    read.setdefault(structure.cls, set()).update(fields)
    for field in structure.fields:
        inner = {types()[their][field.encode_name].inner for their in fields if field.encode_name in types()[their]}
        _gather(field.type, inner & types().keys(), read)


def _names(wire: type) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(wire))


def _struct(wire: Any) -> Any:
    """Return the structure that a type is, or contains as a list, mapping or option; None if there is none."""
    return structure(wire) or structure(inside_of(wire))


def test_the_stored_fields_cover_nine_releases() -> None:
    spec: Mapping[str, Any] = types()["core/v1.PodSpec"]
    assert releases() == tuple(f"1.{minor}" for minor in range(29, 38))
    assert (spec["workloadRef"].first, spec["workloadRef"].last) == ("1.35", "1.35")
    assert (spec["resources"].first, spec["schedulingGroup"].first) == ("1.32", "1.36")
