"""The memory of one version can be read by the next version and by the previous one: during an upgrade, and after a rollback.

Next to this file are a memory that the version of 22 November 2026 wrote, with every field filled, and the JSON Schema of the memory that
this version reads.
"""

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
from tests.planning.filling import filled_value

from gpuscaler.control.records.status.removals import STEPS
from gpuscaler.lifecycle.memory import Memory

FOLDER = Path(__file__).parent
WRITTEN = FOLDER / "memory-of-2026-11-22.json"
SCHEMA = FOLDER / "memory-of-2026-11-22.schema.json"
#: Steps of removals that the version of that day knows; it would treat any other step as the detaching of volumes.
KNOWN_STEPS = {"marking", "waiting", "draining", "detaching", "ending", "clearing", "reopening"}


def within(part: Any, whole: Any) -> bool:
    """Whether ``whole`` contains all of ``part``, possibly with more keys."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return all(map(within, part, whole))
    return bool(part == whole)


def test_the_saved_state_of_the_previous_version_is_read_without_losses() -> None:
    before = msgspec.json.decode(WRITTEN.read_bytes())
    memory = msgspec.json.decode(WRITTEN.read_bytes(), type=Memory)

    assert within(before, msgspec.json.decode(msgspec.json.encode(memory)))


def test_the_previous_version_can_read_the_saved_state_of_this_one() -> None:
    memory = msgspec.json.decode(msgspec.json.encode(filled_value(Memory)))

    jsonschema.validate(memory, msgspec.json.decode(SCHEMA.read_bytes()))
    assert set(STEPS) <= KNOWN_STEPS


def test_the_schema_rejects_a_saved_state_with_a_field_of_another_type() -> None:
    memory = msgspec.json.decode(msgspec.json.encode(filled_value(Memory)))
    memory["ledger"]["coming"][0]["asked"] = "2026-11-22"

    errors = list(jsonschema.Draft202012Validator(msgspec.json.decode(SCHEMA.read_bytes())).iter_errors(memory))
    assert [list(error.absolute_path) for error in errors] == [["ledger", "coming", 0, "asked"]]
