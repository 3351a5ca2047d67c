"""Create, update and delete, with the checks of a real API server's registry."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from gpuscaler.embedded.apiserver.kinds import EVENTS, NAMESPACES, NEW_EVENTS, PODS, Kind
from gpuscaler.embedded.apiserver.objects import admission, events
from gpuscaler.embedded.apiserver.store import Object, Store, Stored, key_of
from gpuscaler.embedded.apiserver.wire.failures import Failure, already_exists, bad_request, conflict, forbidden, invalid, not_found

#: Letters of generated names: no vowels, and no letters that are easily confused (``k8s.io/apimachinery/pkg/util/rand``).
ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
#: Kinds whose updates must name the version that they change.
VERSIONED: Final = frozenset({"leases", "poddisruptionbudgets", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"})
#: Kinds that an update creates if they do not exist.
CREATED_BY_UPDATE: Final = frozenset({"leases", "events", "services", "runtimeclasses"})
#: How long an Event is kept after it was last written, in seconds: kube-apiserver's ``--event-ttl``.
EVENT_SECONDS: Final = 3600.0
#: Fields of metadata that are left out if they are empty.
_LEFT_OUT: Final = frozenset({"labels", "annotations", "finalizers", "ownerReferences", "managedFields"})
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9:]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9:]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Deletion:
    """``DeleteOptions``: seconds of grace (None: the object's own), preconditions, and the treatment of dependents."""

    grace: int | None = None
    uid: str = ""
    revision: str = ""
    propagation: str = "Background"
    dry_run: bool = False


class Writer:
    """Changes ``store``. ``clock`` returns POSIX seconds; ``random`` draws uids and generated names."""

    def __init__(self, store: Store, *, clock: Callable[[], float], random: Random) -> None:
        self._store, self._clock, self._random = store, clock, random
        #: When which version of an Event expires, in the order of time.
        self._ageing: deque[tuple[float, str, int]] = deque()

    def now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def create(self, kind: Kind, namespace: str, obj: Object, *, dry_run: bool = False, managed: bool = False) -> Stored:
        """Store a new object; ``managed`` says that its managed fields are ours and not the client's."""
        kind, obj = _as_stored(kind, obj)
        metadata = obj["metadata"]
        self._check_namespace(kind, namespace, metadata)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(kind, "", (("FieldValueRequired", "metadata.name", "Required value: name or generateName is required"),))
            metadata["name"] = metadata["generateName"] + "".join(self._random.choices(ALPHABET, k=5))
        name = metadata["name"]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            why = (
                f"Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
            )
            raise invalid(kind, str(name), (("FieldValueInvalid", "metadata.name", why),))
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if self._store.get(kind, key_of(namespace, name)):
            raise already_exists(kind, name)
        for field in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", *(() if managed else ("managedFields",))):
            metadata.pop(field, None)
        metadata |= {"uid": self.uid(), "creationTimestamp": self.now(), "generation": 1}
        admission.prepare(kind, obj, self._store, now=metadata["creationTimestamp"])
        return self._store.stamp(kind, obj) if dry_run else self._put(kind, obj)

    def update(self, kind: Kind, namespace: str, name: str, obj: Object, *, part: str = "", dry_run: bool = False) -> Stored:
        """Replace the object, or only its ``part`` ``status``."""
        kind, obj = _as_stored(kind, obj)
        metadata = obj["metadata"]
        if metadata.setdefault("name", name) != name:
            raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
        before = self._store.get(kind, key_of(namespace, name))
        if before is None:
            if kind.plural in CREATED_BY_UPDATE and not part:
                return self.create(kind, namespace, obj, dry_run=dry_run)
            raise not_found(kind, name)
        self._check_namespace(kind, namespace, metadata, exists=True)
        self._check_revision(kind, before, metadata)
        old = before.read()
        new = admission.prepare_update(kind, obj, old, part=part)
        if new == old:
            return before
        return self.settle(kind, new, dry_run=dry_run)

    def settle(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Stored:
        """Store ``obj``, or remove it if it is being deleted and has no finalizer any more."""
        metadata = obj["metadata"]
        if dry_run:
            return self._store.stamp(kind, obj, revision=int(metadata["resourceVersion"]))
        waits = kind is PODS and metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not waits:
            return self._removed(kind, obj)
        return self._put(kind, obj)

    def _put(self, kind: Kind, obj: Object) -> Stored:
        stored = self._store.put(kind, obj)
        if kind is EVENTS:
            now = self._clock()
            self._ageing.append((now + EVENT_SECONDS, stored.key, stored.revision))
            while self._ageing[0][0] <= now:
                _, key, revision = self._ageing.popleft()
                old = self._store.get(EVENTS, key)
                if old is not None and old.revision == revision:
                    self._store.remove(EVENTS, old.read())
        return stored

    def delete(self, kind: Kind, namespace: str, name: str, options: Deletion) -> Stored:
        """Begin or finish the deletion; the answer's ``metadata.deletionTimestamp`` and the store show which."""
        stored = self._store.get(kind, key_of(namespace, name))
        if stored is None:
            raise not_found(kind, name)
        _preconditions(kind, name, stored, options)
        if kind is NAMESPACES and name in ("default", "kube-system", "kube-public"):
            raise forbidden(kind, name, "this namespace may not be deleted")
        obj = stored.read()
        metadata = obj["metadata"]
        grace = admission.grace_period(obj, options.grace) if kind is PODS else 0
        if (left := metadata.get("deletionGracePeriodSeconds")) is not None:
            grace = min(grace, left)
            if grace == left and (grace or metadata.get("finalizers")):
                return stored
        ends = datetime.fromtimestamp(self._clock() + grace, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata |= {"deletionTimestamp": ends, "deletionGracePeriodSeconds": grace}
        if options.dry_run:
            return self._store.stamp(kind, obj, revision=stored.revision)
        if options.propagation == "Orphan":
            self._release(metadata["uid"])
        return self.settle(kind, obj)

    def _removed(self, kind: Kind, obj: Object) -> Stored:
        removed = self._store.remove(kind, obj)
        if kind is NAMESPACES:
            for collection in self._store:
                for inner in collection.within(obj["metadata"]["name"]) if collection.kind.namespaced else ():
                    self._collect(collection.kind, inner.key)
        for dependent, key in self._store.dependents(obj["metadata"]["uid"]):
            if not any(self._store.exists(uid) for uid in self._store[dependent].objects[key].owners):
                self._collect(dependent, key)
        return removed

    def _collect(self, kind: Kind, key: str) -> None:
        # Its removal may have removed others of the same list.
        if self._store.get(kind, key):
            namespace, _, name = key.rpartition("/")
            self.delete(kind, namespace, name, Deletion())

    def _release(self, uid: str) -> None:
        for kind, key in self._store.dependents(uid):
            obj = self._store[kind].objects[key].read()
            owners = obj["metadata"]["ownerReferences"]
            obj["metadata"]["ownerReferences"] = [owner for owner in owners if owner.get("uid") != uid]
            self._store.put(kind, obj)

    def uid(self) -> str:
        digits = f"{self._random.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], f"4{digits[13:16]}", f"a{digits[17:20]}", digits[20:]))

    def _check_namespace(self, kind: Kind, namespace: str, metadata: Object, *, exists: bool = False) -> None:
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return
        if (metadata.get("namespace") or namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace
        if not exists and self._store.get(NAMESPACES, namespace) is None:
            raise not_found(NAMESPACES, namespace)

    def _check_revision(self, kind: Kind, before: Stored, metadata: Mapping[str, Any]) -> None:
        name = before.key.rpartition("/")[2]
        revision, uid = metadata.get("resourceVersion") or "", metadata.get("uid") or before.uid
        if not revision and kind.plural in VERSIONED:
            why = "Invalid value: 0: must be specified for an update"
            raise invalid(kind, name, (("FieldValueInvalid", "metadata.resourceVersion", why),))
        if revision and revision != str(before.revision):
            raise conflict(kind, name)
        if uid != before.uid:
            raise conflict(kind, name, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before.uid}")


def _as_stored(kind: Kind, obj: Object) -> tuple[Kind, Object]:
    """``obj``, which must be of ``kind``, as it is stored. Raises a 400 Failure if it is of another kind."""
    version, name = obj.setdefault("apiVersion", kind.api_version), obj.setdefault("kind", kind.kind)
    if version != kind.api_version:
        raise bad_request(f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})")
    if name != kind.kind:
        raise bad_request(f'{name} in version "{version}" cannot be handled as a {kind.kind}')
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request(f"metadata of a {kind.kind} is an object")
    # Go leaves out empty fields; if they were stored, an apply that changes nothing would be a change.
    obj["metadata"] = {name: value for name, value in metadata.items() if value or name not in _LEFT_OUT}
    return (EVENTS, events.to_core(obj)) if kind is NEW_EVENTS else (kind, obj)


def _preconditions(kind: Kind, name: str, stored: Stored, options: Deletion) -> None:
    if options.uid and options.uid != stored.uid:
        raise conflict(kind, name, f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {stored.uid}")
    if options.revision and options.revision != str(stored.revision):
        why = f"Precondition failed: ResourceVersion in precondition: {options.revision}, ResourceVersion in object meta: {stored.revision}"
        raise conflict(kind, name, why)


def deletion(query: Mapping[str, str], body: Mapping[str, Any]) -> Deletion:
    """The options of a delete, from its body or else its query. Raises a 400 Failure if they cannot be read."""
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    preconditions = body.get("preconditions") or {}
    try:
        seconds = None if grace is None else int(grace)
    except (TypeError, ValueError) as error:
        raise bad_request(f"gracePeriodSeconds {grace!r} is not a number of seconds") from error
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if propagation not in ("Background", "Foreground", "Orphan"):
        raise Failure(422, "Invalid", f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{propagation}"')
    dry_run = bool(body.get("dryRun")) or query.get("dryRun") == "All"
    return Deletion(seconds, preconditions.get("uid") or "", preconditions.get("resourceVersion") or "", propagation, dry_run)
