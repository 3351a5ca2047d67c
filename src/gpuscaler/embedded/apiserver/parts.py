"""Subresources: status, scale, binding and eviction."""

from typing import Final

from gpuscaler.embedded.apiserver import evictions
from gpuscaler.embedded.apiserver.kinds import PODS
from gpuscaler.embedded.apiserver.patch.patch import Patcher, apply_patch
from gpuscaler.embedded.apiserver.reading import render
from gpuscaler.embedded.apiserver.routing import Target
from gpuscaler.embedded.apiserver.store import Object, Store, Stored, key_of
from gpuscaler.embedded.apiserver.wire import bodies
from gpuscaler.embedded.apiserver.wire.failures import Failure, bad_request, conflict, method_not_allowed, no_such_path, not_found
from gpuscaler.embedded.apiserver.wire.replies import json_reply, reply
from gpuscaler.embedded.apiserver.writing import Writer, deletion
from gpuscaler.kube.transport import Answer, Request

#: Subresources of a pod that need its containers.
_INSIDE: Final = ("log", "exec", "attach", "portforward", "ephemeralcontainers")
_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Parts:
    """Answers requests for a subresource."""

    def __init__(self, store: Store, writer: Writer, patcher: Patcher) -> None:
        self._store, self._writer, self._patcher = store, writer, patcher

    def answer(self, place: Target, request: Request) -> Answer:
        kind = place.kind
        if place.part == "status" and kind.status:
            return self._status(place, request)
        if place.part == "scale" and kind.scale:
            return json_reply(self._scale(place, request))
        if place.part in ("binding", "eviction") and kind is PODS:
            if request.method != "POST":
                raise method_not_allowed()
            self._find(place)
            act = self._bind if place.part == "binding" else self._evict
            act(place, request)
            return json_reply(_SUCCESS, status=201)
        if place.part in _INSIDE and kind is PODS:
            self._find(place)
            raise bad_request(f"{place.part} of pod {place.name}: pods of this cluster are only simulated, no container runs in them")
        raise no_such_path()

    def _find(self, place: Target) -> Stored:
        stored = self._store.get(place.kind, key_of(place.namespace, place.name))
        if stored is None:
            raise not_found(place.kind, place.name)
        return stored

    def _status(self, place: Target, request: Request) -> Answer:
        dry_run = request.query.get("dryRun") == "All"
        match request.method:
            case "GET":
                stored = self._find(place)
            case "PUT":
                self._find(place)
                obj = bodies.read_object(request)
                stored = self._writer.update(place.kind, place.namespace, place.name, obj, part="status", dry_run=dry_run)
            case "PATCH":
                stored, _ = self._patcher.patch(place, request)
            case _:
                raise method_not_allowed()
        return reply(render(place.kind, stored))

    def _scale(self, place: Target, request: Request) -> Object:
        before = self._find(place)
        obj = before.read()
        scale = _scale_of(obj)
        if request.method == "GET":
            return scale
        if request.method == "PUT":
            wanted = bodies.read_object(request)
        elif request.method == "PATCH":
            value = bodies.read(request, *_PATCHES)
            wanted = apply_patch(scale, value, media=bodies.media_type(request), custom=False)
        else:
            raise method_not_allowed()
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise Failure(422, "Invalid", f'Scale "{place.name}" is invalid: spec.replicas: Invalid value: {replicas}: must be a count')
        obj["spec"]["replicas"] = replicas
        obj["metadata"]["resourceVersion"] = (wanted.get("metadata") or {}).get("resourceVersion") or str(before.revision)
        dry_run = request.query.get("dryRun") == "All"
        return _scale_of(self._writer.update(place.kind, place.namespace, place.name, obj, dry_run=dry_run).read())

    def _bind(self, place: Target, request: Request) -> None:
        """Bind the pod to a node, as a scheduler does; labels and annotations of the Binding are added to the pod."""
        binding = bodies.read_object(request)
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise bad_request("a Binding needs target.name, the node")
        stored = self._find(place)
        pod = stored.read()
        uid = (binding.get("metadata") or {}).get("uid")
        if uid and uid != stored.uid:
            raise conflict(PODS, place.name, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}")
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict(PODS, place.name, f"pod {place.name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise conflict(PODS, place.name, f'pod {place.name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        if pod["spec"].get("schedulingGates"):
            raise bad_request(f"pod {place.name} has non-empty .spec.schedulingGates")
        pod["spec"]["nodeName"] = node
        for field in ("labels", "annotations"):
            if extra := (binding.get("metadata") or {}).get(field):
                pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **extra}
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": self._writer.now()}
        evictions.set_condition(pod, scheduled)
        if request.query.get("dryRun") != "All":
            self._store.put(PODS, pod)

    def _evict(self, place: Target, request: Request) -> None:
        body = bodies.read_object(request)
        named = (body.get("metadata") or {}).get("name") or place.name
        if named != place.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = deletion(request.query, body.get("deleteOptions") or {})
        evictions.evict(self._store, self._writer, self._find(place), options)


_PATCHES: Final = ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json")


def _scale_of(obj: Object) -> Object:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = (spec.get("selector") or {}).get("matchLabels", spec.get("selector") or {})
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata[field] for field in kept if field in metadata},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {"replicas": status.get("replicas", 0), "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))},
    }
