"""The doctor's checks inside the controller, in virtual time: a budget that never allows an eviction appears, is mended, is silenced."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs
from tests.control.records.test_service import events, running_service, status
from tests.control.world import ONE_GPU_MACHINES, World

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.cli.status import print_status
from gpuscaler.control.records import cluster_checks
from gpuscaler.control.records.cluster_checks import CONTINUOUS, reference_of
from gpuscaler.control.records.service import Service
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import INFO, WARNING, Finding, Fix, Report
from gpuscaler.kube.events import Reference
from gpuscaler.kube.resources import EVENTS, POD_DISRUPTION_BUDGETS
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.settings.run_settings import DoctorSettings, IgnoredFinding, RunSettings

#: Checks are made within this time after a change, and are in the status that is written then.
SOON = 90.0
FIX = "kubectl patch poddisruptionbudget web --namespace default"


async def make_budget(here: World, name: str = "web", **spec: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": name}}, **(spec or {"maxUnavailable": 0})}}
    await here.user.create(POD_DISRUPTION_BUDGETS, body, namespace="default")


async def change_budget(here: World, patch: dict[str, Any], name: str = "web") -> None:
    await here.user.merge_patch(POD_DISRUPTION_BUDGETS, name, patch, namespace="default")


async def found(here: World) -> list[tuple[str, str, int, tuple[str, ...]]]:
    return [(group.check, group.severity, group.count, group.objects) for group in (await status(here)).doctor.groups]


async def doctor_events(here: World) -> list[tuple[str, str]]:
    return [(name, note) for name, reason, note in await events(here) if reason == "DoctorFinding"]


def metric(service: Service) -> list[str]:
    return [
        line for line in generate_latest(service.metrics.registry).decode().splitlines() if line.startswith("gpuscaler_doctor_findings{")
    ]


def set_doctor(service: Service, doctor: DoctorSettings) -> None:
    service.settings_changed(RunSettings(parse_policy(ONE_GPU_MACHINES), doctor=doctor))


ONE = [("D34", "warning", 1, ("PodDisruptionBudget default/web",))]


async def test_a_mistake_that_appears_is_in_all_records_and_leaves_the_status_when_it_is_mended(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as lines:
        async with running_service() as (here, service):
            await here.sleep(SOON)
            before = (await status(here)).doctor
            await make_budget(here)
            await here.sleep(SOON)
            appeared, counted, written = await found(here), metric(service), await doctor_events(here)
            print_status(await status(here), here.now())
            await here.sleep(1000.0)
            lasting = await doctor_events(here)
            bodies = [msgspec.json.decode(body) for body in await here.user.list_all(EVENTS)]
            await change_budget(here, {"spec": {"maxUnavailable": 1}})
            await here.sleep(SOON)
            mended, counted_after = (await status(here)).doctor, metric(service)

    assert before.at > 0.0
    assert before.groups == ()
    assert appeared == ONE
    assert counted == ['gpuscaler_doctor_findings{check="D34",severity="warning"} 1.0']
    ((name, note),) = written
    assert name == "PodDisruptionBudget web"
    assert note.startswith("D34: spec.maxUnavailable: saw 0, expected at least 1; its pods can never be evicted")
    assert FIX in note
    assert lasting == written
    (event,) = (body for body in bodies if body["reason"] == "DoctorFinding")
    assert event["type"] == "Warning"
    assert event["regarding"]["apiVersion"] == "policy/v1"
    assert event["regarding"]["uid"]
    assert "series" not in event
    printed = capsys.readouterr().out
    assert "Findings (0 critical, 1 warning, 0 info; checked" in printed
    assert "  WARNING D34 PodDisruptionBudget default/web: spec.maxUnavailable: saw 0" in printed
    assert f"    fix: {FIX}" in printed
    assert [line["log_level"] for line in lines if line.get("kind") == "found"] == ["warning"]
    assert (mended.groups, mended.counts) == ((), ())
    assert counted_after == []


async def test_what_the_first_checks_find_gets_one_line_in_the_log_and_no_event() -> None:
    with capture_logs() as lines:
        async with running_service() as (here, service):
            service.led_by(None)
            await make_budget(here)
            await here.sleep(SOON)
            service.led_by(here.controller)
            await here.sleep(SOON)
            appeared, written = await found(here), await doctor_events(here)

    assert appeared == ONE
    assert written == []
    assert [line["event"] for line in lines if line.get("kind") == "found"] == [
        "the first checks of the cluster found 1 mistake; gpuscaler status lists them"
    ]


async def test_a_finding_that_comes_and_goes_gets_one_event_an_hour() -> None:
    async with running_service() as (here, service):
        await here.sleep(SOON)
        for _ in range(3):
            await make_budget(here)
            await here.sleep(SOON)
            await here.user.delete(POD_DISRUPTION_BUDGETS, "web", namespace="default")
            await here.sleep(SOON)
        within = await doctor_events(here), service.events.written
        await here.sleep(cluster_checks.REMEMBERED_SECONDS)
        await make_budget(here)
        await here.sleep(SOON)
        later = service.events.written

    assert (len(within[0]), within[1]) == (1, 1)
    assert later == 2


async def test_an_annotation_silences_a_finding() -> None:
    async with running_service() as (here, service):
        await here.sleep(SOON)
        await make_budget(here)
        await here.sleep(SOON)
        before = await found(here)
        await change_budget(here, {"metadata": {"annotations": {"gpuscaler.io/ignore-findings": "D34"}}})
        await here.sleep(SOON)
        doctor, counted = (await status(here)).doctor, metric(service)

    assert before == ONE
    assert (doctor.groups, doctor.counts, doctor.silenced) == ((), (), 1)
    assert counted == []


async def test_an_exception_in_the_run_file_silences_a_finding_until_it_ends() -> None:
    exception = IgnoredFinding("D34", "PodDisruptionBudget default/*", "moved by hand", "2027-01-15")
    evening = datetime(2027, 1, 15, 23, 30, tzinfo=UTC).timestamp()
    async with running_service(began=evening) as (here, service):
        set_doctor(service, DoctorSettings(ignore=(exception,)))
        await make_budget(here)
        await here.sleep(SOON)
        silenced, written = (await status(here)).doctor, await doctor_events(here)
        await here.sleep(3600.0)
        (back,) = (await status(here)).doctor.groups
        notes = [note for _, note in await doctor_events(here)]

    assert (silenced.groups, silenced.silenced, written) == ((), 1, [])
    assert back.text.endswith('(the exception for it ("moved by hand") ended on 2027-01-15)')
    assert len(notes) == 1
    assert "ended on 2027-01-15" in notes[0]


async def test_checks_that_are_switched_off_leave_no_findings() -> None:
    async with running_service() as (here, service):
        await make_budget(here)
        await here.sleep(SOON)
        before = await found(here)
        set_doctor(service, DoctorSettings(enabled=False))
        await here.sleep(SOON)
        off = (await status(here)).doctor
        set_doctor(service, DoctorSettings())
        await here.sleep(SOON)
        after = await found(here)

    assert before == after == ONE
    assert (off.at, off.groups) == (0.0, ())


def broken_check(_evidence: Evidence) -> list[Finding]:
    raise ValueError("an odd object")


async def test_a_check_that_raises_is_named_and_neither_other_checks_nor_the_controller_suffer() -> None:
    async with running_service() as (here, service):
        service.cluster_checks.checks = (Check("D99", "odd things", (), broken_check), *CONTINUOUS)
        await make_budget(here)
        await here.submit("a")
        await here.sleep(200.0)
        doctor, bound = (await status(here)).doctor, await here.bound()
        failures = service.failures

    assert [group.check for group in doctor.groups] == ["D34"]
    assert doctor.unchecked == (
        "D99: could not check odd things because the check failed with ValueError: an odd object; please report it",
    )
    assert "a" in bound
    assert failures == 0


def finding(name: str, severity: str = WARNING, *, field: str = "field") -> Finding:
    return Finding("D99", severity, name, field, "this", "that", "it costs", Fix(("x" * 2000,)))


async def test_events_are_bounded_and_what_is_no_object_is_reported_on_the_controllers_pod() -> None:
    findings: list[Finding] = []
    async with running_service() as (here, service):
        service.cluster_checks.checks = (Check("D99", "things", (), lambda _: findings),)
        service.cluster_checks.own = Reference("Pod", "gpuscaler-0", "kube-system")
        await here.sleep(SOON)
        findings += [
            finding("Pool gpu", field="labels"),
            *(finding(f"Node n-{number}") for number in range(300)),
            finding("Node info", INFO),
        ]
        await here.submit("a")
        await here.sleep(300.0)
        written = await doctor_events(here)
        doctor = (await status(here)).doctor

    assert len(written) == cluster_checks.MOST_EVENTS
    assert (
        "Pod gpuscaler-0",
        "D99: Pool gpu: labels: saw this, expected that; it costs; fix: gpuscaler doctor prints the commands",
    ) in written
    assert "Node info" not in dict(written)
    assert [(group.severity, group.count) for group in doctor.groups] == [(WARNING, 300), (WARNING, 1), (INFO, 1)]


async def test_an_unchanged_cluster_is_checked_every_ten_minutes_and_a_changing_one_once_a_minute() -> None:
    times: list[float] = []

    def note_time(evidence: Evidence) -> list[Finding]:
        times.append(evidence.now)
        return []

    async with running_service() as (here, service):
        service.cluster_checks.checks = (Check("D99", "things", (), note_time),)
        service.cluster_checks.forget()
        await here.sleep(1300.0)
        quiet = len(times)
        for number in range(60):
            await make_budget(here, f"b-{number}", maxUnavailable=1)
            await here.sleep(10.0)
        busy = len(times) - quiet

    assert quiet == 3
    assert 8 <= busy <= 10


@pytest.mark.parametrize(
    ("seconds", "times"),
    [
        # 1,000 seconds have room for 5 times 10 seconds with 200 seconds of rest after each,
        pytest.param(10.0, (4, 5), id="a twentieth of the time"),
        # and for 3 times 100 seconds with 200, which are a tenth of 20 times as long.
        pytest.param(100.0, (3, 4), id="a pause that is limited"),
    ],
)
async def test_a_check_that_takes_long_is_followed_by_a_pause(
    seconds: float, times: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    async def slow(_call: object, evidence: Evidence, _checks: object, **_: object) -> Report:
        began.append(evidence.now)
        await asyncio.sleep(seconds)
        return Report()

    async with running_service() as (here, service):
        service.cluster_checks.checks = (Check("D99", "things", (), lambda _: ()),)
        service.cluster_checks.forget()
        monkeypatch.setattr(asyncio, "to_thread", slow)
        for number in range(100):
            await make_budget(here, f"b-{number}", maxUnavailable=1)
            await here.sleep(10.0)
        monkeypatch.undo()

    assert times[0] <= len(began) <= times[1]


async def test_a_check_without_end_is_stopped_and_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Evidence) -> Iterator[Finding]:
        for number in count():
            clock[0] += 1.0
            yield finding(f"Pool p{number}")

    clock = [0.0]
    monkeypatch.setattr(cluster_checks, "_is_past", lambda _loop, _until: clock[0] > 5.0)
    async with running_service() as (here, service):
        service.cluster_checks.checks = (
            Check("D98", "slow", (), endless),
            Check("D99", "quick", (), lambda _: [finding("Pool quick", field="other")]),
        )
        service.cluster_checks.forget()
        await here.sleep(SOON)
        doctor, groups = (await status(here)).doctor, await found(here)

    assert "D98: could not check slow because it took too long; what it found until then is shown" in doctor.unchecked
    assert ("D99", "warning", 1, ("Pool quick",)) in groups


def test_titles_of_findings_name_objects_of_the_cluster() -> None:
    objects = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "a", "uid": "u1"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a", "uid": "u2"}},
    ]
    cluster = evidence_of_objects(objects, now=0.0).cluster

    assert reference_of("Deployment a/web", cluster) == Reference("Deployment", "web", "a", "u1", "apps/v1")
    assert reference_of("Pod a/p", cluster) == Reference("Pod", "p", "a", "u2", "v1")
    assert reference_of("Node n", cluster) == Reference("Node", "n", uid="n")
    assert reference_of("RayCluster a/r", cluster) == Reference("RayCluster", "r", "a", "", "")
    odd = ("Node a/n", "Namespace a/kube-system", "Job\nCRITICAL a/n", "Node ", "Deployment a/")
    for title in ("Pool gpu", "Node group pool=a", "DaemonSet of a device plugin", "", *odd):
        assert reference_of(title, cluster) is None
