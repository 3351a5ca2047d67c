"""Records a trace of real events: pods and machines as they come and go, reported one after the other.

Second 0 is the Monday before the recording began, so that days of the week are kept. Rows of pods and machines that still exist contain
what is known so far; :meth:`Recording.resume` continues from such rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuscaler.model.accelerators import count_accelerators, node_accelerators
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.well_known import GPU_PRODUCT
from gpuscaler.simulation.traces.formats.tidy import COLUMNS, MORE_COLUMNS
from gpuscaler.simulation.traces.jobs import MIB
from gpuscaler.simulation.traces.machine_prices import Offer
from gpuscaler.simulation.traces.traces import MONDAY, WEEK

#: Columns of the trace, and of the machines beside it. Columns that `simulate` does not use come last.
JOB_COLUMNS = (*COLUMNS, *MORE_COLUMNS, "start_s", "status", "trace", "pod_uids")
MACHINE_COLUMNS = (
    "node", "pool", "market", "instance_type", "zone", "gpus", "begin_s", "end_s", "usd_per_hour", "price_source", "status", "trace", "uid",
)  # fmt: skip
#: Prefix of values of the column ``trace``.
RECORDED = "recorded from "
#: Status of existing and of finished rows.
THERE, OVER = "there", "over"
#: Owners of pods that belong to a node and are not work.
OF_NODES = frozenset({"DaemonSet", "Node"})
BEFORE, UNSEEN, RUNNING = "was there before the recording", "ended while nothing was recorded", "ran on after the recording"

RecordedRow = tuple[object, ...]
#: Namespace and name of a gang, and the request of one of its pods: GPUs, millicores, bytes.
Gang = tuple[str, str, tuple[int, int, int]]


@dataclass(slots=True)
class Work:
    """A pod, or a gang of them: one row. Times are seconds since second 0; ``start`` is None until all existing pods have started."""

    id: str
    submit: float
    size: tuple[int, int, int]
    models: tuple[str, ...]
    priority: int
    namespace: str
    gang: Gang | None = None
    notes: set[str] = field(default_factory=set)
    start: float | None = None
    end: float = 0.0
    over: bool = False
    most: int = 0
    uids: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Machine:
    """A node's machine: one row."""

    node: str
    uid: str
    offer: Offer
    gpus: int
    begin: float
    end: float = 0.0
    over: bool = False

    @property
    def dollars(self) -> float | None:
        """Its cost between ``begin`` and ``end``; None if its price is unknown."""
        return None if self.offer.price is None else self.offer.price * (self.end - self.begin) / 3600


class Recording:
    """Takes in pods and nodes as they change; ``now`` is always in seconds since the epoch.

    ``offer_of`` returns how a node's machine was bought. ``unserved`` counts pods that were deleted without ever having started.
    """

    def __init__(self, *, began: float, offer_of: Callable[[Node], Offer]) -> None:
        self.began = began
        self.unserved = 0
        #: Rows that will not change any more.
        self.over: list[RecordedRow] = []
        self.machines: list[Machine] = []
        self._offer_of = offer_of
        self._uids: dict[str, str] = {}
        #: Pods that have ended and still exist; whatever their status says later, they do not start again.
        self._finished: dict[str, str] = {}
        self._work: dict[str, Work] = {}
        self._open: dict[str, Work] = {}
        self._gangs: dict[Gang | None, Work] = {}
        self._nodes: dict[str, Machine] = {}
        #: Existing pods and machines according to rows of an earlier recording; one that is not seen again ended meanwhile.
        self._unconfirmed: set[str] = set()
        #: Whether everything that existed at the beginning has been reported.
        self._settled = False

    @property
    def origin(self) -> float:
        """Second 0, in seconds since the epoch."""
        return (self.began - MONDAY) // WEEK * WEEK + MONDAY

    @property
    def trace(self) -> str:
        return f"{RECORDED}{datetime.fromtimestamp(self.began, UTC).isoformat()}"

    # Pods

    def pod(self, key: str, pod: Pod | None, now: float) -> None:
        """Record that the pod ``namespace/name`` is now ``pod``, or gone."""
        at = now - self.origin
        before = self._uids.get(key)
        if before is not None and (pod is None or pod.uid != before):
            self._end_pod(before, at)
            del self._uids[key]
        if pod is None or pod.uid != self._finished.get(key):
            self._finished.pop(key, None)
        if pod is None or pod.options.mirror or pod.owner.kind in OF_NODES or key in self._finished:
            return
        self._unconfirmed.discard(pod.uid)
        if pod.finished:
            self._finished[key] = pod.uid
            self._end_pod(pod.uid, at)
            return
        self._uids[key] = pod.uid
        gang = gang_of(pod)
        work = self._work.get(pod.uid) or self._work_of(pod, gang, at)
        if gang is not None:
            # Set here too, since a row of an earlier recording does not contain it.
            work.gang = gang
            self._gangs[gang] = work
        work.alive.add(pod.uid)
        if pod.phase == "Running" and pod.uid not in work.started:
            self._start_pod(work, pod, at)

    def _work_of(self, pod: Pod, gang: Gang | None, at: float) -> Work:
        """The row of a new pod: its own, or that of its gang if at least one other pod of it exists."""
        work = self._gangs.get(gang)
        if work is None:
            name = pod.options.gang or pod.name
            work = Work(
                # Traces take names of 240 characters at most; the uid keeps them apart.
                id=f"{pod.namespace}.{name}"[:230] + f".{pod.uid[:8]}",
                submit=max(self.began, pod.created or at + self.origin) - self.origin,
                size=size_of(pod),
                models=models_of(pod),
                priority=pod.spec.priority or 0,
                namespace=pod.namespace,
            )
            if pod.created < int(self.began):
                work.notes.add(BEFORE)
            self._open[work.id] = work
        work.uids.add(pod.uid)
        self._work[pod.uid] = work
        return work

    def _start_pod(self, work: Work, pod: Pod, at: float) -> None:
        # If a pod runs already when the recording begins, only its kubelet knows its start.
        started = pod.started - self.origin if pod.started and not self._settled else at
        work.started.add(pod.uid)
        running = len(work.alive & work.started)
        if running > work.most:
            # A gang works once all of it is there. Members that replace others come later, and change nothing.
            work.most = running
            work.start = max(work.submit, work.start or 0.0, started)

    def _end_pod(self, uid: str, at: float) -> None:
        work = self._work.pop(uid, None)
        if work is None or work.over:
            return
        work.alive.discard(uid)
        if not work.alive:
            work.over, work.end = True, at
            del self._open[work.id]
            self._gangs.pop(work.gang, None)
            if work.start is None:
                self.unserved += len(work.uids)
            else:
                self.over.append(self._row(work))

    # Machines

    def node(self, name: str, node: Node | None, now: float) -> None:
        """Record that the node is now ``node``, or gone."""
        at = now - self.origin
        machine = self._nodes.get(name)
        if machine is not None and (node is None or node.uid != machine.uid):
            machine.over, machine.end = True, at
            del self._nodes[name]
            machine = None
        if node is None:
            return
        self._unconfirmed.discard(node.uid)
        gpus = node_accelerators(node.allocatable, node.labels)
        if machine is None:
            begin = max(self.began, node.created or now) - self.origin
            self._nodes[name] = machine = Machine(name, node.uid, self._offer_of(node), gpus, begin)
            self.machines.append(machine)
        elif not machine.offer.instance_type:
            # A cloud's own controller adds these labels to a node after it has registered.
            machine.offer = self._offer_of(node)
        machine.gpus = max(machine.gpus, gpus)

    # Rows

    def settle(self) -> None:
        """All existing objects have been reported: rows of an earlier recording that were not seen again ended when last seen."""
        for uid in self._unconfirmed:
            work = self._work.get(uid)
            if work is not None:
                work.notes.add(UNSEEN)
                self._end_pod(uid, work.end)
        for name in [name for name, machine in self._nodes.items() if machine.uid in self._unconfirmed]:
            self._nodes.pop(name).over = True
        self._unconfirmed.clear()
        self._settled = True

    def until(self, now: float) -> None:
        """Record that all existing objects exist until ``now``."""
        for work in self._open.values():
            work.end = now - self.origin
        for machine in self._nodes.values():
            machine.end = now - self.origin

    def open_rows(self) -> Iterator[RecordedRow]:
        """Rows of work that has started and still exists; together with ``over``, all of :data:`JOB_COLUMNS`."""
        return (self._row(work) for work in self._open.values() if work.start is not None)

    def _row(self, work: Work) -> RecordedRow:
        gpus, cpu, memory = work.size
        start = work.start or 0.0
        notes = work.notes if work.over else {*work.notes, RUNNING}
        length = round(max(0.0, work.end - start), 3)
        amounts = (work.most, gpus, 1000, cpu, -(-memory // MIB))
        attributes = ("|".join(work.models), work.priority, "", work.namespace, "; ".join(sorted(notes)))
        rest = (round(start, 3), OVER if work.over else THERE, self.trace, "|".join(sorted(work.uids)))
        return (work.id, round(work.submit, 3), length, *amounts, *attributes, *rest)

    def machine_rows(self) -> Iterator[RecordedRow]:
        """Rows of :data:`MACHINE_COLUMNS`."""
        for machine in self.machines:
            offer, price = machine.offer, machine.offer.price
            times = (round(machine.begin, 3), round(machine.end, 3), "" if price is None else price, offer.source)
            rest = (OVER if machine.over else THERE, self.trace, machine.uid)
            yield (machine.node, offer.pool, offer.market, offer.instance_type, offer.zone, machine.gpus, *times, *rest)

    def resume(self, jobs: Iterable[Mapping[str, str]], machines: Iterable[Mapping[str, str]]) -> None:
        """Continue from rows that were written before. Raises ValueError or KeyError for rows that were not."""
        for row in jobs:
            self._resume_begin(row)
            self._resume_work(row)
        for row in machines:
            self._resume_begin(row)
            self._resume_machine(row)

    def _resume_begin(self, row: Mapping[str, str]) -> None:
        """Take over the beginning of the earlier recording."""
        began, trace = row["trace"].removeprefix(RECORDED), row["trace"]
        if began == trace:
            raise ValueError(f"saw {trace!r} in the column trace, expected {RECORDED}…")
        self.began = datetime.fromisoformat(began).timestamp()

    def _resume_work(self, row: Mapping[str, str]) -> None:
        if row["status"] == OVER:
            self.over.append(tuple(row.values()))
            return
        uids = set(row["pod_uids"].split("|"))
        start, memory = float(row["start_s"]), int(row["mem_mib"]) * MIB
        work = Work(
            id=row["job_id"],
            submit=float(row["submit_s"]),
            size=(int(row["gpus_per_pod"]), int(row["cpu_milli"]), memory),
            models=tuple(filter(None, row["gpu_model"].split("|"))),
            priority=int(row["priority"]),
            namespace=row["namespace"],
            notes=set(filter(None, row["note"].split("; "))) - {RUNNING},
            start=start,
            end=start + float(row["duration_s"]),
            most=int(row["n_pods"]),
            uids=uids,
            alive=set(uids),
            started=set(uids),
        )
        self._open[work.id] = work
        self._work.update(dict.fromkeys(uids, work))
        self._unconfirmed |= uids

    def _resume_machine(self, row: Mapping[str, str]) -> None:
        price = float(row["usd_per_hour"]) if row["usd_per_hour"] else None
        offer = Offer(row["pool"], row["market"], row["instance_type"], row["zone"], price, row["price_source"])
        over = row["status"] == OVER
        begin, end = float(row["begin_s"]), float(row["end_s"])
        machine = Machine(row["node"], row["uid"], offer, int(row["gpus"]), begin, end, over)
        self.machines.append(machine)
        if not over:
            self._nodes[machine.node] = machine
            self._unconfirmed.add(machine.uid)


def size_of(pod: Pod) -> tuple[int, int, int]:
    """GPUs, millicores and bytes that a pod requests."""
    requests = pod.spec.requests
    return count_accelerators(requests), requests.get("cpu", 0), requests.get("memory", 0)


def gang_of(pod: Pod) -> Gang | None:
    """The gang that shares one row with this pod; None for a pod with a separate row."""
    return (pod.namespace, pod.options.gang, size_of(pod)) if pod.options.gang else None


def models_of(pod: Pod) -> tuple[str, ...]:
    """The GPU products that a pod's node selector allows; empty for any."""
    product = dict(pod.spec.node_selector).get(GPU_PRODUCT)
    return () if product is None else (product,)
