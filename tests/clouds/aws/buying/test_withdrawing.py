"""No changes of others to a group are undone, whatever happens between a read and a write."""

import random

import pytest
from tests.clouds.aws.group_model import GroupModel
from tests.soaking import RUNS, SEED

from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.buying.activities import ActivityLog, CapacityChange
from gpuscaler.clouds.aws.buying.withdrawing import (
    CapacityOutcome,
    Protect,
    Read,
    ReadActivities,
    Step,
    Steps,
    Write,
    raising_steps,
    withdrawing_steps,
)


def group(desired: int, *states: str, protected: bool = True, least: int = 0, most: int = 20) -> Group:
    machines = tuple(Machine(f"i-{n:08x}", "p5.48xlarge", "us-east-1a", state, protected=protected) for n, state in enumerate(states))
    return Group("workers", "us-east-1", "", {}, least, most, desired, ("us-east-1a",), machines=machines, protected=protected)


def schedule(seed: int) -> GroupModel:
    """Raise and withdraw in a group while everything else happens; check the invariants after each step."""
    luck = random.Random(seed)
    model = GroupModel(luck, protected=luck.random() < 0.5)
    busy = luck.choice((0.0, 0.2, 0.5))
    for _ in range(luck.randint(1, 5)):
        units = luck.randint(1, 6)
        raised = model.drive(raising_steps(units), busy=busy)
        model.missing = raised.units
        if raised.units:
            assert model.desired >= model.kept, f"seed {seed}: raising left {model.desired}, others want {model.kept}"
        for _ in range(luck.randint(0, 8)):
            model.step()
        model.drive(withdrawing_steps(model.missing), busy=busy)
        assert model.desired >= model.kept, f"seed {seed}: withdrawing left {model.desired}, others want {model.kept}"
        for _ in range(20):
            model.scale_in()
    return model


@pytest.mark.parametrize("part", range(10))
def test_no_sequence_of_events_undoes_increases_of_others_or_ends_a_machine_that_was_not_named(part: int) -> None:
    # These are fast: always at least a thousand in total.
    each = max(100, RUNS // 10)
    for number in range(each):
        seed = (SEED * 10 + part) * 1_000_000 + number
        assert schedule(seed).unnamed == [], f"seed {seed}"


def answers(steps: Steps, *replies: object) -> tuple[list[Step], CapacityOutcome]:
    """The requests of ``steps``, whose questions get the next of ``replies`` as answers, and their outcome."""
    remaining, steps_taken, answer = list(replies), list[Step](), None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            assert remaining == []
            outcome: CapacityOutcome = stop.value
            return steps_taken, outcome
        steps_taken.append(step)
        answer = remaining.pop(0) if isinstance(step, Read | ReadActivities) else None


QUIET = ActivityLog()


def test_an_unfilled_capacity_increase_is_lowered_to_the_existing_machines() -> None:
    full = group(5, "InService", "Pending", "InService")
    steps_taken, outcome = answers(withdrawing_steps(2), full, QUIET, full, QUIET, QUIET, group(3, "InService", "Pending", "InService"))
    assert steps_taken == [Read(), ReadActivities(), Read(), ReadActivities(), Write(3), ReadActivities(), Read()]
    assert (outcome.units, outcome.desired, outcome.waiting) == (2, 3, 0)


def test_capacity_increases_of_others_are_kept() -> None:
    seven = group(7, "InService", "InService", "InService")
    steps_taken, outcome = answers(withdrawing_steps(2), seven, QUIET, seven, QUIET, QUIET, group(5, "InService", "InService", "InService"))
    assert Write(5) in steps_taken
    assert outcome.units == 2


def test_nothing_is_written_if_all_machines_launched_in_the_meantime() -> None:
    steps_taken, outcome = answers(withdrawing_steps(2), group(3, "InService", "Pending", "Pending"))
    assert steps_taken == [Read()]
    assert (outcome.units, outcome.waiting) == (0, 0)


def test_desired_capacity_is_never_lowered_below_the_groups_minimum() -> None:
    steps_taken, outcome = answers(withdrawing_steps(4), group(4, least=3), QUIET, group(4, least=3), QUIET, QUIET, group(3, least=3))
    assert Write(3) in steps_taken
    assert outcome.units == 1


def test_a_machine_launched_between_read_and_write_is_kept_and_counted() -> None:
    late = "InService", "InService", "InService", "Pending"
    three = group(5, *late[:3])
    steps_taken, outcome = answers(withdrawing_steps(2), three, QUIET, three, QUIET, QUIET, group(3, *late), QUIET, group(4, *late))
    assert [step for step in steps_taken if isinstance(step, Write)] == [Write(3), Write(4)]
    assert outcome.desired == 4


def test_withdrawing_waits_for_a_machine_that_is_being_launched() -> None:
    group_of_three = group(3, "InService")
    steps_taken, outcome = answers(withdrawing_steps(2), group_of_three, QUIET, group_of_three, ActivityLog(launching=("i-00000009",)))
    assert not [step for step in steps_taken if isinstance(step, Write)]
    assert (outcome.waiting, outcome.why) == (2, "a machine is being launched at this moment")


def test_an_overwritten_capacity_increase_of_others_is_restored() -> None:
    before = ActivityLog((CapacityChange(10.0, 3, 6), CapacityChange(10.0, 6, 5)))
    after = ActivityLog((*before.changes, CapacityChange(11.0, 5, 8)))
    steps_taken, outcome = answers(raising_steps(2), QUIET, group(3), before, group(5), after, group(8))
    assert [step for step in steps_taken if isinstance(step, Write)] == [Write(5), Write(8)]
    assert (outcome.units, outcome.desired) == (2, 8)


def test_machines_are_protected_before_a_group_is_lowered() -> None:
    bare, guarded = group(3, "InService", protected=False), group(3, "InService")
    steps_taken, _ = answers(withdrawing_steps(2), bare, QUIET, guarded, QUIET, QUIET, group(1, "InService"))
    assert steps_taken[:2] == [Read(), Protect(("i-00000000",))]


def test_desired_capacity_is_not_lowered_while_a_machine_is_unprotected() -> None:
    bare = group(3, "InService", protected=False)
    steps_taken, outcome = answers(withdrawing_steps(2), bare, QUIET, bare, QUIET)
    assert not [step for step in steps_taken if isinstance(step, Write)]
    assert outcome.waiting == 2
    assert outcome.why == "machine i-00000000 is not protected from scale-in yet"


def test_capacity_that_terminating_machines_still_occupy_is_withdrawn_later() -> None:
    ending = group(3, "InService", "Terminating")
    steps_taken, outcome = answers(withdrawing_steps(2), ending, QUIET, ending, QUIET, QUIET, group(2, "InService", "Terminating"))
    assert Write(2) in steps_taken
    assert (outcome.units, outcome.waiting) == (1, 1)


def test_desired_capacity_is_increased_only_up_to_the_groups_maximum() -> None:
    steps_taken, outcome = answers(raising_steps(5), QUIET, group(3, most=6), QUIET, group(6, most=6))
    assert Write(6) in steps_taken
    assert outcome.units == 3
    assert answers(raising_steps(5), QUIET, group(6, most=6))[1].units == 0


def test_machines_above_the_desired_capacity_do_not_reduce_the_capacity_to_request() -> None:
    steps_taken, _ = answers(raising_steps(2), QUIET, group(1, "InService", "InService", "InService"), QUIET, group(5))
    assert Write(5) in steps_taken
