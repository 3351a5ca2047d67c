"""Discovered pools: read when leading begins and every few minutes, and kept if a read fails."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
import structlog

from gpuscaler.clouds.protocol import UNKNOWN, CloudError, Looked
from gpuscaler.control.process.pools import FoundPools
from gpuscaler.model.aside import SetAside
from gpuscaler.model.pools import Limits, Policy, Pool

GPU, MORE = Pool("gpu", ()), Pool("more", ())


class Account:
    """Answers each read with the next result, and repeats the last one."""

    def __init__(self, *answers: Looked | CloudError) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def look(self) -> Looked:
        self.asked.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def found(self, changed: Callable[[], None] = lambda: None) -> FoundPools:
        made = FoundPools(self.look, random=Random(1))
        made.listen(changed)
        return made


async def running(found: FoundPools, seconds: float) -> None:
    await found.begin()
    task = asyncio.create_task(found.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pools_of_the_account_replace_those_of_the_file() -> None:
    found = Account(Looked(pools=(GPU, MORE))).found()
    await found.begin()

    policy = found.policy(Policy((), limits=Limits(gpus=8)))

    assert ([pool.name for pool in policy.pools], policy.limits.gpus) == (["gpu", "more"], 8)


async def test_an_account_without_a_pool_is_logged_with_the_reasons() -> None:
    aside = tuple(SetAside(f"AutoScalingGroup r/{name}", f"the tag says cluster {name}") for name in "abcde")
    with structlog.testing.capture_logs() as lines:
        await Account(Looked(set_aside=aside)).found().begin()

    (line,) = lines
    assert (line["log_level"], line["set_aside"]) == ("warning", 5)
    assert line["problem"] == "; ".join(f"AutoScalingGroup r/{name}: the tag says cluster {name}" for name in "abc")


async def test_the_account_is_read_about_every_three_minutes_and_changed_pools_are_reported() -> None:
    told: list[int] = []
    account = Account(Looked(pools=(GPU,)), Looked(pools=(GPU,)), Looked(pools=(GPU, MORE)))
    found = account.found(lambda: told.append(len(found.newest.pools)))

    await running(found, 1000)

    pauses = [later - before for before, later in zip(account.asked, account.asked[1:], strict=False)]
    assert told == [2]
    assert all(144 <= pause <= 216 for pause in pauses)
    assert len(set(pauses)) == len(pauses) >= 4


async def test_a_region_that_fails_is_reported_and_its_pools_stay() -> None:
    told: list[int] = []
    broken = Looked(pools=(GPU,), failed=("Region us-east-1: IAM does not allow it",))
    account = Account(Looked(pools=(GPU,)), broken, CloudError(UNKNOWN, "no route"), Looked(pools=(GPU,)))
    found, troubles = account.found(lambda: told.append(1)), []
    await found.begin()
    task = asyncio.create_task(found.run())
    for _ in range(4):
        troubles.append((found.trouble, len(found.newest.pools)))
        found.hasten()
        await asyncio.sleep(1)
    task.cancel()

    assert troubles == [("", 1), ("Region us-east-1: IAM does not allow it", 1), ("no route", 1), ("", 1)]
    assert told == []


@pytest.mark.parametrize("nothing", [CloudError(UNKNOWN, "no route"), Looked(failed=("Region us-east-1: no route",), complete=False)])
async def test_leading_does_not_begin_before_the_account_was_read(nothing: Looked | CloudError) -> None:
    account = Account(nothing, nothing, nothing, Looked(pools=(GPU,)))
    found = account.found()

    await found.begin()

    assert account.asked == [0, 5, 15, 35]
    assert (found.trouble, found.newest.pools) == ("", (GPU,))


async def test_leading_begins_with_the_regions_that_answer() -> None:
    found = Account(Looked(pools=(GPU,), failed=("Region us-west-2: no route",), complete=False)).found()

    await found.begin()

    assert (found.trouble, found.newest.pools) == ("Region us-west-2: no route", (GPU,))
