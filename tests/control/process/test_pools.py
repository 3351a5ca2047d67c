"""Discovered pools: read when leading begins and every few minutes, and kept if a read fails."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
import structlog

from gpuscaler.clouds.protocol import UNKNOWN, AccountReport, CloudError, UnreadPart
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.model.aside import Skipped
from gpuscaler.model.pools import Limits, Policy, Pool

GPU, MORE = Pool("gpu", ()), Pool("more", ())


class Account:
    """Answers each read with the next result, and repeats the last one."""

    def __init__(self, *answers: AccountReport | CloudError) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def read(self) -> AccountReport:
        self.asked.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def discovered_pools(self, changed: Callable[[], None] = lambda: None) -> DiscoveredPools:
        made = DiscoveredPools(self.read, random=Random(1))
        made.listen(changed)
        return made


async def running(discovered_pools: DiscoveredPools, seconds: float) -> None:
    await discovered_pools.read_until_known()
    task = asyncio.create_task(discovered_pools.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pools_discovered_in_the_account_replace_pools_of_the_run_file() -> None:
    discovered_pools = Account(AccountReport(pools=(GPU, MORE))).discovered_pools()
    await discovered_pools.read_until_known()

    policy = discovered_pools.policy(Policy((), limits=Limits(gpus=8)))

    assert ([pool.name for pool in policy.pools], policy.limits.gpus) == (["gpu", "more"], 8)


async def test_if_no_pool_is_discovered_the_reasons_are_logged() -> None:
    aside = tuple(Skipped(f"AutoScalingGroup r/{name}", f"the tag says cluster {name}") for name in "abcde")
    with structlog.testing.capture_logs() as lines:
        await Account(AccountReport(set_aside=aside)).discovered_pools().read_until_known()

    (line,) = lines
    assert (line["log_level"], line["set_aside"]) == ("warning", 5)
    assert line["problem"] == "; ".join(f"AutoScalingGroup r/{name}: the tag says cluster {name}" for name in "abc")


async def test_the_account_is_read_about_every_three_minutes_and_changed_pools_are_reported() -> None:
    counts: list[int] = []
    account = Account(AccountReport(pools=(GPU,)), AccountReport(pools=(GPU,)), AccountReport(pools=(GPU, MORE)))
    discovered_pools = account.discovered_pools(lambda: counts.append(len(discovered_pools.newest.pools)))

    await running(discovered_pools, 1000)

    pauses = [later - before for before, later in zip(account.asked, account.asked[1:], strict=False)]
    assert counts == [2]
    assert all(144 <= pause <= 216 for pause in pauses)
    assert len(set(pauses)) == len(pauses) >= 4


async def test_a_region_that_cannot_be_read_is_reported_and_keeps_its_pools() -> None:
    calls: list[int] = []
    broken = AccountReport(pools=(GPU,), failed=(UnreadPart("Region us-east-1", "IAM does not allow it"),))
    account = Account(AccountReport(pools=(GPU,)), broken, CloudError(UNKNOWN, "no route"), AccountReport(pools=(GPU,)))
    discovered_pools, troubles = account.discovered_pools(lambda: calls.append(1)), []
    await discovered_pools.read_until_known()
    task = asyncio.create_task(discovered_pools.run())
    for _ in range(4):
        troubles.append((discovered_pools.trouble, len(discovered_pools.newest.pools)))
        discovered_pools.read_soon()
        await asyncio.sleep(1)
    task.cancel()

    assert troubles == [("", 1), ("Region us-east-1: IAM does not allow it", 1), ("no route", 1), ("", 1)]
    assert calls == []


@pytest.mark.parametrize(
    "nothing", [CloudError(UNKNOWN, "no route"), AccountReport(failed=(UnreadPart("Region us-east-1", "no route"),), complete=False)]
)
async def test_a_controller_does_not_lead_before_it_has_read_the_account(nothing: AccountReport | CloudError) -> None:
    account = Account(nothing, nothing, nothing, AccountReport(pools=(GPU,)))
    discovered_pools = account.discovered_pools()

    await discovered_pools.read_until_known()

    assert account.asked == [0, 5, 15, 35]
    assert (discovered_pools.trouble, discovered_pools.newest.pools) == ("", (GPU,))


async def test_a_controller_leads_with_the_regions_that_answered() -> None:
    discovered_pools = Account(
        AccountReport(pools=(GPU,), failed=(UnreadPart("Region us-west-2", "no route"),), complete=False)
    ).discovered_pools()

    await discovered_pools.read_until_known()

    assert (discovered_pools.trouble, discovered_pools.newest.pools) == ("Region us-west-2: no route", (GPU,))
