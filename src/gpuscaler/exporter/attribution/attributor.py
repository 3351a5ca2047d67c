"""Finds the containers that use each GPU of the node. The exporter calls it once per sampling interval."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuscaler.exporter.attribution.allocations import Allocations
from gpuscaler.exporter.attribution.cgroups import LivePods, ProcessPods
from gpuscaler.exporter.attribution.checkpoint import CheckpointError, read_checkpoint
from gpuscaler.exporter.attribution.ids import DeviceIndex
from gpuscaler.exporter.attribution.kubelet import KubeletError, PodResources
from gpuscaler.exporter.attribution.names import ContainerNames
from gpuscaler.exporter.attribution.resolving import Node, Ownership, resolve_owners, resolve_processes
from gpuscaler.exporter.attribution.view import ApiView, Server
from gpuscaler.exporter.parts import Attribution, Device, Owner, Process
from gpuscaler.kube.resources import PODS, RESOURCE_SLICES, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Paths on the node, as the exporter sees them. A path that is not mounted is reported as trouble only if it is needed."""

    socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    checkpoint: Path = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    containers: Path = Path("/var/log/containers")
    cgroups: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")

    @classmethod
    def of_kubelet(cls, socket: Path) -> "NodePaths":
        """The paths of a kubelet with another root folder, which keeps its checkpoint there too."""
        return cls(socket=socket, checkpoint=socket.parent.parent / "device-plugins" / "kubelet_internal_checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds.

    ``timeout`` is the limit of one request to the kubelet, ``spacing`` the least time between two. After ``patience`` a caller gets the
    last answer instead of a new one; the last answer is used for ``kept`` while there is no new one.
    """

    timeout: float = 1.0
    spacing: float = 0.2
    patience: float = 0.5
    kept: float = 60.0


@dataclass(frozen=True, slots=True)
class _AttributionPass:
    """One answer, and the resources of the API server that are needed to complete it."""

    attribution: Attribution
    resources: tuple[Resource, ...] = ()


class NodeAttributor:
    """The :class:`~gpuscaler.exporter.parts.Attributor` of a Kubernetes node.

    Files and the kubelet are read in a separate thread, so that a kubelet or a disk that hangs blocks nothing else. ``cluster`` is asked
    for what the node itself does not show, and may be None. ``clock`` is monotonic, in seconds.
    """

    def __init__(self, places: NodePaths, *, clock: Callable[[], float], cluster: Server | None = None, pace: Pace = Pace()) -> None:
        self._places, self._clock, self._cluster, self._pace = places, clock, cluster, pace
        self._kubelet = PodResources(places.socket, timeout=pace.timeout)
        self._names = ContainerNames(places.containers)
        self._live = LivePods(places.cgroups)
        self._processes = ProcessPods(places.proc)
        self._listed: tuple[Allocations, float] | None = None
        self._last_request: tuple[str, float] | None = None
        self._worker = ThreadPoolExecutor(1, "attribution")
        self._pending: asyncio.Future[_AttributionPass] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._last: tuple[Attribution, float] | None = None

    async def attribute(self, devices: Sequence[Device], processes: Sequence[Process]) -> Attribution:
        """The owners of ``devices`` and the containers of ``processes``, within ``patience``; the last answer if there is no new one."""
        self._collect_result()
        if self._pending is None:
            view = self._cluster.view if self._cluster else ApiView()
            self._pending = asyncio.get_running_loop().run_in_executor(self._worker, self._run_pass, tuple(devices), tuple(processes), view)
        await asyncio.wait([self._pending], timeout=self._pace.patience)
        self._collect_result()
        if self._last is None or self._clock() - self._last[1] > self._pace.kept:
            return Attribution(trouble=f"no answer yet from the kubelet at {self._places.socket} and its files")
        return self._last[0]

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self._pending is not None:
            self._pending.cancel()
        # Closed in the thread that uses it: a request that is in progress ends first.
        self._worker.submit(self._kubelet.close)
        self._worker.shutdown(wait=False)

    def _collect_result(self) -> None:
        """Take the answer of the worker thread, if it is ready."""
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            result = pending.result()
            self._last = result.attribution, self._clock()
            self._refresh_cluster(result.resources)

    def _refresh_cluster(self, resources: tuple[Resource, ...]) -> None:
        due = [resource for resource in resources if self._cluster and self._cluster.due(resource)]
        if self._cluster and due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._cluster.refresh(due[0]), name="names of pods from the API server")

    def _run_pass(self, devices: tuple[Device, ...], processes: tuple[Process, ...], view: ApiView) -> _AttributionPass:
        allocations, source, troubles = self._allocations()
        self._names.refresh()
        node = Node(self._names, self._live.uids(), view)
        ownership = resolve_owners(allocations.allocations, DeviceIndex(devices), node)
        containers, unnamed = self._process_owners(processes, ownership, node)
        unnamed |= ownership.unnamed
        troubles += [*allocations.problems, *self._describe_unresolved(ownership)]
        if processes and containers is None and any(len(owners) > 1 for owners in ownership.owners.values()):
            troubles.append(f"processes on shared GPUs cannot be told apart; expected hostPID, and {self._places.containers} mounted")
        if view.trouble and (unnamed or ownership.unsliced):
            troubles.append(view.trouble)
        resources = [PODS] if unnamed or (source == "checkpoint" and node.live is None) else []
        if ownership.unsliced:
            resources.append(RESOURCE_SLICES)
        return _AttributionPass(Attribution(ownership.owners, containers, source, "; ".join(troubles)), tuple(resources))

    def _allocations(self) -> tuple[Allocations, str, list[str]]:
        """The allocations, their source, and problems."""
        now = self._clock()
        trouble = self._list_allocations(now)
        if self._listed is not None and (not trouble or now - self._listed[1] <= self._pace.kept):
            return self._listed[0], "pod-resources", [trouble] if trouble else []
        try:
            return read_checkpoint(self._places.checkpoint), "checkpoint", [trouble]
        except CheckpointError as error:
            return Allocations(), "", [trouble, str(error)]

    def _list_allocations(self, now: float) -> str:
        """Ask the kubelet, unless it was asked just now; return the problem, or empty."""
        if self._last_request is not None and now - self._last_request[1] < self._pace.spacing:
            return self._last_request[0]
        trouble = ""
        try:
            self._listed = self._kubelet.allocations(), now
        except KubeletError as error:
            trouble = str(error)
        self._last_request = trouble, now
        return trouble

    def _process_owners(
        self, processes: tuple[Process, ...], ownership: Ownership, node: Node
    ) -> tuple[dict[int, Owner] | None, frozenset[str]]:
        """The container of each process, None if processes cannot be told apart; and UIDs of pods without a known name."""
        places = self._processes.places({process.pid for process in processes})
        if places is None:
            return None, frozenset()
        containers = resolve_processes(places, ownership.owners, node)
        unnamed = frozenset(process_pod.uid for pid, process_pod in places.items() if pid not in containers)
        return (containers if containers or not places else None), unnamed

    def _describe_unresolved(self, ownership: Ownership) -> list[str]:
        problems = []
        if ownership.unknown:
            more = f" and {len(ownership.unknown) - 3} more" if len(ownership.unknown) > 3 else ""
            problems.append(f"the driver has no {', '.join(ownership.unknown[:3])}{more}")
        if ownership.unnamed:
            count = f"pods with GPUs of which only the UID is known: {len(ownership.unnamed)}"
            problems.append(f"{count}; expected {self._places.containers} mounted, or access to the API server")
        return problems
