"""Events are one kind with two API groups: the core group, and ``events.k8s.io`` with different field names.

Source: ``k8s.io/kubernetes/pkg/apis/events/v1`` (conversion), Kubernetes 1.35. They are stored in the form of the core group.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.embedded.apiserver.store import Object

_NEW_NAMES: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_OLD_NAMES: Final[Mapping[str, str]] = {new: old for old, new in _NEW_NAMES.items()}


def to_new(event: Object) -> Object:
    """A core Event in the form of ``events.k8s.io/v1``; kind and version come first, as in every stored body."""
    renamed = {_NEW_NAMES.get(name, name): value for name, value in event.items() if name not in ("kind", "apiVersion")}
    return {"kind": "Event", "apiVersion": "events.k8s.io/v1", **renamed}


def to_core(event: Object) -> Object:
    """An Event of ``events.k8s.io/v1`` in the form of the core group."""
    renamed = {_OLD_NAMES.get(name, name): value for name, value in event.items() if name not in ("kind", "apiVersion")}
    return {"kind": "Event", "apiVersion": "v1", **renamed}
