"""The token bucket: bursts at once, then evenly, in the order of the requests."""

import asyncio

import pytest

from gpuscaler.kube.rate import OVERDRAFT, RateLimit


async def test_a_burst_passes_at_once_and_the_rest_evenly() -> None:
    limit = RateLimit(2, 3)
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(6):
        await limit.wait()
        times.append(loop.time())
    assert times == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])


async def test_requests_pass_in_the_order_they_came() -> None:
    limit = RateLimit(10, 1)
    passed: list[int] = []

    async def wait_and_note(number: int) -> None:
        await limit.wait()
        passed.append(number)

    await asyncio.gather(*map(wait_and_note, range(8)))
    assert passed == list(range(8))
    assert asyncio.get_running_loop().time() == pytest.approx(0.7)


async def test_the_bucket_refills_but_does_not_overflow() -> None:
    limit = RateLimit(1, 2)
    for _ in range(2):
        await limit.wait()
    await asyncio.sleep(100)
    assert [await limit.wait() for _ in range(3)] == pytest.approx([0, 0, 1])


async def test_a_cancelled_request_returns_its_token() -> None:
    limit = RateLimit(1, 1)
    await limit.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await limit.wait()
    assert await limit.wait() == pytest.approx(0.5)


async def test_urgent_requests_pass_first_and_the_others_wait_for_them() -> None:
    limit = RateLimit(10, 1)
    waited = [await limit.wait() for _ in range(2)]
    assert [await limit.wait(urgent=True) for _ in range(5)] == [0] * 5
    assert waited == pytest.approx([0, 0.1])
    assert await limit.wait() == pytest.approx(0.6)


async def test_even_urgent_requests_are_limited() -> None:
    limit = RateLimit(10, 5)
    await asyncio.gather(*(limit.wait(urgent=True) for _ in range(5 + OVERDRAFT * 5)))
    assert asyncio.get_running_loop().time() == 0
    assert await limit.wait(urgent=True) == pytest.approx(0.1)


async def test_the_rate_limit_returns_how_long_a_request_waited() -> None:
    limit = RateLimit(4, 1)
    assert [await limit.wait(), await limit.wait()] == pytest.approx([0, 0.25])


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_limit_that_allows_no_request_is_rejected(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="expected qps above 0 and burst of at least 1"):
        RateLimit(qps, burst)
