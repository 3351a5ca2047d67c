"""What could not be understood, and why. One odd object never affects another."""

from collections.abc import Collection, Iterable

from msgspec import Struct

from gpuscaler.model.workloads import DeviceObject, PodGroup, Workload


class SetAside(Struct, frozen=True, gc=False, omit_defaults=True):
    """``object`` names it as ``Kind namespace/name`` (as much of it as could be read); ``reason`` says what was seen and expected.

    ``node`` is where a pod holds room: empty when it is bound to no node or has finished, None when that could not be read.
    """

    object: str
    reason: str
    node: str | None = None


def object_name(kind: type, key: str) -> str:
    """What a :class:`SetAside` calls the object that a cluster holds as ``kind`` under ``key``."""
    name, path = kind.__name__, key
    if kind in (Workload, DeviceObject):
        name, _, path = key.partition("/")
    elif kind is PodGroup:
        source, _, path = key.partition("/")
        name = "JobSet" if source == "jobset" else "PodGroup"
        if source == "workload" and path.count("/") > 1:
            # One of the groups of a native Workload, under a name behind the Workload's own.
            name, path = "Workload", path.rpartition("/")[0]
    return f"{name} {path.lstrip('/')}"


def still_aside(before: Iterable[SetAside], fresh: Iterable[SetAside], seen: Collection[str]) -> tuple[SetAside, ...]:
    """What is set aside once ``fresh`` was, too, and the objects of the names ``seen`` could be read or are gone.

    Only the latest word about an object counts. What could not even be named (its kind alone) has no identity, and stays.
    """
    latest = tuple(fresh)
    again = {entry.object for entry in latest if " " in entry.object}
    return tuple(dict.fromkeys((*(entry for entry in before if entry.object not in again and entry.object not in seen), *latest)))
