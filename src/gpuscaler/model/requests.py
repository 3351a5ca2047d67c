"""Resource requests of a pod, as kube-scheduler computes them from the stored object.

Source: ``PodRequests`` of ``k8s.io/component-helpers/resource/helpers.go`` (1.35 to 1.37), and the defaults that the API server fills in
before storing (``SetDefaults_Pod``), which templates of workloads still lack. Fields behind feature gates are counted whenever they are
present: if the gate is off, the API server stores none (pod-level resources are on from 1.34, their resize from 1.36).
Sums are computed in thousandths, the precision to which the API server rounds every amount.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import field

from gpuscaler.model.quantities import QuantityError, parse_milli, shorten_value
from gpuscaler.model.wire import Int32, UnreadableError, Wire

#: Quantities as unparsed text; JSON numbers are quantities too, and null is zero.
Quantities = Mapping[str, str | int | float | None]
#: Amounts in thousandths of the base unit.
Milli = dict[str, int]

#: Maximum request of a container, or of a pod as a whole, in base units.
LARGEST = 2**53
#: Limit for sums of requests of several pods, in base units: more than any node has, and differences of two such sums fit into int64.
FULL = 2**62
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_PREFIXED = ("hugepages-", "attachable-volumes-")


class ResourceRequirements(Wire):
    requests: dict[str, str | int | float | None] | None = None
    limits: dict[str, str | int | float | None] | None = None


class ContainerPort(Wire):
    container_port: Int32 | None = None
    host_port: Int32 | None = None
    protocol: str | None = None
    host_ip: str | None = field(default=None, name="hostIP")


class Container(Wire):
    name: str | None = None
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None

    @property
    def sidecar(self) -> bool:
        """Whether this init container keeps running alongside the others."""
        return self.restart_policy == "Always"


class ContainerStatus(Wire):
    """Status of a container or of a whole pod: ``resources`` are in force, ``allocated_resources`` are promised by the node."""

    name: str | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int | float | None] | None = None


def pod_requests(
    containers: Sequence[Container],
    init_containers: Sequence[Container] = (),
    *,
    overhead: Quantities | None = None,
    pod_level: ResourceRequirements | None = None,
    pod_status: ContainerStatus | None = None,
    statuses: Sequence[ContainerStatus] = (),
    infeasible: bool = False,
) -> dict[str, int]:
    """Return the effective requests in base units, rounded up, without zeros and resources that the scheduler does not count.

    ``statuses``, and ``pod_status`` for ``pod_level``, matter during a resize: the largest of desired, allocated and actual counts, or only
    the latter two if the node reported the resize as ``infeasible``. 1.37 compares sums over all containers; older releases compare
    container by container, which is never less. Raises :class:`UnreadableError` with a path below the pod's ``spec``.
    """
    status_of = {status.name: status for status in statuses}

    def effective(container: Container, path: str, resizable: bool) -> Milli:
        desired = _with_defaults(container, path)
        status = status_of.get(container.name) if resizable else None
        if status is None or status.resources is None:
            return desired
        return _resized_requests(desired, status, f"{path}.", infeasible)

    total = _aggregate(containers, init_containers, effective)
    if pod_level is not None:
        level = _pod_level(containers, init_containers, pod_level)
        if pod_status is not None:
            level = _at_pod_level(_resized_requests(level, pod_status, "", infeasible))
        total.update(level)
    _add(total, parse_amounts(overhead, "overhead"))
    return _check_bounds({name: amount for name, milli in total.items() if (amount := _in_base_units(name, milli))})


def _check_bounds(requests: dict[str, int]) -> dict[str, int]:
    """Return ``requests``. Raises :class:`UnreadableError` if the sum over a pod's containers exceeds the limit of a container."""
    for name, amount in requests.items():
        if amount > LARGEST:
            raise UnreadableError(f"the sum of {name} over all containers", f"{amount:.3g}", f"at most {LARGEST} in base units")
    return requests


def parse_amounts(quantities: Quantities | None, path: str) -> Milli:
    """Return ``quantities`` in thousandths. Raises :class:`UnreadableError` for invalid, negative or absurdly large ones."""
    result: Milli = {}
    for name, text in (quantities or {}).items():
        try:
            value = 0 if text is None else parse_milli(text)
        except QuantityError as error:
            raise UnreadableError(f"{path}.{name}", shorten_value(error.seen), error.expected) from error
        if value < 0:
            raise UnreadableError(f"{path}.{name}", shorten_value(text), "a quantity of zero or more")
        if value > LARGEST * (1 if name == "cpu" else 1000):
            raise UnreadableError(f"{path}.{name}", shorten_value(text), f"at most {LARGEST} in base units")
        result[name] = value
    return result


def node_resources(quantities: Quantities | None, path: str) -> dict[str, int]:
    """Return a node's resources in base units, rounded up, including ``pods``. Values out of range are capped, unlike those of pods."""
    result: dict[str, int] = {}
    for name, text in (quantities or {}).items():
        try:
            value = 0 if text is None else parse_milli(text)
        except QuantityError as error:
            raise UnreadableError(f"{path}.{name}", shorten_value(error.seen), error.expected) from error
        result[name] = min(max(0, value if name == "cpu" else -(-value // 1000)), LARGEST)
    return result


def _in_base_units(name: str, milli: int) -> int:
    """Convert an amount to base units; 0 for names that the scheduler does not count: non-native ones without a domain."""
    if name == "cpu":
        return milli
    return -(-milli // 1000) if "/" in name or name in _PLAIN or name.startswith(_PREFIXED) else 0


def _with_defaults(container: Container, path: str) -> Milli:
    """Return the container's requests; a limit replaces a missing request."""
    resources = container.resources
    if resources is None:
        return {}
    requests = parse_amounts(resources.requests, f"{path}.resources.requests")
    return parse_amounts(resources.limits, f"{path}.resources.limits") | requests


def _limits(container: Container, path: str, _resizable: bool) -> Milli:
    return parse_amounts(container.resources.limits, f"{path}.resources.limits") if container.resources else {}


def _aggregate(
    containers: Sequence[Container], init_containers: Sequence[Container], amounts_of: Callable[[Container, str, bool], Milli]
) -> Milli:
    """Return the sum of all containers and sidecars, or the peak while an init container runs with the sidecars started before it."""
    total: Milli = {}
    for index, container in enumerate(containers):
        _add(total, amounts_of(container, f"containers[{index}]", True))
    sidecars: Milli = {}
    peak: Milli = {}
    for index, container in enumerate(init_containers):
        requests = amounts_of(container, f"initContainers[{index}]", container.sidecar)
        if container.sidecar:
            _add(total, requests)
            _add(sidecars, requests)
            peak = _largest(peak, sidecars)
        else:
            running = dict(sidecars)
            _add(running, requests)
            peak = _largest(peak, running)
    return _largest(total, peak)


def _pod_level(containers: Sequence[Container], init_containers: Sequence[Container], resources: ResourceRequirements) -> Milli:
    """Return pod-level requests with the API server's defaults; only cpu, memory and huge pages count at this level."""
    requests = parse_amounts(resources.requests, "resources.requests")
    limits = parse_amounts(resources.limits, "resources.limits")
    if requests or limits:
        for name, amount in _aggregate(containers, init_containers, _limits).items():
            if name.startswith("hugepages-") and name not in requests:
                limits.setdefault(name, amount)
    if limits:
        of_containers = _aggregate(containers, init_containers, lambda container, path, _: _with_defaults(container, path))
        for name in ("cpu", "memory"):
            if name in of_containers:
                requests.setdefault(name, of_containers[name])
        for name, amount in limits.items():
            requests.setdefault(name, amount)
    return _at_pod_level(requests)


def _at_pod_level(requests: Milli) -> Milli:
    return {name: amount for name, amount in requests.items() if name in ("cpu", "memory") or name.startswith("hugepages-")}


def _resized_requests(desired: Milli, status: ContainerStatus, path: str, infeasible: bool) -> Milli:
    actual = parse_amounts(status.resources.requests if status.resources else None, f"{path}resources.requests in the status")
    allocated = parse_amounts(status.allocated_resources, f"{path}allocatedResources in the status")
    return _largest(actual, allocated) if infeasible else _largest(desired, actual, allocated)


def _add(total: Milli, added: Milli) -> None:
    for name, amount in added.items():
        total[name] = total.get(name, 0) + amount


def _largest(*candidates: Milli) -> Milli:
    result: Milli = {}
    for candidate in candidates:
        for name, amount in candidate.items():
            if amount > result.get(name, -1):
                result[name] = amount
    return result
