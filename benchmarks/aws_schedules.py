"""Groups that others change at any moment while we raise and withdraw: no change of others is undone, no other machine is ended.

The model of a group, including its simplifications, is that of the tests.
"""

from collections.abc import Iterator

from tests.clouds.aws.buying.test_withdrawing import schedule

from benchmarks.figures import Figure

SCHEDULES, SEED = 10_000, 1


def figures() -> Iterator[Figure]:
    lowered, unnamed, raised = list[int](), 0, 0
    for seed in range(SEED * SCHEDULES, (SEED + 1) * SCHEDULES):
        try:
            model = schedule(seed)
        except AssertionError:
            lowered.append(seed)
        else:
            unnamed += len(model.unnamed)
            raised += len(model.changes)
    yield Figure(
        f"desired capacity lowered below others' raises, unnamed machines removed; {SCHEDULES:,} random schedules, seed {SEED}",
        "Cluster Autoscaler's issue 9182: 32 machines",
        "0",
        f"lowered in {len(lowered)} schedules{f': seeds {lowered[:10]}' if lowered else ''}, {unnamed} machines; {raised:,} changes in all",
        not lowered and not unnamed,
        {"schedules": SCHEDULES, "seed": SEED, "lowered": len(lowered), "unnamed": unnamed, "changes": raised},
    )
