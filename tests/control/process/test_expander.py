"""The priority expander's ConfigMap is read while the controller runs; an invalid one is reported and changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.control.managing import managed
from tests.control.process.test_running import Cluster, Ticking
from tests.objects import pod

from gpuscaler.control.process.expander import KEY, NAME, NAMESPACE, POLL_SECONDS, PrioritiesInForce, PriorityExpander
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS, PODS
from gpuscaler.model.pools import Policy, Pool

POOLS = Policy((Pool("cheap", ()), Pool("dear", ())))
RUN = """
region: us-east-1
cloud: simulated
simulated: {boot: 20s, device_plugin_delay: 5s, capacity_error_delay: 1s}
pools:
  - {name: cheap, types: [g4dn.xlarge], zones: [us-east-1a]}
  - {name: dear, types: [g5.xlarge], zones: [us-east-1a]}
"""


class ConfigMapEditor:
    """Writes the ConfigMap."""

    def __init__(self, api: ApiServer) -> None:
        self.client = Client(MemoryTransport(api))

    async def write(self, text: str, *, key: str = KEY) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {key: text}}
        await self.client.apply(CONFIG_MAPS, NAME, body, namespace=NAMESPACE)

    async def remove(self) -> None:
        await self.client.delete(CONFIG_MAPS, NAME, namespace=NAMESPACE)


@pytest.fixture
async def api() -> ApiServer:
    return ApiServer(Ticking().wall)


def pool_priorities(expander: PriorityExpander) -> list[int]:
    return [pool.priority for pool in expander.policy(POOLS).pools]


async def test_the_expander_config_map_overrides_the_priorities_of_the_settings(api: ApiServer) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    assert (await expander.poll(), pool_priorities(expander)) == (False, [0, 0])

    await desk.write("{9: [dear]}")
    assert (await expander.poll(), pool_priorities(expander)) == (True, [8, 9])
    assert await expander.poll() is False

    await desk.remove()
    assert (await expander.poll(), pool_priorities(expander), expander.trouble) == (True, [0, 0], "")


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("{9: [dear", KEY, "ConfigMap kube-system/cluster-autoscaler-priority-expander, priorities:2: not YAML"),
        ("{9: [dear]}", "priority", "saw no key priorities, expected one with YAML in it"),
    ],
)
async def test_an_invalid_expander_config_map_is_reported_and_the_previous_priorities_stay(
    api: ApiServer, text: str, key: str, said: str
) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    await desk.write("{9: [dear]}")
    await expander.poll()
    await desk.remove()
    await desk.write(text, key=key)

    assert (await expander.poll(), pool_priorities(expander)) == (False, [8, 9])
    assert said in expander.trouble
    assert expander.trouble.endswith("the priorities of pools stay as they were")

    await desk.remove()
    await desk.write("{9: [cheap]}")
    assert (await expander.poll(), pool_priorities(expander), expander.trouble) == (True, [9, 8], "")


async def test_priority_patterns_that_match_no_pool_are_reported(api: ApiServer) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    await desk.write("{9: [nothing]}")
    await expander.poll()

    assert pool_priorities(expander) == [0, 0]
    assert expander.trouble.startswith("ConfigMap kube-system/cluster-autoscaler-priority-expander: saw no pattern that matches a pool")


async def test_the_status_text_always_says_whether_the_expander_config_map_is_in_force(api: ApiServer) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    place = "ConfigMap kube-system/cluster-autoscaler-priority-expander"
    sentences = [expander.in_force.text]
    for text in (None, "{9: [dear]}", "{9: [", "{9: [nothing]}"):
        if text is not None:
            await desk.write(text)
        await expander.poll()
        pool_priorities(expander)
        sentences.append(expander.in_force.text)
    await desk.remove()
    await expander.poll()
    pool_priorities(expander)

    absent = f"those of the settings; there is no {place}"
    assert sentences == [
        "",
        absent,
        *[f"{place} is in force: 9: dear; 8: cheap"] * 2,
        f"{place} exists but is not in force: it matches no pool",
    ]
    assert expander.in_force == PrioritiesInForce(absent)


async def test_an_expander_config_map_that_is_invalid_at_startup_is_reported_as_not_in_force(api: ApiServer) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    await desk.write("{9: [")
    await expander.poll()
    pool_priorities(expander)

    assert "cluster-autoscaler-priority-expander is not in force (ConfigMap kube-system" in expander.in_force.text


async def test_suspicious_priority_patterns_get_a_warning_that_is_logged_once(api: ApiServer) -> None:
    desk, expander = ConfigMapEditor(api), PriorityExpander(Client(MemoryTransport(api)))
    await desk.write("{9: [dear, spot.*]}")
    await expander.poll()
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            pool_priorities(expander)
            expander.announce()

    (remark,) = expander.in_force.remarks
    assert remark.endswith("cluster-autoscaler-priority-expander: its pattern 9: spot.* matches no pool")
    assert [(line["event"], line["log_level"], line["problems"]) for line in lines] == [("priorities of pools", "warning", [remark])]


class Failing(MemoryTransport):
    failure: Exception | None = None

    @asynccontextmanager
    async def exchange(self, request: Any) -> AsyncIterator[Any]:
        if self.failure is not None:
            raise self.failure
        async with super().exchange(request) as answer:
            yield answer


@pytest.mark.parametrize("failure", [Forbidden(403, "no"), Unreachable("connection refused")], ids=["forbidden", "unreachable"])
async def test_if_the_expander_config_map_cannot_be_read_priorities_stay_and_the_error_is_reported(
    api: ApiServer, failure: Exception
) -> None:
    transport = Failing(api)
    expander = PriorityExpander(Client(transport))
    await ConfigMapEditor(api).write("{9: [dear]}")
    await expander.poll()
    transport.failure = failure

    assert (await expander.poll(), pool_priorities(expander)) == (False, [8, 9])
    assert "could not be read, so the priorities of pools stay as they were" in expander.trouble


async def test_a_running_controller_applies_changed_priorities_after_its_next_read(api: ApiServer, tmp_path: Path) -> None:
    cluster, desk = Cluster(api, tmp_path), ConfigMapEditor(api)
    async with managed(api, Ticking().wall):
        _, recorder = cluster.start(RUN)
        await cluster.user.create(PODS, pod("first"), namespace="default")
        await asyncio.sleep(60.0)
        await desk.write("{9: [dear]}")
        await asyncio.sleep(POLL_SECONDS + 1.0)
        await cluster.user.create(PODS, pod("second"), namespace="default")
        await asyncio.sleep(10.0)
        await desk.write("{9: [")
        await asyncio.sleep(POLL_SECONDS + 1.0)
        assert recorder.place is not None
        troubles = recorder.place.troubles()
        await cluster.stop()

    assert [order.pool for order in recorder.orders] == ["cheap", "dear"]
    assert any("not YAML" in trouble for trouble in troubles)
