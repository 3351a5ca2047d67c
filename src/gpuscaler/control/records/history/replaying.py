"""Replays a decision: plans again from its inputs and compares the plans."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.control.records.events.records import Decision
from gpuscaler.planning.planner import plan as planned
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.result import REMOVALS_WITHHELD, without_removals

#: How many differing entries of a field are listed; the rest is counted.
MAX_DIFFERENCES = 5


class Replay(Struct, frozen=True):
    """The result of a replay. ``plan`` is the new plan. ``differences`` are sentences; there are none if both plans are identical."""

    plan: Plan
    differences: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return not self.differences


def replay_decision(decision: Decision) -> Replay:
    """Plan again from the inputs of ``decision``. This takes as long as the recorded plan."""
    plan = planned(decision.cluster, decision.state, decision.policy, decision.at, live=True)
    if REMOVALS_WITHHELD in decision.plan.warnings:
        plan = without_removals(plan)
    return Replay(plan, tuple(differences(decision.plan, plan)))


def differences(recorded: Plan, replayed: Plan) -> Iterator[str]:
    """The differences between two plans, field by field; the solve time is not compared."""
    for field in msgspec.structs.fields(Plan):
        if field.name == "solve_seconds":
            continue
        old, new = getattr(recorded, field.name), getattr(replayed, field.name)
        if msgspec.msgpack.encode(old) == msgspec.msgpack.encode(new):
            continue
        if isinstance(old, tuple) and isinstance(new, tuple):
            yield from _entry_differences(field.name, old, new)
        else:
            yield f"{field.name}: recorded {old!r}, now {new!r}"


def _entry_differences(name: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[str]:
    missing = [entry for entry in old if entry not in new]
    added = [entry for entry in new if entry not in old]
    lines = [f"{name}: recorded, missing now: {_json(entry)}" for entry in missing] + [
        f"{name}: new, not recorded: {_json(entry)}" for entry in added
    ]
    yield from lines[:MAX_DIFFERENCES]
    if len(lines) > MAX_DIFFERENCES:
        yield f"{name}: {len(lines) - MAX_DIFFERENCES} more entries differ"
    if not lines:
        yield f"{name}: the same entries in another order"


def _json(entry: object) -> str:
    return msgspec.json.encode(entry).decode()
