"""The annotation with a node's scheduled event."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.scheduled_events import (
    KINDS,
    LONGEST_VALUE,
    ScheduledEvent,
    format_scheduled_event,
    parse_scheduled_event,
    urgency,
)

EVENT = ScheduledEvent("Preempt", "602d9444-d2cd-49c7-8624-8643e7171297", 1_800_000_030.0, "The machine is deleted.")


def value(**changes: object) -> str:
    return json.dumps({"kind": "Preempt", "id": "e-1", "at": "2027-01-15T08:00:30Z", "description": "", **changes})


def test_an_event_is_written_as_json_that_a_person_can_read() -> None:
    assert format_scheduled_event(EVENT) == (
        '{"kind":"Preempt","id":"602d9444-d2cd-49c7-8624-8643e7171297","at":"2027-01-15T08:00:30Z","description":"The machine is deleted."}'
    )


@given(
    st.sampled_from(KINDS),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", fullmatch=True),
    st.integers(0, 7_000_000_000),
    st.text(max_size=2000),
)
def test_what_is_written_can_be_read_again(kind: str, name: str, at: int, description: str) -> None:
    written = format_scheduled_event(ScheduledEvent(kind, name, float(at), description))
    event = parse_scheduled_event(written)

    assert (event.kind, event.id, event.at) == (kind, name, float(at))
    assert event.description.isprintable()
    assert format_scheduled_event(event) == written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("soon", "JSON such as"),
        ("[]", "JSON such as"),
        ('{"kind":"Preempt"}', "JSON such as"),
        (value(kind="Vanish"), "a kind of Preempt, Terminate, Redeploy, Reboot, Freeze"),
        (value(kind=7), "JSON such as"),
        (value(id=""), "an id of"),
        (value(id="a b"), "an id of"),
        (value(id="x" * 129), "an id of"),
        (value(at="soon"), "a time such as"),
        (value(at="2027-01-15T08:00:30"), "a time such as"),
        (value(at="9999-01-15T08:00:30Z"), "a time such as"),
        (value(at="1890-01-15T08:00:30Z"), "a time such as"),
        (value(description="x" * LONGEST_VALUE), "at most 2048 characters"),
    ],
)
def test_an_unreadable_value_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_scheduled_event(text)


def test_an_event_that_has_started_has_no_time() -> None:
    assert parse_scheduled_event(value(at="")).at == 0.0


def test_a_description_from_outside_is_one_printable_line() -> None:
    assert parse_scheduled_event(value(description="a\nb\x1b[31mc")).description == "a b [31mc"


def test_the_most_urgent_event_is_the_worst_and_of_those_the_first() -> None:
    later, freeze = ScheduledEvent("Preempt", "b", 20.0), ScheduledEvent("Freeze", "c", 1.0)

    assert min([freeze, later, ScheduledEvent("Preempt", "a", 10.0)], key=urgency).id == "a"
