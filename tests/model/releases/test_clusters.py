"""Clusters of Kubernetes 1.29 to 1.37, from stored objects to their plans."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.model.releases import clusters
from tests.model.releases.fields import dressed, releases, strange, type_of
from tests.planning.building import offering, planned, pool

from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.resources import WATCHED
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.kinds import reader_of

Json = dict[str, Any]
#: A day after the objects were created.
NOW = datetime(2026, 11, 2, 12, tzinfo=UTC).timestamp()
CASES = [(told, release) for told in clusters.TOLD for release in releases()]


def offerings() -> Iterable[Any]:
    for zone in ("z1", "z2"):
        # The second zone is more expensive: pods are placed there only if they must.
        more = 0.1 if zone == "z2" else 0.0
        yield offering("g.1", 1.0 + more, zone=zone, gpus=1, cpu=8, memory=32)
        yield offering("g.8", 6.0 + more, zone=zone, gpus=8, cpu=64, memory=256)


def read(found: Iterable[Json]) -> list[Item]:
    """Decode objects as the controller does; each must have a version that it requests."""
    items: list[Item] = []
    for raw in found:
        group, _, version = raw["apiVersion"].rpartition("/")
        resource = next(r for r in WATCHED if (r.group, r.kind) == (group, raw["kind"]))
        assert version in (resource.version, *resource.older)
        decoded = ObjectDecoder(resource.at(version), Interner()).read(msgspec.json.encode(raw))
        assert decoded.aside is None
        items += decoded.items
    return items


def outcome(items: list[Item]) -> dict[str, str]:
    """Return the place of each pending pod in the plan."""
    made = planned(items, pool(*offerings()), now=NOW)
    decoded = {pod: f"{machine.instance_type} in {machine.zone}" for machine in made.machines for pod in machine.pods}
    decoded |= {placement.pod: placement.node for placement in made.placements}
    decoded |= {ignored.pod: ignored.reason for ignored in made.ignored}
    decoded |= {unplaced.pod: "nowhere" for unplaced in made.unplaced}
    return {name.removeprefix("n/"): place for name, place in decoded.items()}


@pytest.mark.parametrize(("told", "release"), CASES)
def test_generated_objects_have_exactly_the_fields_of_their_release(told: str, release: str) -> None:
    for raw in clusters.objects(told, release):
        assert list(strange(raw, type_of(raw["apiVersion"], raw["kind"]), release)) == []


@pytest.mark.parametrize(("told", "release"), CASES)
def test_each_pod_is_planned_with_the_semantics_of_its_release(told: str, release: str) -> None:
    assert outcome(read(clusters.objects(told, release))) == clusters.then(told, release)


@pytest.mark.parametrize(("told", "release"), CASES)
def test_fields_that_are_not_read_change_no_plan(told: str, release: str) -> None:
    decoded = []
    for raw in clusters.objects(told, release):
        reader = reader_of(raw["apiVersion"], raw["kind"])
        assert reader is not None
        wire = msgspec.inspect.type_info(reader.decode.__self__.type)  # type: ignore[attr-defined]
        decoded.append(dressed(raw, type_of(raw["apiVersion"], raw["kind"]), wire, release))
    assert outcome(read(decoded)) == clusters.then(told, release)
    assert decoded != clusters.objects(told, release)
