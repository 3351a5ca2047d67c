"""What Azure's limits leave slows reads down in time, and holds back only what was refused."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clouds.azure.api.scripted import START, Say, calling
from tests.clouds.azure.api.test_errors import THROTTLED_READ

from gpuscaler.clouds.azure.api.arm import COMPUTE
from gpuscaler.clouds.azure.api.errors import ArmFailure
from gpuscaler.clouds.azure.api.ids import scale_set_path
from gpuscaler.clouds.azure.api.throttling import LONGEST_WAIT, RAREST, USUAL_WAIT, Throttle, kind_of, retry_after_of
from gpuscaler.clouds.protocol import CloudError

SET = scale_set_path("sub", "MC_rg", "aks-gpu-vmss")
MACHINES = f"{SET}/virtualMachines"
RESOURCE, READS = "x-ms-ratelimit-remaining-resource", "x-ms-ratelimit-remaining-subscription-reads"
HIGH_COST = ArmFailure(429, "TooManyRequests", "too many requests", "HighCostGet30Min")
WHOLE = ArmFailure(429, "SubscriptionRequestsThrottled", "Number of 'read' requests exceeded")


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


def test_a_refused_list_holds_back_lists_of_that_kind_and_no_writes() -> None:
    """Z14."""
    clock = Clock()
    throttle = Throttle(clock)

    assert throttle.record("GET", MACHINES, {"retry-after": "1200"}, HIGH_COST) == 1200

    assert throttle.wait_for("GET", MACHINES) == 1200
    assert throttle.wait_for("GET", MACHINES.replace("gpu", "other").upper()) == 1200
    assert throttle.wait_for("GET", SET) == 0
    assert throttle.wait_for("GET", MACHINES.replace("MC_rg", "MC_other")) == 0
    assert throttle.wait_for("PATCH", SET) == 0
    assert throttle.wait_for("POST", f"{SET}/delete") == 0
    assert (throttle.stretch("sub"), throttle.stretch(), throttle.stretch("other")) == (RAREST, RAREST, 1)
    clock.time += 1200
    assert throttle.wait_for("GET", MACHINES) == 0
    assert throttle.stretch("sub") == 1


def test_a_subscription_without_reads_left_holds_back_all_its_reads_and_no_writes() -> None:
    throttle = Throttle(Clock())
    throttle.record("GET", MACHINES, {"retry-after": "10"}, WHOLE)

    assert throttle.wait_for("GET", SET) == 10
    assert throttle.wait_for("GET", SET.replace("sub", "other", 2)) == 0
    assert throttle.wait_for("PUT", SET) == 0


def test_a_subscription_without_writes_left_holds_back_its_writes() -> None:
    throttle = Throttle(Clock())
    throttle.record("PUT", SET, {"retry-after": "10"}, WHOLE)

    assert throttle.wait_for("PATCH", scale_set_path("SUB", "other", "x")) == 10
    assert throttle.wait_for("DELETE", SET) == 0
    assert throttle.wait_for("GET", SET) == 0
    assert throttle.stretch() == 1


def test_a_refusal_without_a_time_waits_a_little_and_one_with_an_absurd_time_not_for_ever() -> None:
    throttle = Throttle(Clock())

    assert throttle.record("GET", SET, {}, HIGH_COST) == USUAL_WAIT
    assert throttle.record("GET", SET, {"retry-after": "999999999"}, HIGH_COST) == LONGEST_WAIT


@pytest.mark.parametrize(("left", "stretch"), [(250, 1.0), (26, 1.0), (25, 1.0), (12, 5.68), (0, 10.0)])
def test_polls_become_rarer_before_a_refusal(left: int, stretch: float) -> None:
    """Z14: below a tenth of what Azure Resource Manager allows."""
    throttle = Throttle(Clock())
    throttle.record("GET", SET, {READS: str(left)})

    assert throttle.stretch("sub") == pytest.approx(stretch)


def test_the_limits_of_compute_are_known_by_the_most_that_was_left() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.record("GET", SET, {RESOURCE: "Microsoft.Compute/HighCostGet3Min;139,Microsoft.Compute/HighCostGet30Min;700"})
    assert throttle.stretch() == 1
    throttle.record("GET", SET, {RESOURCE: "Microsoft.Compute/HighCostGet3Min;100, Microsoft.Compute/HighCostGet30Min;35"})

    assert throttle.stretch() == pytest.approx(5.5)
    clock.time += 1799
    assert throttle.stretch() > 1
    clock.time += 1
    assert throttle.stretch() == 1


def test_few_writes_left_do_not_slow_reads() -> None:
    throttle = Throttle(Clock())
    throttle.record("PUT", SET, {"x-ms-ratelimit-remaining-subscription-writes": "0", "x-ms-ratelimit-remaining-subscription-deletes": "0"})

    assert throttle.stretch() == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0), ("17", 17), ("1200.5", 1200.5), (" 3 ", 3), ("5,5", 5), ("-1", 0), ("nan", 0), ("soon", 0), ("²", 0), ("9" * 40, 0),
        (format_datetime(datetime.fromtimestamp(START + 90, UTC), usegmt=True), 90),
        (format_datetime(datetime.fromtimestamp(START - 90, UTC), usegmt=True), 0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", 0),
    ],
)  # fmt: skip
def test_the_time_to_wait_is_a_number_or_a_date(text: str, seconds: float) -> None:
    assert retry_after_of({"retry-after": text}, START) == pytest.approx(seconds)


def test_reads_are_of_a_kind_by_their_types_and_resource_group_and_writes_by_their_resource() -> None:
    assert (
        kind_of("GET", f"{MACHINES}/7?x=1")
        == "/subscriptions/sub/resourcegroups/mc_rg/providers/microsoft.compute/virtualmachinescalesets/virtualmachines"
    )
    assert kind_of("GET", "/subscriptions/sub/resourceGroups/rg/") == "/subscriptions/sub/resourcegroups/rg"
    assert kind_of("PUT", SET) == SET.lower()


def test_what_is_remembered_is_limited() -> None:
    throttle = Throttle(Clock())
    for number in range(5000):
        throttle.record("GET", scale_set_path(f"sub{number}", f"rg{number}", "x"), {READS: "9", "retry-after": "60"}, HIGH_COST)

    assert len(throttle._buckets) == len(throttle._waits) == 2000


@given(st.dictionaries(st.sampled_from([RESOURCE, READS, "retry-after"]) | st.text(), st.text()), st.text(), st.text(), st.integers(0, 599))
def test_no_header_makes_reading_limits_fail(headers: dict[str, str], method: str, path: str, status: int) -> None:
    throttle = Throttle(Clock())
    wait = throttle.record(method, path, headers, ArmFailure(status))

    assert 0 <= wait <= LONGEST_WAIT
    assert 1 <= throttle.stretch() <= RAREST
    assert throttle.wait_for(method, path) == pytest.approx(wait)


@pytest.mark.looptime(False)
async def test_writes_go_on_while_lists_wait() -> None:
    """Z14, over HTTP."""
    throttled = Say(
        429, THROTTLED_READ, {"Retry-After": "600"}, (("x-ms-ratelimit-remaining-resource", "Microsoft.Compute/HighCostGet3Min;46"),)
    )
    async with calling(throttled, Say(200, {})) as caller:
        with pytest.raises(CloudError):
            await caller.arm.pages(MACHINES, version=COMPUTE)
        await caller.arm.write("PATCH", SET, version=COMPUTE, body={"sku": {"capacity": 2}})
        await caller.arm.read(SET, version=COMPUTE)

    assert [asked.method for asked in caller.server.asked] == ["GET", "PATCH", "GET"]
    assert caller.arm.budget.stretch("sub") == RAREST


@pytest.mark.looptime(False)
async def test_headers_that_are_repeated_are_all_read() -> None:
    repeated = tuple(
        (RESOURCE, f"Microsoft.Compute/{name};{left}") for name, left in (("GetVMScaleSet3Min", 190), ("GetVMScaleSet30Min", 1300))
    )
    async with calling(Say(200, {}, repeated=repeated), Say(200, {}, {RESOURCE: "Microsoft.Compute/GetVMScaleSet30Min;13"})) as caller:
        await caller.arm.read(SET, version=COMPUTE)
        assert caller.arm.budget.stretch() == 1
        await caller.arm.read(SET, version=COMPUTE)

    assert caller.arm.budget.stretch() == pytest.approx(9.1)
