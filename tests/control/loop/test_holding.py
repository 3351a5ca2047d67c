"""A user holds buying or removing: each replica of the controller obeys at once, and continues when the hold ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.control.world import ONE_GPU_MACHINES, CallObserver, World, world

from gpuscaler.clouds.protocol import INTERRUPTION, Notice, Order
from gpuscaler.control.loop.holding import NAME, POLL_SECONDS, HoldWatcher, write_holds
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden, ServerError, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.holds import Hold, Holds
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.simulation.cloud.provider import CallFaults

#: Nested more deeply than any decoder accepts.
DEEP = '{"x": ' + "[" * 50_000 + "]" * 50_000 + "}"
IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"


def taints(node: dict[str, Any]) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints") or ()]


class Counting(CallObserver):
    """Counts the sent orders."""

    orders = 0

    async def buy(self, order: Order) -> None:  # noqa: ARG002  # only their number matters
        self.orders += 1


async def until_bound(here: World, pod: str = "train", within: float = 300.0) -> None:
    async with asyncio.timeout(within):
        while not (await here.bound()).get(pod):
            await here.sleep(0.5)


async def write(here: World, data: dict[str, str]) -> None:
    """Write the ConfigMap as a person edits it."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
    await here.user.apply(CONFIG_MAPS, NAME, body, namespace="kube-system")


async def test_while_buying_is_held_nothing_is_bought_and_the_hold_is_the_reason_of_pending_pods() -> None:
    async with world() as here:
        here.start()
        await here.sleep(5)
        await here.hold(buying=Hold(since=here.now(), by="ann", reason="budget review"))
        await here.submit("train")
        await here.sleep(120)

        assert here.notes.orders == []
        assert here.notes.last is not None
        (unplaced,) = here.notes.last.unplaced
        assert unplaced.reasons[0].detail == (
            "buying is on hold until it is resumed (requested by ann): budget review; `gpuscaler resume --buying` ends the hold"
        )

        await here.hold(buying=None)
        await until_bound(here, within=POLL_SECONDS + 90.0)
        assert len(here.notes.orders) == 1


async def test_a_hold_made_after_planning_stops_the_purchase_before_the_next_poll() -> None:
    async with world() as here:
        here.start()
        await here.sleep(POLL_SECONDS * 2.5)
        assert here.hold_watcher.holds == Holds()
        await here.hold(buying=Hold())
        await here.submit("train")
        await here.sleep(1.0)

        assert here.notes.plans
        assert here.notes.orders == []


async def test_a_hold_with_a_duration_ends_without_a_resume() -> None:
    async with world() as here:
        here.start()
        await here.hold(buying=Hold(since=here.now(), until=here.now() + 600.0))
        await here.submit("train")
        await here.sleep(590)
        assert here.notes.orders == []

        await until_bound(here, within=100.0)


async def test_an_idle_node_is_removed_only_after_a_hold_on_removing_ends() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.submit("train", 1, **{"gpuscaler.io/run-for": "30s"})
        await until_bound(here)
        await here.hold(removing=Hold())
        await here.sleep(600)

        (node,) = await here.nodes()
        assert LEAVING_TAINT not in taints(node)
        assert here.notes.last is not None
        (blocked,) = here.notes.last.blocked_nodes
        assert (blocked.node, blocked.blocker) == (node["metadata"]["name"], "hold")
        assert "it would be removed: idle for" in blocked.detail

        await here.hold(removing=None)
        await here.sleep(60)
        assert await here.nodes() == []


async def test_a_hold_on_removing_undoes_a_removal_in_progress() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.submit("train", 1, **{"gpuscaler.io/run-for": "5s"})
        await until_bound(here)
        async with asyncio.timeout(300):
            while not any(LEAVING_TAINT in taints(node) for node in await here.nodes()):
                await here.sleep(0.05)
        await here.hold(removing=Hold())
        await here.sleep(60)

        (node,) = await here.nodes()
        assert LEAVING_TAINT not in taints(node)
        assert any("removing is on hold" in why for _, why in here.notes.kept)


async def test_an_interrupted_machine_is_drained_even_while_buying_and_removing_are_held() -> None:
    async with world() as here:
        here.start()
        await here.submit("train")
        await until_bound(here)
        await here.hold(buying=Hold(), removing=Hold())
        await here.sleep(POLL_SECONDS * 2)
        (node,) = await here.nodes()
        here.announced.append(Notice(INTERRUPTION, node["spec"]["providerID"], here.now() + 120.0))
        await here.sleep(60)

        assert not (await here.bound()).get("train"), "the pod was not evicted"
        assert len(here.notes.orders) == 1, "a replacement was bought although buying is held"


async def test_an_order_whose_answer_was_lost_is_not_repeated_while_buying_is_held() -> None:
    resent = 0
    for seed in range(4):
        async with world(calls=CallFaults(lost=1.0), seed=seed) as here:
            here.watchman = watch = Counting()
            here.start()
            await here.submit("train")
            await here.sleep(12)
            await here.hold(buying=Hold())
            await here.sleep(120)
            assert watch.orders == 1

            await here.hold(buying=None)
            await here.sleep(60)
            resent += watch.orders - 1
    assert resent, "none of these orders was lost"


async def test_a_new_controller_obeys_a_hold_made_before_its_start() -> None:
    async with world() as here:
        here.start()
        await here.sleep(5)
        await here.kill()
        await here.hold(buying=Hold())
        await here.submit("train")
        here.start()
        await here.sleep(60)

        assert here.notes.orders == []


@pytest.mark.parametrize(
    "data",
    [{"buying": "true"}, {"buying": '{"until": "tomorrow"}'}, {"purchases": "{}"}, {"removing": DEEP}],
    ids=["true", "tomorrow", "key", "deep"],
)
async def test_a_hold_that_cannot_be_parsed_holds_everything_and_is_reported(data: dict[str, str]) -> None:
    async with world() as here:
        here.start()
        await write(here, data)
        await here.submit("train")
        await here.sleep(60)

        assert here.notes.orders == []
        assert here.hold_watcher.trouble.startswith("ConfigMap kube-system/gpuscaler-hold: saw ")
        assert "run `gpuscaler resume`" in here.hold_watcher.trouble

        await write_holds(here.user, "kube-system", {"buying": None, "removing": None})
        await until_bound(here)
        assert here.hold_watcher.trouble == ""


@pytest.mark.parametrize("failure", [Forbidden(403, "no"), Unreachable("nothing answers")], ids=["forbidden", "unreachable"])
async def test_if_the_holds_config_map_cannot_be_read_holds_stay_as_they_are_and_the_error_is_reported(failure: Exception) -> None:
    async with world() as here:
        await here.hold(removing=Hold(by="ann"))
        hold_watcher = HoldWatcher(here.user, namespace="kube-system", now=here.now)
        await hold_watcher.poll()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "get", failing(failure))
            assert not await hold_watcher.poll()

        assert hold_watcher.holds == Holds(removing=Hold(by="ann"))
        assert "could not be read, so holds stay as they were" in hold_watcher.trouble


@pytest.mark.parametrize("failure", [Unreachable("nothing answers"), TimeoutError(), ServerError(503, "busy")], ids=repr)
async def test_a_controller_holds_buying_and_removing_until_its_first_read_of_the_holds_config_map(failure: Exception) -> None:
    async with world() as here:
        hold_watcher = HoldWatcher(here.user, namespace="kube-system", now=here.now)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "get", failing(failure))
            assert await hold_watcher.poll()

            assert len(hold_watcher.holds.sentences(here.now())) == 2
            assert "could not be read, so everything is held until it can be read" in hold_watcher.trouble

        assert await hold_watcher.poll()
        assert (hold_watcher.holds, hold_watcher.trouble) == (Holds(), "")


async def test_without_the_right_to_read_holds_nothing_is_held_and_the_error_is_reported() -> None:
    async with world() as here:
        hold_watcher = HoldWatcher(here.user, namespace="kube-system", now=here.now)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "get", failing(Forbidden(403, "no")))
            assert not await hold_watcher.poll()

        assert hold_watcher.holds == Holds()
        assert "could not be read, so holds stay as they were" in hold_watcher.trouble


def test_the_reason_text_of_a_hold_is_cut_to_the_length_of_a_sentence() -> None:
    (sentence,) = Holds(buying=Hold(by="b" * 10_000, reason="r" * 900_000)).sentences(0.0)

    assert len(sentence) < 600


def failing(failure: Exception) -> Callable[..., Awaitable[bytes]]:
    async def get(*_: object, **__: object) -> bytes:
        raise failure

    return get


async def test_one_user_can_hold_buying_while_another_holds_removing() -> None:
    async with world() as here:
        await asyncio.gather(*(here.hold(**{activity: Hold(by=activity)}) for activity in ("buying", "removing")))
        hold_watcher = HoldWatcher(here.user, namespace="kube-system", now=here.now)

        assert await hold_watcher.poll()
        assert hold_watcher.holds == Holds(Hold(by="buying"), Hold(by="removing"))
