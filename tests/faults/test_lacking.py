"""F68: machines that never show what they are sold with."""

import pytest
from tests.control.test_lacking import EFA, NEVER, submit, with_resource
from tests.faults.kit import faulty, status

from gpuscaler.control.controller import Pace

pytestmark = pytest.mark.looptime(noop_cycles=1)


async def test_f68_two_machines_in_a_row_without_their_gpus_close_their_type_though_both_became_nodes() -> None:
    async with faulty(faults=NEVER, pace=Pace(ready=60.0)) as here:
        await here.submit("p")
        await here.sleep(900.0)

        assert len(here.cluster.core.history()) == 2
        (breaker,) = (await status(here)).breakers
        assert (breaker.target, breaker.cause, breaker.open) == ("pool gpu g4dn.xlarge", "lacking", True)
        assert "machines never showed nvidia.com/gpu, 2 times" in breaker.text
        assert ["look at the device plugin" in one.text for one in here.notes.remarks] == [True]


async def test_f68_pods_that_do_not_ask_for_what_is_missing_are_served() -> None:
    async with faulty(pace=Pace(ready=60.0)) as here:
        await here.kill()
        here.policy = with_resource(here.policy, EFA)
        here.start()
        await submit(here, "fast", EFA)
        await here.sleep(400.0)
        assert len(here.cluster.core.history()) == 2
        await here.submit("plain")
        await here.sleep(60.0)

        assert (await here.bound())["plain"]
        assert not (await here.bound())["fast"]
        assert len(here.cluster.core.history()) == 3
