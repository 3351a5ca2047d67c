"""All records together, beside a controller in the embedded cluster in virtual time."""

import asyncio
import sqlite3
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import trustme
from prometheus_client import generate_latest
from structlog.testing import capture_logs
from tests.control.records.events.test_records import DRY, IDLE_SOON
from tests.control.world import ONE_GPU_MACHINES, World, world
from tests.objects import pod
from tests.serving.test_server import written

from gpuscaler.control.process.running import UnusableError
from gpuscaler.control.records.events import happening
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Sink
from gpuscaler.control.records.history.inputs import unpack_decision
from gpuscaler.control.records.service import Service, ServiceContext
from gpuscaler.control.records.status import reporting
from gpuscaler.control.records.status.reporting import CHANGED_SECONDS, REFRESH_SECONDS, parse_status
from gpuscaler.control.records.status.status import Process, Status, status_of
from gpuscaler.control.records.status.why import why_pod
from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.resources import CONFIG_MAPS, EVENTS, PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.settings.run_settings import HttpSettings, LogSettings, PagesSettings, RunSettings
from gpuscaler.simulation.cloud.markets import Markets, Steps

NAMESPACE = "kube-system"


@asynccontextmanager
async def running_service(
    pools: str = ONE_GPU_MACHINES, *, dry_run: bool = False, **conditions: Any
) -> AsyncIterator[tuple[World, Service]]:
    """A world with a controller that reports to a service."""
    async with world(pools, **conditions) as here:
        client = replace(here.cluster.client("gpuscaler"), dry_run=dry_run)
        picture = here.cluster.picture(client)
        service = Service(
            context=ServiceContext(
                client=client,
                picture=picture,
                namespace=NAMESPACE,
                identity="test_1",
                now=here.now,
                troubles=lambda: ("the moon is full",),
                dry_run=dry_run,
            ),
            settings=RunSettings(parse_policy(pools), http=HttpSettings(enabled=False)),
        )
        here.notes = service  # type: ignore[assignment]  # the world only asks for a recorder
        here.start()
        service.led_by(here.controller)
        tasks = [asyncio.create_task(part.run()) for part in (picture, service)]
        try:
            await here.sleep(3.0)
            yield here, service
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def status(here: World) -> Status:
    return parse_status(await here.user.get(CONFIG_MAPS, "gpuscaler-status", namespace=NAMESPACE))


async def events(here: World) -> list[tuple[str, str, str]]:
    """Object, reason and note of each Event of gpuscaler, the oldest first."""
    bodies = [msgspec.json.decode(body) for body in await here.user.list_all(EVENTS)]
    ours = [event for event in bodies if event.get("reportingController") == "gpuscaler"]
    return [
        (f"{our['regarding']['kind']} {our['regarding']['name']}", our["reason"], our["note"])
        for our in sorted(ours, key=lambda event: event["eventTime"])
    ]


async def test_a_pending_pod_and_its_node_get_events_for_each_step() -> None:
    async with running_service(IDLE_SOON) as (here, _):
        await here.user.create(PODS, pod("a", 1, {"gpuscaler.io/run-for": "60s"}), namespace="default")
        await here.sleep(90.0)
        node = (await here.nodes())[0]["metadata"]["name"]
        notes = await events(here)
        await here.sleep(400.0)
        later = await events(here)

    assert [note[:2] for note in notes] == [("Pod a", "TriggeredScaleUp"), (f"Node {node}", "NodeOpened")]
    assert notes[0][2].startswith("g4dn.xlarge on-demand in us-east-1a ordered: ready in about 4m, p95 5m (assumed")
    assert [reason for name, reason, _ in later if name == f"Node {node}"] == [
        "NodeOpened",
        "ScaleDown",
        "ScaleDownMarked",
        "ScaleDownRemoving",
    ]
    assert "idle" in next(note for _, reason, note in later if reason == "ScaleDown")


async def test_values_of_unreadable_annotations_and_of_environment_variables_appear_in_no_record() -> None:
    invalid_pod = pod("odd", 1, {"gpuscaler.io/market": "hunter2"})
    invalid_pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "correct-horse"}]
    with capture_logs() as lines:
        async with running_service() as (here, service):
            await here.user.create(PODS, invalid_pod, namespace="default")
            await here.sleep(90.0)
            written = await here.user.get(CONFIG_MAPS, "gpuscaler-status", namespace=NAMESPACE)
            page = repr(why_pod(service.latest, "default/odd", [], here.now()))
            (made,) = service.history_writer.history.decisions(most=1)
            decision = service.history_writer.history.decision(made.id, inputs=True)
            assert decision is not None
            assert decision.inputs is not None
            inputs = repr(unpack_decision(decision.inputs))

    assert "gpuscaler.io/market: saw a value of 7 characters, expected a comma-separated list of spot" in page
    assert "default/odd" in inputs
    output = "".join((written.decode(), page, inputs, repr(lines), repr(await events(here))))
    assert "hunter2" not in output
    assert "correct-horse" not in output


async def test_pending_pods_get_events_about_refused_offerings() -> None:
    async with running_service(markets=Markets({DRY: Steps([0.0], [0.0])})) as (here, _):
        await here.submit("a")
        await here.sleep(60.0)
        notes = await events(here)

    refusals = [note for name, reason, note in notes if (name, reason) == ("Pod a", "OfferingRefused")]
    assert refusals
    assert refusals[0].startswith("g4dn.xlarge on-demand in us-east-1a refused: no capacity")


async def test_the_history_is_closed_on_shutdown_even_if_the_api_server_hangs() -> None:
    async with running_service() as (here, service):
        await here.submit("a")
        await here.submit("b")
        here.cluster.api.faults.add(Fault(path="/events", delay=1e6))
        await here.sleep(10.0)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        service.history_writer.history.decisions()


async def test_the_written_status_has_pools_pods_breakers_decisions_and_troubles() -> None:
    async with running_service() as (here, _):
        await here.submit("a")
        await here.submit("big", 8)
        await here.sleep(15.0)
        early = await status(here)
        await here.sleep(100.0)
        late = await status(here)

    (pool,) = early.pools
    assert (pool.name, pool.machines, pool.coming) == ("gpu", 0, 1)
    assert {waiting.reason.split(":")[0]: waiting.pods for waiting in early.waiting}["no machine of any pool fits it"] == ("default/big",)
    assert any(
        "g4dn.xlarge on-demand in us-east-1a was granted" in waiting.reason for waiting in early.waiting if "default/a" in waiting.pods
    )
    assert early.troubles == ("the moon is full",)
    assert early.leader.identity == "test_1"
    (pool,) = late.pools
    assert (pool.machines, pool.coming, pool.gpus, pool.used) == (1, 0, 1, 1)
    assert pool.dollars_per_hour == pytest.approx(0.526)
    assert late.promises_kept == 1
    assert {"planned", "ordered", "opened", "unplaced"} <= {entry.about for entry in late.happened}


async def test_the_status_shows_an_offering_without_capacity_and_the_time_of_its_next_try() -> None:
    async with running_service(markets=Markets({DRY: Steps([0.0], [0.0])})) as (here, _):
        await here.submit("a")
        await here.sleep(40.0)
        (breaker,) = (await status(here)).breakers
        now = here.now()

    assert (breaker.target, breaker.cause, breaker.open) == ("on-demand g4dn.xlarge us-east-1a", "capacity", True)
    assert breaker.until is not None
    assert breaker.until > now


async def test_a_changed_status_is_written_at_most_every_ten_seconds_and_refreshed_every_minute() -> None:
    written: list[float] = []
    async with running_service() as (here, service):
        answer = here.cluster.api.answer

        async def counted(request: Request) -> Answer:
            if request.method in ("PUT", "POST") and "configmaps" in request.path and b"gpuscaler-status" in request.body:
                written.append(here.now())
            return await answer(request)

        here.cluster.api.answer = counted  # type: ignore[method-assign]  # what is written is counted
        await here.sleep(10 * REFRESH_SECONDS)
        quiet, written[:] = len(written), []
        for number in range(30):
            await here.submit(f"p{number}")
            await here.sleep(4.0)
        assert service.reporter.trouble == ""

    assert 9 <= quiet <= 12
    assert all(later - earlier >= CHANGED_SECONDS - 0.1 for earlier, later in pairwise(written))
    assert len(written) >= 8


async def test_a_standby_writes_no_status() -> None:
    async with running_service() as (here, service):
        service.led_by(None)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-status", namespace=NAMESPACE)
        await here.sleep(2 * REFRESH_SECONDS)
        with pytest.raises(NotFound):
            await status(here)


async def test_a_new_leader_writes_a_status_at_once() -> None:
    async with running_service() as (here, service):
        service.led_by(None)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-status", namespace=NAMESPACE)
        await here.sleep(REFRESH_SECONDS + 3.0)
        service.led_by(here.controller)
        await here.sleep(2.0)
        assert (await status(here)).at >= here.now() - 2.0


async def test_the_status_counts_a_machine_as_coming_as_soon_as_it_is_ordered() -> None:
    ordered: list[tuple[int, int]] = []

    class Asking(Sink):
        def happened(self, what: HistoryEvent, /) -> None:
            if what.kind == happening.ORDERED:
                status = status_of(service.latest, Process("me"), troubles=(), happened=(), now=what.at)
                ordered.append((status.coming, status.pools[0].coming))

    async with running_service() as (here, service):
        service.sinks = (*service.sinks, Asking())
        await here.submit("a")
        await here.sleep(5.0)

    assert ordered == [(1, 1)]


async def test_a_decision_survives_the_kill_of_the_controller_right_after_it() -> None:
    ordered = asyncio.Event()

    class Waiting(Sink):
        def happened(self, what: HistoryEvent, /) -> None:
            if what.kind == happening.ORDERED:
                ordered.set()

    async with running_service() as (here, service):
        service.sinks = (*service.sinks, Waiting())
        await here.submit("a")
        await ordered.wait()
        await here.sleep(0.02)
        assert len(service.history_writer.history.decisions()) == 1


async def test_a_dry_run_writes_neither_events_nor_a_status_nor_a_file() -> None:
    async with running_service(dry_run=True) as (here, service):
        await here.submit("big", 8)
        await here.sleep(120.0)
        assert await events(here) == []
        with pytest.raises(NotFound):
            await status(here)
        assert not service.history_writer.history.on_disk
        assert service.reporter.status is not None
        assert ("default/big",) in [waiting.pods for waiting in service.reporter.status.waiting]


async def test_a_refused_write_of_the_status_is_reported_and_does_not_stop_the_controller() -> None:
    async with running_service() as (here, service):
        here.cluster.api.faults.add(Fault(method="PUT", path="gpuscaler-status", refusal=broken()))
        await here.submit("a")
        await here.sleep(30.0)
        assert any("gpuscaler-status" in trouble for trouble in service.troubles())


async def test_a_new_controller_writes_no_events_about_existing_machines() -> None:
    async with running_service() as (here, service):
        await here.submit("a")
        await here.sleep(100.0)
        before = len(service.history_writer.history.recent_events(most=1_000))
        await here.kill()
        service.led_by(None)
        here.start()
        service.led_by(here.controller)
        await here.sleep(30.0)
        assert len(service.history_writer.history.recent_events(most=1_000)) == before


async def test_the_liveness_probe_fails_if_the_control_loop_makes_no_turns() -> None:
    async with running_service() as (here, service):
        await here.sleep(60.0)
        assert service.liveness_problem() == ""
        assert service.readiness_problem() == ""
        await here.kill()
        await here.sleep(300.0)
        assert service.liveness_problem().startswith("the controller has not observed the cluster for ")
        service.led_by(None)
        assert service.liveness_problem() == ""


async def test_a_leader_with_a_corrupted_saved_state_stays_alive_and_reports_it() -> None:
    async with running_service() as (here, service):
        await here.sleep(60.0)
        await here.kill()
        await here.user.merge_patch(CONFIG_MAPS, "gpuscaler-state", {"binaryData": {"memory": "bm9uZQ=="}}, namespace="kube-system")
        here.start()
        service.led_by(here.controller)
        await here.sleep(300.0)

        assert service.liveness_problem() == ""
        troubles = [trouble for trouble in (await status(here)).troubles if "saw a memory that cannot be read" in trouble]
        assert [trouble.endswith("machines without a node might be bought twice") for trouble in troubles] == [True]


async def test_metrics_and_two_log_lines_report_calls_of_the_cloud_that_fail() -> None:
    def cloud_metrics(service: Service) -> list[str]:
        lines = generate_latest(service.metrics.registry).decode().splitlines()
        return [line for line in map(sorted_labels, lines) if line.startswith("gpuscaler_cloud_")]

    labels = 'cause="unknown",part="machines"'
    with capture_logs() as logs:
        async with running_service() as (here, service):
            before = cloud_metrics(service)
            here.cluster.provider.outage = "no route"
            await here.sleep(70.0)
            during = cloud_metrics(service)
            service.led_by(None)
            follower = cloud_metrics(service)
            service.led_by(here.controller)
            await here.sleep(200.0)
            here.cluster.provider.outage = ""
            await here.sleep(200.0)
            after = cloud_metrics(service)

    assert (before, follower) == ([], [])
    assert f"gpuscaler_cloud_failing{{{labels}}} 1.0" in during
    assert f"gpuscaler_cloud_errors_total{{{labels}}} 3.0" in during
    assert [line for line in after if "failing" in line] == []
    outages = [log for log in logs if log.get("about") == "machines"]
    assert outages == [
        {
            "event": "calls to the cloud fail",
            "about": "machines",
            "cause": "unknown",
            "problem": "simulated: no route",
            "log_level": "warning",
        },
        {"event": "calls to the cloud work again", "about": "machines", "log_level": "info"},
    ]


async def test_a_metric_counts_events() -> None:
    async with running_service(IDLE_SOON) as (here, service):
        await here.user.create(PODS, pod("a", 1, {"gpuscaler.io/run-for": "60s"}), namespace="default")
        await here.sleep(500.0)
        await here.submit("big", 8)
        await here.sleep(30.0)
        text = generate_latest(service.metrics.registry).decode()
        plans = here.controller.plans if here.controller is not None else 0

    labels = 'instance_type="g4dn.xlarge",market="on-demand",pool="gpu"'
    for line in (
        f"gpuscaler_machines_ordered_total{{{labels}}} 1.0",
        f"gpuscaler_machines_granted_total{{{labels}}} 1.0",
        f"gpuscaler_machines_opened_total{{{labels}}} 1.0",
        'gpuscaler_removals_total{pool="gpu",result="removed"} 1.0',
        'gpuscaler_promises_total{outcome="kept"} 1.0',
        'gpuscaler_forecast_error_seconds_count{basis="assumed"} 1.0',
        'gpuscaler_pending_pods{state="unplaced"} 1.0',
        "gpuscaler_promises_kept_ratio 1.0",
        f"gpuscaler_plan_seconds_count {plans:.1f}",
        "gpuscaler_leader 1.0",
        "gpuscaler_record_failures_total 0.0",
    ):
        assert line in {sorted_labels(splitline) for splitline in text.splitlines()}, line


def sorted_labels(line: str) -> str:
    name, brace, rest = line.partition("{")
    if not brace:
        return line
    labels, _, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}"


async def test_no_metric_contains_the_name_of_a_pod_or_a_node() -> None:
    async with running_service() as (here, service):
        for number in range(3):
            await here.submit(f"special-pod-{number}")
        await here.sleep(120.0)
        nodes = [node["metadata"]["name"] for node in await here.nodes()]
        text = generate_latest(service.metrics.registry).decode()

    assert len(nodes) == 3
    assert not [name for name in (*nodes, "special-pod") if name in text]


async def test_a_failed_record_is_counted_and_later_records_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_service() as (here, service):
        await here.sleep(15.0)
        monkeypatch.setattr(reporting, "status_of", lambda *_, **__: 1 / 0)
        await here.sleep(20.0)
        broken_at = service.failures
        monkeypatch.undo()
        await here.submit("a")
        await here.sleep(100.0)
        shown = await status(here)

    assert broken_at >= 1
    assert shown.pools[0].machines == 1
    assert any(trouble.startswith(f"{service.failures} records could not be made") for trouble in shown.troubles)


@pytest.mark.parametrize(
    ("http", "said"),
    [
        (HttpSettings(certificate="/nowhere/tls.crt", key="/nowhere/tls.key"), "http.certificate: /nowhere/tls.crt: saw No such file"),
        (HttpSettings(host="203.0.113.1", port=1), "http: saw .* for 203.0.113.1, port 1, expected to listen there"),
    ],
)
@pytest.mark.looptime(False)
async def test_an_unusable_address_for_pages_ends_the_process_with_an_error_about_its_key(http: HttpSettings, said: str) -> None:
    async with world() as here:
        client = here.cluster.client("gpuscaler")
        surroundings = ServiceContext(
            client=client, picture=here.cluster.picture(client), namespace=NAMESPACE, identity="me", now=here.now, troubles=lambda: ()
        )
        with pytest.raises(UnusableError, match=said):
            await Service(context=surroundings, settings=RunSettings(parse_policy(ONE_GPU_MACHINES), http=http)).run()


async def test_the_log_level_follows_the_settings() -> None:
    levels: list[str] = []
    async with running_service() as (_, service):
        service.context = replace(service.context, set_level=levels.append)
        service.settings_changed(RunSettings(parse_policy(ONE_GPU_MACHINES), log=LogSettings("debug")))

    assert levels == ["debug"]


async def test_a_former_leader_stops_publishing_metrics_about_machines() -> None:
    async with running_service() as (here, service):
        await here.submit("a")
        await here.sleep(100.0)
        led = generate_latest(service.metrics.registry).decode()
        service.led_by(None)
        after = generate_latest(service.metrics.registry).decode()

    assert "gpuscaler_machines{" in led
    assert "gpuscaler_machines{" not in after
    assert "gpuscaler_leader 0.0" in after


@pytest.mark.looptime(False)
async def test_probes_are_served_over_tls_if_a_certificate_is_configured(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = written(tmp_path, authority)
    async with world() as here:
        client = here.cluster.client("gpuscaler")
        surroundings = ServiceContext(
            client=client, picture=here.cluster.picture(client), namespace=NAMESPACE, identity="me", now=here.now, troubles=lambda: ()
        )
        http = HttpSettings(host="127.0.0.1", port=0, certificate=str(certificate), key=str(key))
        settings = RunSettings(parse_policy(ONE_GPU_MACHINES), http=http, pages=PagesSettings(port=0))
        service = Service(context=surroundings, settings=settings)
        running = asyncio.create_task(service.run())
        while "pages" not in service.listeners.ports:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        url = f"https://127.0.0.1:{service.listeners.ports['http']}/healthz"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as answer:
            assert answer.status == 200
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
