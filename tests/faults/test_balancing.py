"""F77: groups over several zones that balance them by ending machines (AZRebalance)."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK
from tests.objects import pod

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.faults import denied, throttled
from gpuscaler.kube.resources import PODS

ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]
PAIR: dict[str, Any] = {"AvailabilityZones": ZONES[:2], "NewInstancesProtectedFromScaleIn": False}
THREE: dict[str, Any] = {"AvailabilityZones": ZONES, "NewInstancesProtectedFromScaleIn": False}


async def train(here: Stage, name: str, zone: str, *, seconds: int = 7200) -> None:
    """Submit a training pod that is bound to a zone, as by its volume."""
    body = pod(name, 1, {"gpuscaler.io/run-for": f"{seconds}s"})
    body["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
    await here.user.create(PODS, body, namespace="default")


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


def running(here: Stage) -> dict[str, str]:
    """Return the zones of the machines that have not ended, by id."""
    return {instance.id: instance.machine.offering.zone for instance in here.region.instances.values() if instance.ended_at is None}


def balanced_away(here: Stage) -> list[str]:
    """Return the machines that the group ended to even out zones."""
    texts = (activity for activity in here.region.groups["gpus"].activities if activity.description.startswith("Terminating"))
    return [activity.description for activity in texts if "balance" in activity.cause]


async def lost(here: Stage, first: dict[str, str]) -> list[str]:
    alive = {node["metadata"]["name"] for node in await here.nodes()}
    now = await here.bound()
    return sorted(name for name, node in first.items() if now.get(name) != node or node not in alive)


async def test_f77_pods_that_need_one_zone_keep_their_machines_although_their_group_balances_zones(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **PAIR)
        here.start()
        for number in range(4):
            await train(here, f"train-{number}", ZONES[0])
        await here.until(lambda: all_bound(here), 600)
        first = await here.bound()
        await here.sleep(900.0)
        (trouble,) = (await here.status()).troubles
        assert (
            "pool gpus: its group has more machines in us-east-1a than in its other zones, so AZRebalance would terminate some" in trouble
        )
        assert "has protected 4 of its machines from scale-in" in trouble
        assert "make one group per zone" in trouble
        await here.sleep(900.0)

        assert await lost(here, first) == []
        assert sorted(running(here).values()) == ["us-east-1a"] * 4


async def test_f77_equally_priced_machines_are_bought_in_the_zone_with_the_fewest_machines(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **THREE)
        here.start()
        for name in ("notebook-a", "notebook-b", "notebook-c", "notebook-d"):
            await here.deploy(name)
            await here.sleep(20.0)
        await here.until(lambda: all_bound(here), 300)
        await here.sleep(600.0)

        assert balanced_away(here) == []
        assert len(here.machines()) == 4
        assert sorted(running(here).values()) == ["us-east-1a", "us-east-1a", "us-east-1b", "us-east-1c"]
        assert "SetInstanceProtection" not in here.session.call_counts


async def test_f77_several_machines_of_one_order_are_spread_over_the_zones(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **THREE)
        here.start()
        await here.deploy("serve", replicas=6)
        await here.until(lambda: all_bound(here), 300)
        await here.sleep(300.0)

        assert balanced_away(here) == []
        assert sorted(running(here).values()) == sorted(ZONES * 2)


async def test_f77_removals_do_not_trigger_a_rebalance_that_ends_busy_machines(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **PAIR)
        here.start()
        for number in range(2):
            await train(here, f"long-{number}", ZONES[0])
            await train(here, f"short-{number}", ZONES[1], seconds=300)
        await here.until(lambda: all_bound(here), 300)
        first = {name: node for name, node in (await here.bound()).items() if name.startswith("long")}
        await here.sleep(1400.0)

        assert await lost(here, first) == []
        assert balanced_away(here) == []
        assert sorted(running(here).values()) == ["us-east-1a"] * 2
        busy = [instance for instance in here.region.instances.values() if instance.ended_at is None]
        assert [instance.protected for instance in busy] == [True, True]


async def test_f77_scale_in_protection_is_removed_once_zones_are_balanced(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **PAIR)
        here.start()
        for number in range(2):
            await train(here, f"a-{number}", ZONES[0])
        await here.until(lambda: all_bound(here), 600)
        for number in range(2):
            await train(here, f"b-{number}", ZONES[1])
        await here.until(lambda: all_bound(here), 600)
        await here.sleep(500.0)

        assert sorted(running(here).values()) == ["us-east-1a"] * 2 + ["us-east-1b"] * 2
        assert not any(instance.protected for instance in here.region.instances.values() if instance.ended_at is None)
        assert (await here.status()).troubles == ()


async def test_f77_if_machines_cannot_be_protected_no_running_pod_loses_its_machine_to_zone_balancing(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **PAIR)
        here.endpoint.faults.all.append(denied("SetInstanceProtection"))
        here.start()
        for number in range(4):
            await train(here, f"train-{number}", ZONES[0])

        async def explained() -> bool:
            waiting = (await here.status()).waiting
            return any("they cannot be protected from scale-in" in waiting.reason for waiting in waiting)

        await here.sleep(15.0)
        await here.until(explained, 120)
        await here.sleep(300.0)
        first = {name: node for name, node in (await here.bound()).items() if node}
        await here.sleep(1300.0)

        assert first
        assert await lost(here, first) == []
        # A machine whose removal would leave a zone empty stays, with the reason.
        (held, *_) = (await here.status()).removals
        assert "of its group is protected from scale-in" in held.held


async def test_f77_scale_in_protection_for_an_order_that_was_not_filled_is_removed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", NewInstancesProtectedFromScaleIn=False)
        here.start(here.settings(launch="desired-capacity"))
        await here.submit("first", run_for="7200s")
        await here.until(lambda: all_bound(here), 600)
        (machine,) = running(here)
        here.limit(1)
        await here.submit("second", run_for="7200s")
        await here.until(lambda: here.region.instances[machine].protected, 600)
        await here.sleep(300.0)

        assert here.desired("gpus") == 1
        assert not here.region.instances[machine].protected
        assert here.region.instances[machine].ended_at is None


@pytest.mark.parametrize("pending", [10.0, 25.0])
async def test_f77_busy_machines_are_protected_while_their_group_launches_one_in_another_zone(pending: float, tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, pending=pending)) as here:
        here.group("gpus", **PAIR)
        here.start()
        for number in range(2):
            await train(here, f"train-{number}", ZONES[0])
        await here.until(lambda: all_bound(here), 200)
        first = await here.bound()
        await here.sleep(400.0)

        # None was bought a second time, and the machine that the group started by itself is the one it ended.
        assert here.session.call_counts["LaunchInstances"] == 1
        assert await lost(here, first) == []
        assert sorted(running(here).values()) == ["us-east-1a"] * 2
        assert len(here.machines()) <= 3


async def test_f77_scale_in_protection_set_by_the_group_itself_is_not_changed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **{**PAIR, "NewInstancesProtectedFromScaleIn": True})
        here.start()
        for number in range(3):
            await train(here, f"train-{number}", ZONES[0])
        await here.until(lambda: all_bound(here), 200)
        await here.sleep(300.0)

        assert len(here.machines()) == 3
        assert "SetInstanceProtection" not in here.session.call_counts
        (trouble,) = (await here.status()).troubles
        assert "busy machines there are protected from scale-in before they open" in trouble


async def test_f77_purchases_that_unbalance_zones_stop_if_machines_cannot_be_protected_in_time(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", **{**PAIR, "MaxSize": 20})
        here.endpoint.faults.all.append(throttled("SetInstanceProtection"))
        here.start()
        for number in range(5):
            await train(here, f"train-{number}", ZONES[0])

        async def explained() -> bool:
            waiting = (await here.status()).waiting
            return any("cannot be protected from scale-in in time (2 were ended before that)" in waiting.reason for waiting in waiting)

        await here.sleep(15.0)
        await here.until(explained, 300)
        await here.sleep(200.0)

        ours = [
            instance
            for instance in here.region.instances.values()
            if instance.group == "gpus" and not instance.machine.offering.zone.endswith("b")
        ]
        assert len(ours) <= 5 + 2
        assert any("cannot be protected from scale-in in time" in trouble for trouble in (await here.status()).troubles)


@pytest.mark.parametrize("many", [3, 5])
async def test_f77_a_machine_launched_to_balance_zones_is_ended_before_busy_machines(many: int, tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, pending=25.0)) as here:
        here.group("gpus", **{**PAIR, "MaxSize": 20})
        here.start()
        await train(here, "old", ZONES[1])
        await here.until(lambda: all_bound(here), 400)
        (first,) = running(here)
        await here.sleep(120.0)
        for number in range(many):
            await train(here, f"train-{number}", ZONES[0])
        await here.sleep(500.0)

        assert here.region.instances[first].ended_at is None
        assert sorted(await here.bound()) == ["old", *(f"train-{number}" for number in range(many))]
        # Temporary protection is removed, and the machine that the group started is gone.
        assert not here.region.instances[first].protected
        assert sorted(running(here).values()) == [*[ZONES[0]] * many, ZONES[1]]


async def test_f77_scale_in_protection_stays_until_the_surplus_machine_has_left_the_group(tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK)) as here:
        here.group("gpus", **{**PAIR, "MaxSize": 20})
        here.start(here.settings(more="pools:\n  - {name: gpus, idle_after: 30s}\n"))
        for number in range(2):
            await train(here, f"b-{number}", ZONES[1])
        for number in range(4):
            await train(here, f"a-{number}", ZONES[0])
        await here.until(lambda: all_bound(here), 600)
        await here.sleep(60.0)
        for name in ("a-2", "a-3"):
            await here.user.delete(PODS, name, namespace="default")
        await here.sleep(500.0)

        assert sorted(await here.bound()) == ["a-0", "a-1", "b-0", "b-1"]
        assert not await started(here)
        assert sorted(running(here).values()) == [ZONES[0]] * 2 + [ZONES[1]] * 2
        assert not any(instance.protected for instance in here.region.instances.values() if instance.ended_at is None)


async def started(here: Stage, before: int = 0) -> int:
    """Return how many machines the group has launched to even out its zones, apart from ``before``."""
    launches = [activity.cause for activity in here.region.groups["gpus"].activities if activity.description.startswith("Launching")]
    return sum("balance" in cause for cause in launches) - before


@pytest.mark.parametrize("restart", [False, True])
async def test_f77_a_pod_placed_on_an_idle_machine_keeps_it_while_the_group_balances_zones(restart: bool, tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, pending=25.0)) as here:
        here.group("gpus", **{**PAIR, "MaxSize": 20})
        here.start()
        await train(here, "busy", ZONES[1])
        await train(here, "short", ZONES[1], seconds=20)
        await here.until(lambda: all_bound(here), 400)
        await here.sleep(30.0)
        if restart:
            # The next leader does not know which machines were ordered.
            await here.stop()
            here.start(identity="second")
        first, before = dict(running(here)), await started(here)
        for number in range(5):
            await train(here, f"train-{number}", ZONES[0])
        await here.until(lambda: started(here, before), 120)
        # The machine that the group started is almost in service, and the machine to end for it is chosen in a moment.
        await here.sleep(23.5)
        await train(here, "late", ZONES[1])
        await here.sleep(500.0)

        assert [name for name in first if here.region.instances[name].ended_at is not None] == []
        assert await all_bound(here)
