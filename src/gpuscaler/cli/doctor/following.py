"""Runs a smoke test on a live cluster: creates its Job, follows it, and removes what it created, whatever happens."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from gpuscaler.cli.leading import NotInstalledError, read_status, why_no_controller, why_stopped
from gpuscaler.control.records.words import format_duration
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.smoke.job import LABEL, SmokeTest, job_of
from gpuscaler.doctor.smoke.timeline import FINISHED, GONE, ORDERED, REMOVED, Observation, Timeline
from gpuscaler.doctor.smoke.verdicts import Verdict, verdict_of, waits_for
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from gpuscaler.kube.resources import CORE_EVENTS, JOBS, NODES, PODS, Resource
from gpuscaler.model.holds import BUYING
from gpuscaler.model.pools import Pool
from gpuscaler.model.quantities import format_count
from gpuscaler.model.wire import UnreadableError, parse_timestamp

_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
#: Seconds between two observations, and between two reads of the controller's status.
PAUSE, STATUS_PAUSE = 2.0, 10.0
#: All nodes are listed at most a tenth of the time, which matters in clusters of thousands.
NODES_PAUSE = 10.0
#: How long the connection may be lost before the test gives up, and how long removing its objects is tried, in seconds.
LOST_SECONDS, CLEAN_SECONDS = 120.0, 60.0
#: How much later than ``idle_after`` a machine may be gone: its end is planned, carried out by the cloud, and seen.
REMOVAL_MARGIN = 300.0
#: Clocks that differ by no more than this, in seconds, are not corrected: times in objects are cut to seconds.
CLOCK_MARGIN = 2.0


class RefusedError(Exception):
    """The test cannot succeed, so nothing was created; the text says why."""


class WireMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    creation_timestamp: str | None = None


class WireNode(msgspec.Struct):
    """The part of a node that tells whether the rest has to be decoded."""

    metadata: WireMetadata


@dataclass(slots=True)
class SmokeRun:
    """One run of ``test`` through ``client``, with the controller whose objects are in ``namespace``.

    ``now`` is this machine's wall clock; ``say`` gets a line for each stage when it is seen. ``idle_after`` is how long empty machines of a
    pool are kept, in seconds, by its name. What the run found is in ``timeline``, ``verdict``, ``ending`` (the machine's removal), and
    ``left`` (what could not be removed, and how to).
    """

    client: Client
    test: SmokeTest
    namespace: str
    now: Callable[[], float]
    say: Callable[[str], None]
    idle_after: Mapping[str, float] = field(default_factory=dict)
    new_machine: bool = False
    timeline: Timeline = field(init=False)
    verdict: Verdict | None = None
    ending: str = ""
    left: str = ""
    _offset: float = 0.0
    _told: set[str] = field(default_factory=set)
    _status: tuple[float, dict[str, str]] = (float("-inf"), {})
    _nodes_at: float = float("-inf")
    _withheld: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.test.resource)

    async def run(self) -> Verdict:
        """Run the test; the Job is removed also if it is cancelled.

        Raises :class:`RefusedError` if nothing was created because the test cannot succeed, ApiError and Unreachable.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self.test.deadline
        await self._check()
        # The request that creates the Job is never cut off: it would be unknown whether there is a Job.
        creating = asyncio.ensure_future(self._create())
        try:
            try:
                async with asyncio.timeout_at(end):
                    await asyncio.shield(creating)
                    self.verdict = await self._follow()
            except TimeoutError:
                text = f"not finished within {format_duration(self.test.deadline)}: still waiting for {waits_for(self.timeline)}"
                self.verdict = Verdict(False, text)
        finally:
            await self._clean_up(creating)
        if self.verdict.ran and not self.left:
            self._reached(GONE)
        if self.timeline.node:
            self.ending = await self._follow_machine(end if self.verdict.ran else clock())
        elif ORDERED in self.timeline.marks:
            self.ending = "A machine was ordered for it; once there, it is removed when it has been empty for the idle_after of its pool."
        return self.verdict

    # Before

    async def _check(self) -> None:
        """Check what the test needs: a controller, the rights to create and delete its Job, and to read what it follows."""
        if stopped := await why_no_controller(self.client, self.namespace, now=self.now()):
            raise RefusedError(stopped)
        for verb in ("create", "delete"):
            await self._check_right(verb)
        await self.client.list_all(PODS, namespace=self.test.namespace, query={"labelSelector": f"{LABEL}={self.test.name}"})
        nodes = [Document(msgspec.json.decode(data)) for data in await self.client.list_all(NODES)]
        if self.new_machine:
            names = tuple(
                node.labels.get("kubernetes.io/hostname", node.name)
                for node in nodes
                if node.value("status", "capacity", self.test.resource) or node.value("status", "allocatable", self.test.resource)
            )
            self.test = msgspec.structs.replace(self.test, avoided=tuple(sorted(names)))

    async def _check_right(self, verb: str) -> None:
        attributes = {"verb": verb, "group": JOBS.group, "resource": JOBS.plural, "namespace": self.test.namespace}
        body = {"apiVersion": _REVIEWS.api_version, "kind": _REVIEWS.kind, "spec": {"resourceAttributes": attributes}}
        try:
            answer = Document(msgspec.json.decode(await self.client.create(_REVIEWS, body)))
        except ApiError:
            return  # Not every server answers reviews; the request itself will be refused then.
        if answer.value("status", "allowed") is False:
            raise Forbidden(403, f"no permission to {verb} {JOBS.label} in namespace {self.test.namespace}", reason="Forbidden")

    # The Job

    async def _create(self) -> None:
        asked = self.now()
        self.say(f"Creating Job {self.test.namespace}/{self.test.name}")
        made = Document(msgspec.json.decode(await self.client.create(JOBS, job_of(self.test), namespace=self.test.namespace)))
        created = _seconds(made.text("metadata", "creationTimestamp"))
        if created and abs(created - asked) > CLOCK_MARGIN:
            self._offset = created - asked

    async def _follow(self) -> Verdict:
        """Observe the cluster until there is a verdict. A lost connection is awaited for a while."""
        clock = asyncio.get_running_loop().time
        lost: float | None = None
        while True:
            try:
                observed = await self._observe()
            except (Unreachable, ServerError, TooManyRequests) as error:
                if lost is None:
                    lost = clock()
                    self.say(f"the connection is lost, and tried again for {format_duration(LOST_SECONDS)}: {error}")
                if clock() - lost > LOST_SECONDS:
                    raise
            else:
                lost = None
                self._see(observed)
                if (verdict := verdict_of(self.timeline, observed)) is not None:
                    return verdict
            await asyncio.sleep(PAUSE)

    async def _observe(self) -> Observation:
        test = self.test
        try:
            job = Document(msgspec.json.decode(await self.client.get(JOBS, test.name, namespace=test.namespace)))
        except NotFound:
            job = None
        pods = await self.client.list_all(PODS, namespace=test.namespace, query={"labelSelector": f"{LABEL}={test.name}"})
        pod = next((Document(msgspec.json.decode(data)) for data in pods), None)
        pending = pod is None or not pod.text("spec", "nodeName")
        return Observation(
            at=self._cluster_time(),
            job=job,
            pod=pod,
            events=await self._events(test.name if pod is None else pod.name),
            nodes=await self._nodes(pod),
            **(await self._status_words(pod) if pending else {}),
        )

    async def _events(self, name: str) -> tuple[Document, ...]:
        """The Events about the object ``name``; none if they may not be read."""
        try:
            found = await self.client.list_all(
                CORE_EVENTS, namespace=self.test.namespace, query={"fieldSelector": f"involvedObject.name={name}"}
            )
        except Forbidden as error:
            self._withhold("events", error)
            return ()
        return tuple(Document(msgspec.json.decode(data)) for data in found)

    async def _nodes(self, pod: Document | None) -> dict[str, Document] | None:
        """The pod's node once it has one, until then the nodes that are newer than the Job; None if it is too soon to list all nodes."""
        name = pod.text("spec", "nodeName") if pod is not None else ""
        if name:
            try:
                return {name: Document(msgspec.json.decode(await self.client.get(NODES, name)))}
            except NotFound:
                return {}
        clock = asyncio.get_running_loop().time
        started = clock()
        if started < self._nodes_at or self.timeline.began is None:
            return None
        found = await self.client.list_all(NODES)
        self._nodes_at = clock() + NODES_PAUSE * (clock() - started)
        nodes = {}
        for data in found:
            metadata = msgspec.json.decode(data, type=WireNode).metadata
            if _seconds(metadata.creation_timestamp or "") >= self.timeline.began:
                nodes[metadata.name] = Document(msgspec.json.decode(data))
        return nodes

    async def _status_words(self, pod: Document | None) -> dict[str, str]:
        """What the status of the controller says about the pending pod, as fields of the next observation."""
        clock = asyncio.get_running_loop().time
        if clock() < self._status[0] + STATUS_PAUSE:
            return self._status[1]
        words = {}
        try:
            status = await read_status(self.client, self.namespace)
        except (NotInstalledError, ValueError) as error:
            words["stopped"] = f"no controller runs: {error}"
        else:
            key = pod.key if pod is not None else ""
            words["stopped"] = why_stopped(status, self.namespace, now=self.now())
            words["unplaced"] = next((entry.reason for entry in status.waiting if key in entry.pods), "")
            words["held"] = next((hold.text for hold in status.holds if hold.activity == BUYING), "")
        self._status = clock(), words
        return words

    def _see(self, observed: Observation) -> None:
        """Add ``observed`` to the timeline, and tell about new stages."""
        self.timeline = self.timeline.seen(observed)
        for row in self.timeline.rows():
            if row.stage not in self._told:
                self._told.add(row.stage)
                self.say(f"{format_duration(row.at):>6}  {row.stage}{f': {row.detail}' if row.detail else ''}")

    def _reached(self, stage: str) -> None:
        self.timeline = self.timeline.reached(stage, self._cluster_time())
        self._see(Observation(at=self._cluster_time()))

    def _cluster_time(self) -> float:
        return self.now() + self._offset

    def _withhold(self, what: str, error: Exception) -> None:
        if what not in self._withheld:
            self._withheld.add(what)
            self.say(f"{what} cannot be read, so less is known: {error}")

    # After

    async def _clean_up(self, creating: "asyncio.Future[None]") -> None:
        """Remove the Job if there may be one, and set ``left``.

        It goes on to its end whatever happens: what cancels this meanwhile is raised afterwards. Both the creation and the removal have
        time limits.
        """
        # What is printed if not even this comes to its end.
        self.left = self._describe_left("the test ended meanwhile")
        cleaning = asyncio.create_task(self._remove_created(creating), name="remove the Job of the smoke test")
        interrupted = False
        while not cleaning.done():
            try:
                await asyncio.wait([cleaning])
            except asyncio.CancelledError:
                interrupted = True
        self.left = cleaning.result()
        if interrupted:
            raise asyncio.CancelledError

    async def _remove_created(self, creating: "asyncio.Future[None]") -> str:
        await asyncio.wait([creating])
        return "" if _is_refused(creating) else await self._remove()

    async def _remove(self) -> str:
        """Delete the Job and wait until its pod is gone; returns what is left, with the command that removes it."""
        problem = "its pod is still terminating"
        self.say("Removing the Job and its pod")
        try:
            async with asyncio.timeout(CLEAN_SECONDS):
                while True:
                    try:
                        if await self._is_removed():
                            return ""
                    except Forbidden as error:
                        problem = str(error)
                        break
                    except (ApiError, Unreachable) as error:
                        problem = str(error)
                    await asyncio.sleep(1.0)
        except TimeoutError:
            pass
        return self._describe_left(problem)

    def _describe_left(self, problem: str) -> str:
        end = f"the Job ends by itself {format_duration(self.test.deadline)} after its creation, and is deleted some minutes later"
        job = f"Job {self.test.namespace}/{self.test.name}"
        return f"{job} could not be removed ({problem}); {end}. Remove it now: {self.test.removal_command}"

    async def _is_removed(self) -> bool:
        test = self.test
        try:
            await self.client.delete(JOBS, test.name, namespace=test.namespace, propagation="Background")
        except NotFound:
            return not await self.client.list_all(PODS, namespace=test.namespace, query={"labelSelector": f"{LABEL}={test.name}"})
        return False

    async def _follow_machine(self, end: float) -> str:
        """Wait until the new machine's node is gone, at most as long as its pool keeps empty machines; says what became of it."""
        clock, node = asyncio.get_running_loop().time, self.timeline.node
        if not self.timeline.on_new_node:
            return f"Node {node} was there before and had room: no machine was bought. --smoke-new-machine forces a new one."
        default = Pool("", ()).idle_after
        kept = self.idle_after.get(self.timeline.pool, default)
        known = "" if self.timeline.pool in self.idle_after else "; --config tells how long its pool keeps them"
        words = f"empty machines are kept for {format_duration(kept)} (idle_after{' by default' if known else ''}{known})"
        self.say(f"Waiting for the removal of node {node}: {words}")
        finished = self.timeline.marks.get(FINISHED)
        idle = 0.0 if finished is None else max(0.0, self._cluster_time() - finished.at)
        until = min(end, clock() + kept - idle + REMOVAL_MARGIN)
        while True:
            try:
                document = Document(msgspec.json.decode(await self.client.get(NODES, node)))
                self._see(Observation(at=self._cluster_time(), nodes={node: document}))
                if others := await self._others_on(node):
                    more = f"{format_count(len(others), 'other pod')}, such as {others[0]}"
                    return f"Node {node} is kept for {more}: it is removed {format_duration(kept)} after the last of them."
            except NotFound:
                self._reached(REMOVED)
                return f"Node {node} was removed."
            except (ApiError, Unreachable) as error:
                self._withhold(f"node {node}", error)
            if clock() >= until:
                return f"Node {node} is still there; {words}. gpuscaler why node {node} says why."
            await asyncio.sleep(min(5.0, max(PAUSE, until - clock())))

    async def _others_on(self, node: str) -> list[str]:
        """The pods that keep the node: all but those of DaemonSets, static ones and finished ones. Empty if they cannot be read."""
        try:
            found = await self.client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={node}"})
        except Forbidden as error:
            self._withhold(f"pods on node {node}", error)
            return []
        pods = [Document(msgspec.json.decode(data)) for data in found]
        return sorted(pod.key for pod in pods if LABEL not in pod.labels and _keeps_node(pod))


def _is_refused(creating: "asyncio.Future[None]") -> bool:
    """Whether the request to create the Job surely had no effect."""
    error = None if creating.cancelled() else creating.exception()
    return isinstance(error, ApiError) and not isinstance(error, ServerError)


def _keeps_node(pod: Document) -> bool:
    owners = {owner.text("kind") for owner in pod.parts("metadata", "ownerReferences")}
    static = "kubernetes.io/config.mirror" in pod.annotations
    return not static and "DaemonSet" not in owners and pod.text("status", "phase") not in ("Succeeded", "Failed")


def _seconds(text: str) -> float:
    try:
        return parse_timestamp(text, "")
    except UnreadableError:
        return 0.0
