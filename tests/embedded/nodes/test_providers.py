"""The simulated cloud of `gpuscaler run` survives its process, on any API server."""

import asyncio
import csv
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import structlog
from tests.control.managing import managed
from tests.control.process.test_running import Ticking
from tests.control.world import BEGAN, CallObserver, CountingRecorder, DeathPlan, MortalTransport, seeded_random
from tests.embedded.tolerant import tolerant_plugin
from tests.objects import pod

from gpuscaler.clouds.protocol import CAPACITY, QUOTA, BuyResult, CloudError, LostAnswerError, Order
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.holding import HoldWatcher
from gpuscaler.control.loop.store import OvertakenError
from gpuscaler.control.process.expander import PriorityExpander
from gpuscaler.control.process.running import ControllerProcess, ProcessContext, ProviderSetup, UnusableError
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes import providers
from gpuscaler.embedded.nodes.keeping import CloudStore
from gpuscaler.embedded.nodes.providers import naming_in
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, PODS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.settings.run_settings import RunSettings

GPU = OfferingKey("gpu", "on-demand", "g4dn.xlarge", "us-east-1a")
SPOT = OfferingKey("gpu", "spot", "g4dn.xlarge", "us-east-1a")


def text(**simulated: str) -> str:
    settings = {"boot": "20s", "device_plugin_delay": "5s", "capacity_error_delay": "1s", **simulated}
    inner = ", ".join(f"{name}: {value}" for name, value in settings.items())
    return f"""
region: us-east-1
cloud: simulated
simulated: {{{inner}}}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
"""


def now() -> float:
    return BEGAN + asyncio.get_running_loop().time()


#: The Node of the first machine that a cloud in kube-system buys.
FIRST = f"{naming_in('kube-system').prefix}00001"


class Life:
    """A process with the provider, without a controller."""

    def __init__(self, api: ApiServer, path: Path, *, dry_run: bool = False, namespace: str = "kube-system") -> None:
        self.client = Client(MemoryTransport(api), limit=RateLimit(qps=1e9, burst=1_000_000), dry_run=dry_run)
        file = SettingsFile(path)
        picture = Picture(self.client, clock=asyncio.get_running_loop().time, random=Random(0))
        self.place = ProcessContext(
            client=self.client,
            picture=picture,
            namespace=namespace,
            identity="one",
            dry_run=dry_run,
            now=now,
            election=None,
            file=file,
            expander=PriorityExpander(self.client),
            attempts=Attempts(self.client),
            hold_watcher=HoldWatcher(self.client, namespace=namespace, now=now),
        )
        self.settings = file.settings
        self.made: ProviderSetup | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> ProviderSetup:
        self.made = await providers.make(self.settings, self.place)
        self.tasks = [asyncio.create_task(part()) for part in self.made.parts]
        return self.made

    async def stop(self) -> list[Any]:
        for task in self.tasks:
            task.cancel()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


class Lives:
    """An API server, and one process after the other."""

    def __init__(self, folder: Path) -> None:
        self.api = ApiServer(now)
        self.user = Client(MemoryTransport(self.api))
        self._path = folder / "run.yaml"
        self._lives: list[Life] = []

    async def begin(self, settings: str | None = None, *, dry_run: bool = False, namespace: str = "kube-system") -> ProviderSetup:
        self._path.write_text(text() if settings is None else settings)
        self._lives.append(Life(self.api, self._path, dry_run=dry_run, namespace=namespace))
        return await self._lives[-1].start()

    async def end(self) -> list[Any]:
        return await self._lives.pop().stop()

    async def close(self) -> None:
        while self._lives:
            await self.end()

    async def nodes(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(raw) for raw in await self.user.list_all(NODES)]


@asynccontextmanager
async def lives(folder: Path) -> AsyncIterator[Lives]:
    made = Lives(folder)
    await tolerant_plugin(made.user)
    async with managed(made.api, now):
        try:
            yield made
        finally:
            await made.close()


async def buy(made: ProviderSetup, *offerings: OfferingKey, token: str = "a", count: int = 1) -> BuyResult:
    return await made.provider.buy(Order(token, "gpu", offerings or (GPU,), count))


async def test_a_machine_becomes_a_node_and_its_gpus_appear_later(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        bought = await buy(await here.begin())
        await asyncio.sleep(22.0)
        (node,) = await here.nodes()
        assert node["spec"]["providerID"] == bought.instances[0].id
        assert "nvidia.com/gpu" not in node["status"]["allocatable"]
        await asyncio.sleep(10.0)
        (node,) = await here.nodes()
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"


async def test_a_restarted_process_finds_the_machines_and_gives_the_same_answer_for_a_token(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        first = await buy(await here.begin(), count=2)
        await here.end()
        made = await here.begin()
        assert {instance.id for instance in (await made.provider.inventory()).instances} == {instance.id for instance in first.instances}
        assert await buy(made, count=2) == first
        other = await buy(made, token="b")
        assert not {instance.id for instance in other.instances} & {instance.id for instance in first.instances}


async def test_an_order_without_an_answer_yet_is_answered_by_the_restarted_process(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await buy(made)
        await here.end()
        made = await here.begin()
        assert len((await buy(made)).instances) == 1
        assert len((await made.provider.inventory()).instances) == 1


async def test_the_effects_of_overdue_events_are_saved_immediately(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await buy(made)
        await here.end()
        await asyncio.sleep(60.0)
        await here.begin()
        await asyncio.sleep(1.0)
        state = await CloudStore(here.user, namespace="kube-system").load()
        assert [row.state for row in state.core.machines] == ["visible"]


async def test_a_restarted_process_repeats_refusals_for_the_same_token(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        settings = text(dry="[{market: spot}]")
        first = await buy(await here.begin(settings), SPOT, GPU)
        assert [refusal.cause for refusal in first.refusals] == [CAPACITY]
        await here.end()
        assert await buy(await here.begin(settings), SPOT, GPU) == first


async def test_machine_events_that_fell_due_while_no_process_ran_take_effect_at_the_restart(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        bought = await buy(made, count=2)
        await asyncio.sleep(60.0)
        late = await buy(made, token="b")
        await here.end()
        ended, stays = (instance.id for instance in bought.instances)
        for node in await here.nodes():
            if node["spec"]["providerID"] == stays:
                await here.user.delete(NODES, node["metadata"]["name"])
        await here.user.create(
            NODES,
            {"metadata": {"name": "stray"}, "spec": {"providerID": f"simulated:///us-east-1a/{naming_in('kube-system').prefix}99999"}},
        )
        await here.user.create(NODES, {"metadata": {"name": "foreign"}, "spec": {"providerID": "aws:///us-east-1a/i-1"}})
        await asyncio.sleep(100.0)
        made = await here.begin()
        await made.provider.remove((ended,))
        await asyncio.sleep(30.0)
        nodes = {node["spec"]["providerID"]: node for node in await here.nodes()}
        assert nodes.keys() == {stays, late.instances[0].id, "aws:///us-east-1a/i-1"}
        assert nodes[late.instances[0].id]["status"]["allocatable"]["nvidia.com/gpu"] == "1"


async def test_spot_machines_are_reclaimed_with_notice_if_new_settings_declare_their_market_dry(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        (machine,) = (await buy(await here.begin(), SPOT)).instances
        await asyncio.sleep(60.0)
        await here.end()
        made = await here.begin(text(dry="[{market: spot}]", reclaim="{after: 10s, notice: 30s, without_notice: 0}"))
        await asyncio.sleep(11.0)
        (notice,) = await made.provider.notices()
        assert (notice.kind, notice.instance) == ("interruption", machine.id)
        assert len(await here.nodes()) == 1
        await asyncio.sleep(31.0)
        assert (await here.nodes(), (await made.provider.inventory()).instances) == ([], ())


@pytest.mark.parametrize(
    ("fault", "nodes", "gpus", "words"),
    [
        ("never_registers: 1", 0, 0, ""),
        ("never_registers: 1, impaired: 1", 0, 0, "reachability"),
        ("never_visible: 1", 1, 0, ""),
        ("partial_grants: 0", 1, 1, ""),
    ],
)
async def test_machines_fail_at_the_configured_rates(fault: str, nodes: int, gpus: int, words: str, tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin(text(faults=f"{{{fault}}}"))
        await buy(made)
        await asyncio.sleep(900.0)
        listed = await here.nodes()
        (machine,) = (await made.provider.inventory()).instances
        assert len(listed) == nodes
        assert sum(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in listed) == gpus
        assert words in machine.fault
        assert bool(machine.fault) == bool(words)


async def test_configured_quotas_apply_and_their_refusals_name_their_types(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin(text(quotas="[{machines: 1, types: [g4dn.xlarge], market: on-demand}]"))
        bought = await made.provider.buy(Order("a", "gpu", (GPU,), 2))
        (refusal,) = bought.refusals
        assert len(bought.instances) == 1
        assert (refusal.cause, refusal.bucket, refusal.every_zone) == (QUOTA, ("g4dn.xlarge",), True)
        assert len((await made.provider.buy(Order("b", "gpu", (SPOT,), 2))).instances) == 2


async def test_cloud_calls_fail_at_the_configured_rates(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin(text(faults="{stale: 90s, tokens: false}"))
        assert (made.provider.keeps_tokens, made.provider.read_lag) == (False, 90.0)
        assert (await buy(made)).instances != (await buy(made)).instances
        assert (await made.provider.inventory()).instances == ()
        await here.end()
        made = await here.begin(text(faults="{throttled: 1}"))
        with pytest.raises(CloudError, match="Request limit exceeded"):
            await made.provider.inventory()
        await here.end()
        made = await here.begin(text(faults="{lost: 1}"))
        with pytest.raises(LostAnswerError):
            await made.provider.inventory()


async def test_a_file_of_series_determines_when_spot_markets_are_dry(tmp_path: Path) -> None:
    with (tmp_path / "spot.csv").open("w", newline="") as file:
        rows: Sequence[Sequence[object]] = [
            ("zone", "instance_type", "max_nodes_probed", "t_s", "nodes_available"),
            ("us-east-1a", "g4dn.xlarge", 3, 0, 3),
            ("us-east-1a", "g4dn.xlarge", 3, 600, 0),
            ("us-east-1a", "g4dn.xlarge", 3, 1200, 3),
        ]
        csv.writer(file).writerows(rows)
    async with lives(tmp_path) as here:
        made = await here.begin(text(dry="spot.csv"))
        assert len((await buy(made, SPOT)).instances) == 1
        await asyncio.sleep(700.0)
        refused = await buy(made, SPOT, token="b")
        assert (refused.instances, [refusal.cause for refusal in refused.refusals]) == ((), [CAPACITY])
        await here.end()
        # The series continues: it does not start again with the process.
        made = await here.begin(text(dry="spot.csv"))
        assert (await buy(made, SPOT, token="c")).instances == ()
        (tmp_path / "spot.csv").write_text("nothing\n")
        await here.end()
        with pytest.raises(UnusableError, match="columns zone"):
            await here.begin(text(dry="spot.csv"))


async def test_a_forbidden_node_write_does_not_block_other_machines_and_is_made_once_allowed(tmp_path: Path) -> None:
    message = 'nodes is forbidden: User "gpuscaler" cannot delete resource "nodes" in API group "" at the cluster scope'
    with structlog.testing.capture_logs() as logs:
        async with lives(tmp_path) as here:
            made = await here.begin()
            first = await buy(made)
            await asyncio.sleep(60.0)
            here.api.faults.add(Fault(method="DELETE", path="/nodes/", refusal=Failure(403, "Forbidden", message)))
            await made.provider.remove((first.instances[0].id,))
            await asyncio.sleep(60.0)
            second = await buy(made, token="b")
            await asyncio.sleep(60.0)
            ids = [bought.instances[0].id for bought in (first, second)]
            assert [node["spec"]["providerID"] for node in await here.nodes()] == ids
            here.api.faults.clear()
            await asyncio.sleep(15.0)
            assert [node["spec"]["providerID"] for node in await here.nodes()] == ids[1:]

    problems = [log["problem"] for log in logs if log["event"] == "an object of a simulated machine could not be written"]
    assert [problem.removesuffix(" (403 Forbidden)") for problem in problems] == [message]


async def test_a_leftover_node_whose_deletion_is_forbidden_does_not_block_the_leader_and_is_deleted_once_allowed(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        bought = await buy(made)
        await asyncio.sleep(60.0)
        here.api.faults.add(Fault(method="DELETE", path="/nodes/", refusal=Failure(403, "Forbidden", "nodes is forbidden")))
        await made.provider.remove((bought.instances[0].id,))
        await asyncio.sleep(60.0)
        await here.end()
        async with asyncio.timeout(5.0):
            made = await here.begin()
        assert len(await here.nodes()) == 1
        await buy(made, token="b")
        here.api.faults.clear()
        await asyncio.sleep(60.0)
        (node,) = await here.nodes()
        assert node["spec"]["providerID"] != bought.instances[0].id


async def test_api_server_errors_delay_the_clouds_answers_and_lose_no_machine(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        here.api.faults.add(Fault(path="configmaps", chance=0.4, refusal=broken()))
        here.api.faults.add(Fault(path="configmaps", chance=0.4, sever="after"))
        bought = [await buy(made, token=f"t{number}") for number in range(5)]
        here.api.faults.clear()
        await here.end()
        made = await here.begin()
        assert [instance.id for instance in (await made.provider.inventory()).instances] == [
            instance.id for bought in bought for instance in bought.instances
        ]


@pytest.mark.parametrize("instance", ["", "aws:///us-east-1a/i-1"])
async def test_a_foreign_node_with_the_name_of_a_machine_is_neither_changed_nor_deleted(tmp_path: Path, instance: str) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        foreign = {"metadata": {"name": FIRST}, "spec": {"providerID": instance} if instance else {}}
        await here.user.create(NODES, foreign)
        (before,) = await here.nodes()
        bought = await buy(made)
        await asyncio.sleep(60.0)
        await made.provider.remove((bought.instances[0].id,))
        await asyncio.sleep(60.0)
        await here.end()
        await here.begin()
        await asyncio.sleep(5.0)
        assert await here.nodes() == [before]


async def test_two_clouds_in_two_namespaces_of_a_cluster_ignore_each_others_machines(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        for name in ("other", "third"):
            await here.user.create(NAMESPACES, {"metadata": {"name": name}})
        bought = [await buy(await here.begin(namespace=name), count=2) for name in ("kube-system", "other")]
        await asyncio.sleep(60.0)
        ids = {instance.id for bought in bought for instance in bought.instances}
        assert len(ids) == 4
        assert {node["spec"]["providerID"] for node in await here.nodes()} == ids
        # A restarted cloud deletes no Nodes that do not belong to its machines.
        await here.end()
        await here.begin(namespace="other")
        await asyncio.sleep(10.0)
        assert {node["spec"]["providerID"] for node in await here.nodes()} == ids
        made = await here.begin(namespace="third")
        await asyncio.sleep(10.0)
        assert (await made.provider.inventory()).instances == ()
        assert len(await here.nodes()) == 4


async def test_the_process_that_wrote_last_owns_the_cloud_and_the_other_one_stops(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        old = await here.begin()
        await buy(old)
        new = await here.begin()
        await buy(new, token="b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await buy(old, token="c")
        await here.end()
        assert any(isinstance(end, OvertakenError) for end in await here.end())


async def test_pods_on_simulated_machines_run_and_pods_on_other_nodes_are_left_to_their_kubelets(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        await buy(await here.begin())
        await here.user.create(NODES, {"metadata": {"name": "real"}, "spec": {"providerID": "aws:///us-east-1a/i-1"}})
        await asyncio.sleep(30.0)
        for name in ("real", FIRST):
            body = pod(f"on-{name}")
            await here.user.create(PODS, {**body, "spec": {**body["spec"], "nodeName": name}}, namespace="default")
        await asyncio.sleep(120.0)
        phases = {
            pod["metadata"]["name"]: pod["status"]["phase"]
            for pod in map(msgspec.json.decode, await here.user.list_all(PODS, namespace="default"))
        }
        assert phases == {"on-real": "Pending", f"on-{FIRST}": "Running"}
        await here.user.delete(PODS, "on-real", namespace="default")
        await here.user.delete(PODS, f"on-{FIRST}", namespace="default")
        await asyncio.sleep(10.0)
        assert [msgspec.json.decode(raw)["metadata"]["name"] for raw in await here.user.list_all(PODS, namespace="default")] == ["on-real"]


async def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin(dry_run=True)
        await buy(made)
        await asyncio.sleep(60.0)
        assert await here.nodes() == []
        with pytest.raises(NotFound):
            await here.user.get(CONFIG_MAPS, "gpuscaler-simulated-cloud", namespace="kube-system")


async def test_machines_of_pools_added_to_the_settings_can_be_bought_immediately(tmp_path: Path) -> None:
    async with lives(tmp_path) as here:
        made = await here.begin()
        other = tmp_path / "other.yaml"
        other.write_text(text().replace("g4dn.xlarge", "g5.xlarge"))
        made.reload(SettingsFile(other).settings)
        bought = await buy(made, OfferingKey("gpu", "on-demand", "g5.xlarge", "us-east-1a"))
        assert len(bought.instances) == 1
        assert {offering.instance_type for pool in await made.provider.pools() for offering in pool.offerings} == {"g5.xlarge"}


class Records(CountingRecorder):
    """Records of all processes."""

    def led_by(self, _controller: Controller | None, /) -> None:
        """Not used."""

    def settings_changed(self, _settings: RunSettings, /) -> None:
        """Not used."""

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("seed", range(12))
async def test_a_process_that_dies_with_its_cloud_at_any_step_neither_buys_twice_nor_loses_anything(seed: int, tmp_path: Path) -> None:
    dice, api, path = seeded_random(seed, "providers"), ApiServer(now), tmp_path / "run.yaml"
    path.write_text(text(seed=str(seed)))
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e9, burst=1_000_000))
    pods = dice.randint(1, 4)

    async def one_life(deaths: DeathPlan, within: float) -> None:
        running = ControllerProcess(
            file=SettingsFile(path),
            transport=MortalTransport(MemoryTransport(api), deaths, CallObserver()),
            namespace="kube-system",
            identity=f"life-{id(deaths)}",
            clocks=Ticking(),
            make_provider=providers.make,
            make_records=lambda _settings, _place: Records(),
        )
        task = asyncio.create_task(running.run())
        await asyncio.wait((task, asyncio.create_task(deaths.dead.wait())), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        deaths.dead.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with managed(api, now):
        for number in range(pods):
            await user.create(PODS, pod(f"p{number}"), namespace="default")
        for _ in range(3):
            await one_life(DeathPlan(dice.randint(2, 40), before=dice.random() < 0.5), 100.0)
            await asyncio.sleep(dice.choice((0.0, 20.0)))
        await one_life(DeathPlan(), 300.0)
        state = await CloudStore(user, namespace="kube-system").load()
        bound = [bool(pod["spec"].get("nodeName")) for pod in map(msgspec.json.decode, await user.list_all(PODS, namespace="default"))]
    assert (state.core.granted, len(bound), all(bound)) == (pods, pods, True)
