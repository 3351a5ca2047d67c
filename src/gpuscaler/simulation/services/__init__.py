"""Services that a load drives through the HorizontalPodAutoscaler's algorithm; their replicas are pods of a replay.

A replay reads :attr:`Services.next_at`, calls :meth:`Services.advance` then, and reports which pods run.
"""

import math

from msgspec import Struct

from gpuscaler.model.pods import NO_OPTIONS, Owner, PodSpec
from gpuscaler.simulation.services.deriving import Service, derived_from, services_of
from gpuscaler.simulation.services.loads import LoadFile, read_load
from gpuscaler.simulation.services.running import Replica, RunningService, ServiceResult
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import NAMESPACE, Member, Shaping, spec_of

__all__ = ["LoadFile", "PodChanges", "Service", "ServiceResult", "Services", "derived_from", "read_load", "services_of"]


class PodChanges(Struct, frozen=True, gc=False):
    """Pods to create now, and the keys ("namespace/name") of pods to end now. A new pod has an infinite duration."""

    add: tuple[Member, ...] = ()
    remove: tuple[str, ...] = ()


class Services:
    """The services of a load, from ``began`` (absolute seconds, the load's second 0) to the end of the last one.

    With ``fractional``, GPUs are requested in thousandths in this run. The same seed gives the same replicas for the same answers.
    """

    def __init__(
        self, services: tuple[Service, ...], *, began: float, seed: int = 0, shaping: Shaping | None = None, fractional: bool = False
    ) -> None:
        self._began = began
        self._running = [RunningService(service, began=began, seed=seed) for service in services]
        self._specs = [_spec(service, shaping or Shaping(), fractional=fractional) for service in services]
        self._owners = [Owner(kind="ReplicaSet", name=service.name, uid=service.name) for service in services]
        #: The service and the number of the replica behind each pod.
        self._pods: dict[str, tuple[int, int]] = {}

    @property
    def next_at(self) -> float:
        """When to call :meth:`advance` next; infinity once all services have ended. Any other call here may make it earlier."""
        return min((running.next_at for running in self._running), default=math.inf)

    def owns(self, key: str) -> bool:
        return key in self._pods

    def advance(self, now: float) -> PodChanges:
        """Let every autoscaler decide that is due."""
        add: list[Member] = []
        remove: list[str] = []
        for number, running in enumerate(self._running):
            if running.next_at <= now:
                new, removed = running.advance(now)
                add += [self._member(number, replica, now) for replica in new]
                remove += [self._key(number, replica) for replica in removed]
        for key in remove:
            del self._pods[key]
        return PodChanges(tuple(add), tuple(remove))

    def record_start(self, key: str, at: float) -> None:
        """A pod runs from ``at`` on, which may be in the future because of its image pull."""
        service, replica = self._pods[key]
        self._running[service].record_start(replica, at)

    def record_stop(self, key: str, now: float) -> None:
        """A pod lost its node and waits again."""
        service, replica = self._pods[key]
        self._running[service].record_stop(replica, now)

    def results(self) -> tuple[ServiceResult, ...]:
        """Results of the services so far, up to their last change."""
        return tuple(running.result() for running in self._running)

    def _member(self, service: int, replica: Replica, now: float) -> Member:
        running_service = self._running[service].service
        name = _name(running_service, replica)
        member = Member(
            name, self._specs[service], NO_OPTIONS, now - self._began, math.inf, float(running_service.gpus), owner=self._owners[service]
        )
        self._pods[member.key] = (service, replica.number)
        return member

    def _key(self, service: int, replica: Replica) -> str:
        return f"{NAMESPACE}/{_name(self._running[service].service, replica)}"


def _name(service: Service, replica: Replica) -> str:
    """A name that no job's pod has: a job's name has no '#', and a gang's members have a number after it."""
    return f"{service.name}#r{replica.number}"


def _spec(service: Service, shaping: Shaping, *, fractional: bool) -> PodSpec:
    job = Job(id=service.name, submit=0.0, duration=math.inf, gpus=service.gpus)
    return spec_of(job, shaping, fractional=fractional, restart_policy="Always")
