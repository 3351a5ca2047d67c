"""Cost of users, namespaces and kinds of pods, and machines over time."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.first_fit import first_fit
from tests.simulation.pools import C8, FIXED, G1, G4, POLICY, trace
from tests.soaking import examples

from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.cloud.machines import CloudMachine
from gpuscaler.simulation.measures.fleet import STRETCHES, machines_over_time
from gpuscaler.simulation.measures.shares import part_of
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.traces.workload import Shaping, members
from gpuscaler.simulation.world.meter import Result


def replay(jobs: Trace) -> Result:
    return run(jobs, POLICY, autoscaler=Gpuscaler(POLICY, decide=first_fit(POLICY)), delays=FIXED, faults=NO_FAULTS)


def test_users_pay_for_the_gpus_that_they_hold_and_boot_and_idle_time_is_unattributed() -> None:
    result = replay(trace(Job("a", 0, 3600, gpus=1, user="ana", namespace="team"), Job("b", 0, 1800, gpus=1, user="ben", namespace="team")))
    ana, ben, nobody = result.users
    assert (ana.name, ben.name, nobody.name) == ("ana", "ben", None)
    assert ana.cost == pytest.approx(2 * ben.cost)
    assert [ana.gpu_hours, ben.gpu_hours] == pytest.approx([1, 0.5])
    assert ana.cost + ben.cost + nobody.cost == pytest.approx(result.cost)
    assert [share.name for share in result.namespaces] == ["team", None]
    assert [share.name for share in result.classes] == ["1 GPU", None]


def test_pods_on_machines_without_gpus_pay_by_requested_cpu() -> None:
    pod, whole, silent = members(trace(Job("a", 0, 1, cpu_milli=2000), Job("b", 1, 1, cpu_milli=4000, gpus=2), Job("c", 2, 1)), Shaping())
    assert (part_of(pod, C8), part_of(silent, C8)) == (0.25, 0)
    assert (part_of(whole, G4), part_of(pod, G4)) == (0.5, 0)


def test_the_cost_of_pods_without_a_user_is_separate_from_unattributed_cost() -> None:
    assert [share.name for share in replay(trace(Job("a", 0, 60, gpus=1))).users] == ["", None]


JOBS = st.builds(
    Job,
    id=st.uuids().map(str),
    submit=st.floats(0, 5000),
    duration=st.floats(1, 4000),
    pods=st.integers(1, 3),
    gpus=st.integers(0, 5),
    cpu_milli=st.sampled_from((None, 100, 2000)),
    user=st.sampled_from(("", "ana", "ben")),
    namespace=st.sampled_from(("", "x")),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(JOBS, min_size=1, max_size=12))
def test_cost_shares_add_up_to_the_total_cost_and_none_is_negative(jobs: list[Job]) -> None:
    result = replay(trace(*jobs))
    for shares in (result.users, result.namespaces, result.classes):
        assert sum(share.cost for share in shares) == pytest.approx(result.cost)
        assert sum(share.gpu_hours for share in shares) == pytest.approx(result.gpu_hours_paid)
        assert all(share.cost >= 0 and share.gpu_hours >= 0 for share in shares)
    # Nothing is evicted here and images take no time, so that held time equals work.
    worked: dict[str, float] = defaultdict(float)
    ran = {pod_wait.pod.removeprefix("trace/").partition("#")[0] for pod_wait in result.waits if pod_wait.ran}
    for job in jobs:
        if job.id in ran:
            worked[job.user] += job.gpus * job.pods * job.duration / 3600
    assert {share.name: share.gpu_hours for share in result.users[:-1]} == pytest.approx(dict(worked))


def test_machine_counts_over_time_are_averages_of_equal_intervals() -> None:
    def machine(number: int, begin: float, end: float | None) -> CloudMachine:
        return CloudMachine(f"m{number}", G1, "p", "visible", begin, begin, begin, end)

    (entry,) = machines_over_time(
        [machine(1, 0, None), machine(2, 0, STRETCHES / 2), machine(3, STRETCHES - 0.5, None)], began=0, ended=STRETCHES
    )
    assert (entry.pool, entry.market, entry.instance_type, entry.zone) == G1.key
    assert len(entry.machines) == STRETCHES
    assert (entry.machines[0], entry.machines[STRETCHES // 2], entry.machines[-1]) == (2, 1, 1.5)


def test_a_run_of_no_duration_has_no_machines_over_time() -> None:
    assert machines_over_time([], began=5, ended=5) == ()


def test_machine_hours_over_time_add_up_to_the_billed_ones() -> None:
    result = replay(trace(Job("a", 0, 3000, gpus=1), Job("b", 900, 3000, gpus=3), Job("c", 100, 500, cpu_milli=1000)))
    hours = (result.ended - result.began) / 3600 / STRETCHES
    assert sum(sum(presence.machines) * hours for presence in result.fleet) == pytest.approx(sum(row.hours for row in result.machine_hours))
