"""PATCH: selects the kind of patch, and applies it."""

from typing import Any

from gpuscaler.embedded.apiserver.kinds import NEW_EVENTS, Kind
from gpuscaler.embedded.apiserver.objects import events
from gpuscaler.embedded.apiserver.patch.json_patches import json_patch, merge
from gpuscaler.embedded.apiserver.patch.server_side_apply import server_side_apply
from gpuscaler.embedded.apiserver.patch.strategic import strategic_merge
from gpuscaler.embedded.apiserver.routing import Target
from gpuscaler.embedded.apiserver.store import Object, Store, Stored, key_of
from gpuscaler.embedded.apiserver.wire import bodies
from gpuscaler.embedded.apiserver.wire.failures import bad_request, not_found, unsupported_media_type
from gpuscaler.embedded.apiserver.writing import Writer
from gpuscaler.kube.transport import Request

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
OPERATIONS, APPLY = "application/json-patch+json", "application/apply-patch+yaml"


def apply_patch(old: Object, patch: Any, *, media: str, custom: bool) -> Object:
    """``old`` after ``patch``. Raises a Failure: 415 for an unsupported kind of patch, 400 or 422 for one that fails."""
    if media == STRATEGIC and custom:
        raise unsupported_media_type((OPERATIONS, MERGE, APPLY))
    if media == OPERATIONS:
        new = json_patch(old, patch)
    elif media not in (MERGE, STRATEGIC):
        raise unsupported_media_type((OPERATIONS, MERGE, STRATEGIC, APPLY))
    elif not isinstance(patch, dict):
        raise bad_request("error decoding patch: a patch of an object is an object")
    else:
        new = merge(old, patch) if media == MERGE else strategic_merge(old, patch)
    if not isinstance(new, dict):
        raise bad_request("error decoding patch: what comes of it is not an object")
    return new


def _shown(kind: Kind, stored: Stored) -> Object:
    return events.to_new(stored.read()) if kind is NEW_EVENTS else stored.read()


class Patcher:
    """Applies patches to objects of ``store``."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer

    def patch(self, place: Target, request: Request) -> tuple[Stored, bool]:
        """The object after the patch, and whether the patch (an apply) created it."""
        kind, media = place.kind, bodies.media_type(request)
        value = bodies.read(request, MERGE, STRATEGIC, OPERATIONS, APPLY)
        dry_run = request.query.get("dryRun") == "All"
        before = self._store.get(kind, key_of(place.namespace, place.name))
        if media == APPLY:
            return self._apply(place, request, value, before)
        if before is None:
            raise not_found(kind, place.name)
        new = apply_patch(_shown(kind, before), value, media=media, custom=kind.custom)
        return self._writer.update(kind, place.namespace, place.name, new, part=place.part, dry_run=dry_run), False

    def _apply(self, place: Target, request: Request, value: Any, before: Stored | None) -> tuple[Stored, bool]:
        kind, dry_run = place.kind, request.query.get("dryRun") == "All"
        if before is None and place.part:
            raise not_found(kind, place.name)
        old = _shown(kind, before) if before else {}
        new = server_side_apply(place, old, value, query=request.query, now=self._writer.now())
        if before is None:
            return self._writer.create(kind, place.namespace, new, dry_run=dry_run, managed=True), True
        return self._writer.update(kind, place.namespace, place.name, new, part=place.part, dry_run=dry_run), False
