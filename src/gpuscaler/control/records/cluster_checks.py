"""The checks of the doctor inside the controller: on what it watches anyway, in a thread, with a small share of the processor's time.

Results are in the status. New findings are logged, and get a Kubernetes Event on their object.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from gpuscaler.control.records.events.announcing import API_VERSIONS
from gpuscaler.control.records.events.happening import FOUND, HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.status.doctor_status import DoctorStatus, describe_group, describe_mistake, doctor_status, first_fix
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import INFO, Finding, Report, grouped
from gpuscaler.doctor.running import merged, run_checks
from gpuscaler.doctor.silencing import silence
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.quantities import format_count
from gpuscaler.settings.run_settings import DoctorSettings

#: The checks that need nothing but what the controller watches.
CONTINUOUS = tuple(check for check in CHECKS if check.continuous)
#: How often it is decided whether checks are due, the minimum interval between their beginnings, and the interval of checks of an unchanged
#: cluster, since some findings depend on the time, in seconds.
POLL_SECONDS, AGAIN_SECONDS, UNCHANGED_SECONDS = 5.0, 60.0, 600.0
#: The pause after each check, in multiples of the time that it took; and the time after which a check is stopped, in seconds: anyone may
#: write pods that are slow to look at, and must not keep the other checks from running.
PAUSE, LONGEST_SECONDS = 20.0, 10.0
#: A finding that is back within this time, in seconds, is not new. The API server keeps Events for an hour as well.
REMEMBERED_SECONDS = 3600.0
#: The most Events and log lines for the new findings of one time.
MOST_EVENTS, MOST_LINES = 200, 20
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_CLUSTER_SCOPED = ("Node", "Namespace")
_REASON, _ACTION = "DoctorFinding", "Check"
#: The API versions of the kinds on which findings are, beside those of workloads.
_API_VERSIONS = {**API_VERSIONS, "Pod": "v1", "Namespace": "v1", "PodDisruptionBudget": "policy/v1"}


@dataclass(slots=True)
class ClusterChecks:
    """Checks the latest cluster while this process leads, and sets ``latest.doctor``.

    ``settings`` and ``policy`` return those in force, ``is_leading`` whether this process leads. ``emit`` logs an event, and ``events``
    writes Events; ``own`` is the pod of this process, which gets those about what is no object of the cluster.
    """

    latest: Latest
    events: EventRecorder
    emit: Callable[[HistoryEvent], None]
    settings: Callable[[], DoctorSettings]
    policy: Callable[[], Policy]
    is_leading: Callable[[], bool]
    now: Callable[[], float]
    own: Reference | None = None
    checks: Sequence[Check] = CONTINUOUS
    #: When each finding was last there; None before the first checks of this process as the leader.
    _known: dict[tuple[str, str, str], float] | None = field(default=None, init=False)
    #: The inputs of the last checks, and when they began, by the clock of the event loop.
    _inputs: tuple[object, ...] = field(default=(), init=False)
    _began: float = field(default=float("-inf"), init=False)

    async def run(self) -> None:
        """Check whenever that is due, until cancelled."""
        while True:
            if not (self.is_leading() and self.settings().enabled):
                self.forget()
            elif self._is_due():
                await self._check()
            await asyncio.sleep(POLL_SECONDS)

    def forget(self) -> None:
        """Forget all findings: another process checks, or none."""
        self._known, self._inputs, self._began, self.latest.doctor = None, (), float("-inf"), DoctorStatus()
        self.latest.findings = ()

    def _is_due(self) -> bool:
        if not self.latest.observed_at:
            return False
        age = asyncio.get_running_loop().time() - self._began
        changed = self._inputs != self._current_inputs()
        return age >= (AGAIN_SECONDS if changed else UNCHANGED_SECONDS)

    def _current_inputs(self) -> tuple[object, ...]:
        return self.latest.cluster, self.settings(), self.latest.unlisted, self.policy()

    async def _check(self) -> None:
        loop, latest, settings = asyncio.get_running_loop(), self.latest, self.settings()
        self._began, self._inputs = loop.time(), self._current_inputs()
        cluster = latest.cluster
        evidence = Evidence(self.now(), cluster=cluster, policy=self.policy(), unlisted=latest.unlisted)
        reports = []
        for check in self.checks:
            began = loop.time()
            until = began + LONGEST_SECONDS
            reports.append(await asyncio.to_thread(run_checks, evidence, (check,), is_over=partial(_is_past, loop, until)))
            await asyncio.sleep(PAUSE * min(loop.time() - began, LONGEST_SECONDS))
        report = silence(merged(reports), evidence, settings.ignore)
        if self.is_leading() and self.settings() == settings:
            latest.doctor, latest.findings = doctor_status(report, evidence.now), report.findings
            self._announce(report, cluster, evidence.now)

    def _announce(self, report: Report, cluster: Cluster, now: float) -> None:
        """Report the new findings; those of the first checks are not new."""
        found = {(finding.check, finding.object, finding.field): finding for finding in report.findings}
        known, first = self._known or {}, self._known is None
        # A pod that cannot be placed has an Event and a line in the log with the reasons already.
        told = {f"Pod {unplaced.pod}" for unplaced in self.latest.plan.unplaced}
        new = tuple(
            finding for key, finding in found.items() if key not in known and finding.severity != INFO and finding.object not in told
        )
        self._known = {key: at for key, at in known.items() if now - at < REMEMBERED_SECONDS} | dict.fromkeys(found, now)
        if first:
            if new:
                text = f"the first checks of the cluster found {format_count(len(new), 'mistake')}; gpuscaler status lists them"
                self.emit(HistoryEvent(now, FOUND, text))
            return
        # The first of each group come first: a mistake of many nodes must not leave others without an Event.
        ranked = sorted(((rank, finding) for group in grouped(new) for rank, finding in enumerate(group.findings)), key=itemgetter(0))
        for _, finding in ranked[:MOST_EVENTS]:
            if (about := reference_of(finding.object, cluster) or self.own) is not None:
                self.events.record(about, _REASON, _note(finding, about=about is self.own), action=_ACTION, warning=True)
        groups = doctor_status(Report(new), now).groups
        for group in groups[:MOST_LINES]:
            fix = f"; fix: {group.fix}" if group.fix else ""
            self.emit(HistoryEvent(now, FOUND, f"{describe_group(group)}{fix}"))


def _is_past(loop: asyncio.AbstractEventLoop, time: float) -> bool:
    return loop.time() >= time


def _note(finding: Finding, *, about: bool) -> str:
    """The text of an Event; with the object if the Event is not on it."""
    name = f"{finding.object}: " if about else ""
    fix = first_fix(finding)
    return f"{finding.check}: {name}{describe_mistake(finding)}{f'; fix: {fix}' if fix else ''}"


def reference_of(title: str, cluster: Cluster) -> Reference | None:
    """The object with this title, ``Kind namespace/name``; None if it is no object of a cluster, such as a pool."""
    kind, _, path = title.partition(" ")
    namespace, _, name = path.rpartition("/")
    # Titles have names that people chose, such as those of the owners of their pods: an Event must not get onto a Node by them.
    if not _KIND.fullmatch(kind) or " " in path or not name or bool(namespace) == (kind in _CLUSTER_SCOPED):
        return None
    if kind == "Node":
        # The kubelet's Events about a node have the node's name as uid, and `kubectl describe node` looks for that as well.
        return Reference("Node", name, uid=name)
    homes: Mapping[str, Mapping[str, object]] = {"Pod": cluster.pods, "PodDisruptionBudget": cluster.budgets}
    found = homes[kind].get(path) if kind in homes else cluster.workloads.get(f"{kind}/{path}")
    return Reference(kind, name, namespace, getattr(found, "uid", ""), _API_VERSIONS.get(kind, ""))
