"""A whole demo of a small trace, over real sockets, as fast as the machine can."""

import asyncio
from functools import partial
from importlib import resources
from typing import Any

import msgspec

from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.embedded.demo.frames import Frame
from gpuscaler.embedded.demo.scenario import scenario
from gpuscaler.embedded.demo.stage import Demo
from gpuscaler.embedded.serving.pacing import PacedLoop
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import CONFIG_MAPS, EVENTS, JOBS, LEASES, Resource
from gpuscaler.simulation.traces.jobs import Job, Trace

BEGAN = 1_800_000_000.0
TRACE = Trace("small", (Job("solo", 0.0, 900.0, gpus=1), Job("pair", 60.0, 600.0, pods=2, gpus=4)))


async def objects(client: Client, resource: Resource) -> list[Any]:
    return [msgspec.json.decode(raw) for raw in await client.list_all(resource)]


async def performed(speed: float) -> tuple[Demo, list[Frame], dict[str, list[Any]]]:
    """A demo that has ended, some of its frames, and the state of its API server after half an hour."""
    with resources.as_file(resources.files("gpuscaler.embedded.demo") / "run.yaml") as path:
        demo = Demo(SettingsFile(path), scenario(1, TRACE), began=BEGAN, speed=speed)
        running = asyncio.create_task(demo.run())
        frames: list[Frame] = []
        stored: dict[str, list[Any]] = {}
        while not running.done():
            await asyncio.sleep(30.0)
            if (frame := await demo.frame()) is not None:
                frames.append(frame)
            if demo.elapsed > 1500 and not stored and not running.done():
                async with HttpTransport(Access(demo.server, "a user")) as transport:
                    client = Client(transport)
                    stored = {resource.kind: await objects(client, resource) for resource in (LEASES, CONFIG_MAPS, EVENTS, JOBS)}
        running.result()
    return demo, frames, stored


def test_a_demo_runs_all_jobs_and_its_cluster_is_readable_over_http() -> None:
    with asyncio.Runner(loop_factory=partial(PacedLoop, 100_000.0)) as runner:
        demo, frames, stored = runner.run(performed(100_000.0))

    assert [(life.key.rpartition("-")[0], life.finished) for life in demo.tally.lives] == [
        ("default/solo", True),
        ("default/pair", True),
        ("default/pair", True),
    ]
    assert demo.cluster.core.list() == ()
    assert demo.elapsed < demo.scenario.span
    assert (demo.notes.kept, demo.notes.broken) == (3, 0)
    assert demo.last is not None
    assert (demo.last.finished, demo.last.running, demo.last.pending, demo.last.troubles) == (3, 0, (), ())
    assert demo.last.spent == sum(demo.cluster.core.cost(machine, demo.wall()) for machine in demo.cluster.core.history()) > 0
    gpus = [frame.gpus for frame in frames]
    assert max(arriving for _, _, arriving, _ in gpus) > 0
    assert max(used for used, _, _, _ in gpus) == 9
    assert max(idle for _, idle, _, _ in gpus) > 0
    assert any("on its way, ready in about" in pending.why for frame in frames for pending in frame.pending)
    leases = [lease for lease in stored["Lease"] if lease["metadata"]["namespace"] != "kube-node-lease"]
    assert [lease["spec"]["holderIdentity"] for lease in leases] == ["demo"]
    assert "gpuscaler-state" in {config_map["metadata"]["name"] for config_map in stored["ConfigMap"]}
    assert {"TriggeredScaleUp", "NodeOpened"} <= {event["reason"] for event in stored["Event"]}
    assert {job["metadata"]["name"] for job in stored["Job"]} == {"solo", "pair"}
