"""Planning again from what a decision was made from, and what differs."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.control.records.events.records import Decision
from gpuscaler.planning.planner import plan as planned
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.result import REMOVALS_WITHHELD, without_removals

#: So many entries of a field are told before the rest is counted.
TOLD = 5


class Replay(Struct, frozen=True):
    """``plan`` is the one made now. ``differences`` are sentences, none where both plans are the same to the last bit."""

    plan: Plan
    differences: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return not self.differences


def replayed(decision: Decision) -> Replay:
    """Plan again. Takes as long as the plan took."""
    again = planned(decision.cluster, decision.state, decision.policy, decision.at, live=True)
    if REMOVALS_WITHHELD in decision.plan.warnings:
        again = without_removals(again)
    return Replay(again, tuple(differences(decision.plan, again)))


def differences(recorded: Plan, again: Plan) -> Iterator[str]:
    """What differs between two plans, field by field; what took time is no part of a plan."""
    for field in msgspec.structs.fields(Plan):
        if field.name == "solve_seconds":
            continue
        old, new = getattr(recorded, field.name), getattr(again, field.name)
        if msgspec.msgpack.encode(old) == msgspec.msgpack.encode(new):
            continue
        if isinstance(old, tuple) and isinstance(new, tuple):
            yield from _of_entries(field.name, old, new)
        else:
            yield f"{field.name}: recorded {old!r}, now {new!r}"


def _of_entries(name: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[str]:
    gone = [one for one in old if one not in new]
    come = [one for one in new if one not in old]
    lines = [f"{name}: recorded and not now: {_json(one)}" for one in gone] + [
        f"{name}: now and not recorded: {_json(one)}" for one in come
    ]
    yield from lines[:TOLD]
    if len(lines) > TOLD:
        yield f"{name}: {len(lines) - TOLD} more entries differ"
    if not lines:
        yield f"{name}: the same entries in another order"


def _json(entry: object) -> str:
    return msgspec.json.encode(entry).decode()
