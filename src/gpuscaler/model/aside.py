"""Objects that could not be parsed, with reasons. One malformed object never affects another."""

from collections.abc import Collection, Iterable

from msgspec import Struct

from gpuscaler.model.workloads import DeviceObject, PodGroup, Workload


class Skipped(Struct, frozen=True, gc=False, omit_defaults=True):
    """A skipped object. ``object`` is ``Kind namespace/name`` (as far as it could be read); ``reason`` says what was seen and expected.

    ``node`` is the node on which a pod uses resources: empty if it is unbound or has finished, None if that could not be read.
    """

    object: str
    reason: str
    node: str | None = None


def object_name(kind: type, key: str) -> str:
    """Return the name in :class:`Skipped` of the object that a cluster holds as ``kind`` under ``key``."""
    name, path = kind.__name__, key
    if kind in (Workload, DeviceObject):
        name, _, path = key.partition("/")
    elif kind is PodGroup:
        source, _, path = key.partition("/")
        name = "JobSet" if source == "jobset" else "PodGroup"
        if source == "workload" and path.count("/") > 1:
            # A group of a native Workload, with a name after the Workload's own.
            name, path = "Workload", path.rpartition("/")[0]
    return f"{name} {path.lstrip('/')}"


def merge_skipped(previous: Iterable[Skipped], added: Iterable[Skipped], seen: Collection[str]) -> tuple[Skipped, ...]:
    """Merge skipped objects: ``added`` are added, and those in ``seen`` are removed, because they could be read or are gone.

    Only the latest entry of an object counts. An entry without a name (only a kind) has no identity, and stays.
    """
    latest = tuple(added)
    added_objects = {entry.object for entry in latest if " " in entry.object}
    return tuple(dict.fromkeys((*(entry for entry in previous if entry.object not in added_objects and entry.object not in seen), *latest)))
