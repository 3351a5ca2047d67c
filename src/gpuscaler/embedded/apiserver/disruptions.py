"""Maintains the status of disruption budgets, which decides about evictions, as Kubernetes' disruption controller does.

Source: ``k8s.io/kubernetes/pkg/controller/disruption/disruption.go``, Kubernetes 1.35.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gpuscaler.embedded.apiserver.evictions import is_ready, selector, set_condition
from gpuscaler.embedded.apiserver.kinds import BUDGETS, BY_NAME, PODS
from gpuscaler.embedded.apiserver.store import Collection, Object, Store, change_in, key_of

#: Seconds that a pod counts as gone after its eviction was granted, until its deletion is seen.
DELETION_TIMEOUT: Final = 120.0
#: Seconds for which changes are gathered.
DEBOUNCE: Final = 0.05
#: Seconds after which budgets are checked again even without a change, because grants expire.
RESYNC: Final = 30.0


class Disruptions:
    """Checks the budgets of a namespace whenever its pods or budgets change. ``timestamp`` returns the time as Kubernetes writes it."""

    def __init__(self, store: Store, *, clock: Callable[[], float], timestamp: Callable[[], str]) -> None:
        self._store, self._clock, self._timestamp = store, clock, timestamp
        self._seen: dict[str, int] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        watched = [self._store[kind] for kind in (PODS, BUDGETS)]
        while True:
            # Positions are taken before statuses are written: the budgets' own changes cause one more check, which finds nothing to do.
            namespaces = self._changed_namespaces(watched)
            for stored in self._store[BUDGETS].within(""):
                namespace = stored.key.partition("/")[0]
                if namespaces is None or namespace in namespaces:
                    self._update_status(namespace, stored.read())
            if any(collection.position > self._seen[collection.kind.plural] for collection in watched):
                await asyncio.sleep(DEBOUNCE)
                continue
            if not await change_in(watched, RESYNC):
                self._seen.clear()
            await asyncio.sleep(DEBOUNCE)

    def _changed_namespaces(self, watched: Sequence[Collection]) -> set[str] | None:
        """The namespaces with changes since the last time, or None for all."""
        namespaces: set[str] | None = set()
        for collection in watched:
            since = self._seen.get(collection.kind.plural)
            changes = None if since is None else collection.changes(since, most=collection.position - since)
            self._seen[collection.kind.plural] = collection.position
            if changes is None:
                namespaces = None
            elif namespaces is not None:
                namespaces |= {change.stored.key.partition("/")[0] for change in changes}
        return namespaces

    def _update_status(self, namespace: str, budget: Object) -> None:
        chosen = selector((budget.get("spec") or {}).get("selector"))
        matching = [s for s in self._store[PODS].within(namespace) if chosen is not None and chosen.matches(s.labels)]
        pods = [stored.read() for stored in matching]
        before = budget.get("status") or {}
        scale = self._scale(namespace, pods)
        budget["status"] = {**before, **budget_status(budget, pods, scale=scale, now=self._clock())}
        allowed = budget["status"]["disruptionsAllowed"] > 0
        previous = [item for item in before.get("conditions") or () if item.get("type") == "DisruptionAllowed"]
        if not previous or (previous[0].get("status") == "True") is not allowed:
            condition = {"type": "DisruptionAllowed", "status": "True" if allowed else "False", "message": ""}
            reason = "SufficientPods" if allowed else "InsufficientPods"
            set_condition(budget, {**condition, "reason": reason, "lastTransitionTime": self._timestamp()})
        if budget["status"] != before:
            self._store.put(BUDGETS, budget)

    def _scale(self, namespace: str, pods: Sequence[Object]) -> int | None:
        """How many pods their controllers want, or None if one of them has no scale."""
        wanted: dict[str, int] = {}
        for pod in pods:
            owner = _controller(pod)
            controller = self._find_owner(namespace, owner) if owner else None
            if owner is None:
                continue
            above = _controller(controller) if controller else None
            controller = self._find_owner(namespace, above) or controller if above else controller
            replicas = ((controller or {}).get("spec") or {}).get("replicas")
            if controller is None or not isinstance(replicas, int):
                return None
            wanted[controller["metadata"]["uid"]] = replicas
        return sum(wanted.values())

    def _find_owner(self, namespace: str, owner: Mapping[str, Any]) -> Object | None:
        kind = BY_NAME.get((str(owner.get("apiVersion")), str(owner.get("kind"))))
        stored = self._store.get(kind, key_of(namespace, str(owner.get("name")))) if kind else None
        return stored.read() if stored and stored.uid == owner.get("uid") else None


def _controller(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def budget_status(budget: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], *, scale: int | None, now: float) -> Object:
    """The status of ``budget`` over ``pods`` at ``now``, in POSIX seconds; if it needs ``scale`` and that is None, no pod may go."""
    spec, before = budget.get("spec") or {}, (budget.get("status") or {}).get("disruptedPods") or {}
    alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    granted = {pod["metadata"]["name"]: before[pod["metadata"]["name"]] for pod in alive if pod["metadata"]["name"] in before}
    granted = {name: time for name, time in granted.items() if datetime.fromisoformat(time).timestamp() + DELETION_TIMEOUT > now}
    healthy = sum(1 for pod in alive if is_ready(pod) and pod["metadata"]["name"] not in granted)
    most, least = spec.get("maxUnavailable"), spec.get("minAvailable")
    expected, is_known = (scale or 0, scale is not None) if most is not None or isinstance(least, str) else (len(pods), True)
    desired = max(0, expected - _share(most, expected)) if most is not None else _share(least or 0, expected)
    return {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "disruptedPods": granted,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - desired) if is_known and expected > 0 else 0,
    }


def _share(value: int | str, whole: int) -> int:
    """A count, or a percentage of ``whole``, rounded up."""
    return math.ceil(int(value.removesuffix("%")) * whole / 100) if isinstance(value, str) else value
