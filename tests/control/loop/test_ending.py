"""Machines are ended together, each after a last check of its node."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, CloudError, Refusal
from gpuscaler.control.loop.ending import EndCall, EndResult, end_machines
from gpuscaler.control.loop.failing import CALL_SECONDS
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.model.offerings import OfferingKey

KEY = OfferingKey("gpus", "spot", "large", "here")


class Provider:
    """Notes when it is asked to end which machine; ``answers`` are its refusals and errors."""

    def __init__(self, **answers: Refusal | Exception) -> None:
        self.answers = answers
        self.asked: list[tuple[float, str]] = []

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        self.asked += [(asyncio.get_running_loop().time(), ident) for ident in ids]
        answers = {ident: self.answers.get(ident) for ident in ids}
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return {ident: answer for ident, answer in answers.items() if not isinstance(answer, Exception)}


async def ended(provider: Any, *calls: EndCall, fence: Any = lambda _seconds: None) -> dict[str, EndResult]:
    results: list[EndResult] = []
    await end_machines(provider, calls, fence=fence, keep=results.append)
    return {result.instance: result for result in results}


def checked(instance: str, seconds: float = 0.0, pod: str = "") -> EndCall:
    async def check() -> str:
        await asyncio.sleep(seconds)
        return pod

    return EndCall(instance, f"node-{instance}", check)


async def test_all_machines_are_ended_at_one_moment_after_all_checks() -> None:
    provider = Provider()
    results = await ended(provider, checked("a", 0.5), checked("b", 3.0), EndCall("c", "node-c"), checked("d", 1.0, "a pod is bound"))
    assert [ident for _, ident in provider.asked] == ["a", "b", "c"]
    assert len({at for at, _ in provider.asked}) == 1
    assert results["d"] == EndResult("d", "node-d", "a pod is bound", held=True)
    assert {results[ident].detail for ident in "abc"} == {""}


async def test_what_the_cloud_does_not_take_yet_differs_from_what_it_refuses() -> None:
    throttled, denied = Refusal(THROTTLED, KEY, "busy", retry_after=10.0), Refusal(UNAUTHORISED, KEY, "denied", retry_after=60.0)
    provider = Provider(a=throttled, b=denied, c=CloudError(THROTTLED, "too many", retry_after=5.0), d=CloudError(THROTTLED, "soon"))
    results = await ended(provider, *(EndCall(ident, f"node-{ident}") for ident in "abcd"))
    assert {ident: (result.detail, result.wait) for ident, result in results.items()} == {
        "a": ("busy", 10.0),
        "b": ("denied", 0.0),
        "c": ("too many", 5.0),
        "d": ("soon", 0.0),
    }


async def test_a_check_without_an_answer_or_with_an_error_keeps_only_its_own_machine() -> None:
    async def fail() -> str:
        raise Unreachable("no answer")

    async def break_down() -> str:
        raise ValueError("odd")

    provider = Provider()
    calls = (checked("slow", CALL_SECONDS + 1.0), EndCall("cut", "n", fail), EndCall("odd", "n", break_down), checked("fine"))
    results = await ended(provider, *calls)
    assert [ident for _, ident in provider.asked] == ["fine"]
    assert results["slow"].detail == "no answer within 10 s"
    assert results["cut"].detail == "no answer"
    assert "ValueError" in results["odd"].detail
    assert not any(result.held for result in results.values())


async def test_nothing_is_ended_once_another_process_leads() -> None:
    def fence(_seconds: float) -> None:
        raise NotLeaderError("another leads")

    provider = Provider()
    with pytest.raises(NotLeaderError):
        await ended(provider, EndCall("a", "n"), EndCall("b", "m"), fence=fence)
    assert provider.asked == []
