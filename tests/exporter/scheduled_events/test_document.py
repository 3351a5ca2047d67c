"""The document of scheduled events, with everything that may be wrong with it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporter.scheduled_events.azure import MACHINE, event

from gpuscaler.exporter.scheduled_events.document import DocumentError, events_of, parse_document
from gpuscaler.model.scheduled_events import ScheduledEvent


def document(*events: Any, incarnation: int = 7) -> bytes:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": list(events)}).encode()


def test_an_event_is_read_with_its_kind_time_status_and_machines() -> None:
    parsed = parse_document(
        document(event(Resources=["aks-gpu-12345678-VMSS_10", "other"]), event("Freeze", id="e-2", EventStatus="Started", at=""))
    )
    assert parsed is not None
    first, second = parsed.events

    assert (first.event, first.started, first.machines) == (
        ScheduledEvent("Preempt", "e-1", 1_800_000_030.0),
        False,
        frozenset({MACHINE, "other"}),
    )
    assert (second.event, second.started) == (ScheduledEvent("Freeze", "e-2", 0.0), True)
    assert parsed.incarnation == 7


def test_a_document_with_a_known_incarnation_says_nothing_new() -> None:
    assert parse_document(document(event()), known=7) is None
    assert parse_document(document(event()), known=6) is not None


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (event("Vanish"), "EventType 'Vanish'"),
        (event(EventStatus="Perhaps"), "EventStatus 'Perhaps'"),
        (event(ResourceType="Disk"), "ResourceType 'Disk'"),
        (event(id=""), "EventId ''"),
        (event(id="a b"), "EventId 'a b'"),
        (event(Resources="all"), "not readable"),
        (event(Resources=[1]), "not readable"),
        (event(Resources=["x" * 300]), "Resources"),
        ({"EventType": "Preempt"}, "not readable"),
        ("Preempt", "not readable"),
        (None, "not readable"),
    ],
)
def test_an_odd_event_is_set_aside_with_its_place_and_the_others_count(odd: object, words: str) -> None:
    parsed = parse_document(document(odd, event()))
    assert parsed is not None

    assert [each.event.id for each in parsed.events] == ["e-1"]
    (text,) = parsed.set_aside
    assert text.startswith("Events[0]: saw ")
    assert words in text


def test_an_event_with_an_unreadable_time_happens_at_an_unknown_time() -> None:
    parsed = parse_document(document(event(at="soon"), event(id="e-2", at=None)))
    assert parsed is not None

    assert [(each.event.at, each.oddity.partition(",")[0]) for each in parsed.events] == [(0.0, "saw NotBefore 'soon'"), (0.0, "")]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b'{"DocumentIncarnation":"x","Events":[]}', b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_document_is_an_error(body: bytes) -> None:
    with pytest.raises(DocumentError, match="expected JSON with DocumentIncarnation"):
        parse_document(body)


def test_events_of_other_machines_are_not_ours() -> None:
    parsed = parse_document(document(event(Resources=["aks-gpu-12345678-vmss_1"]), event(id="e-2"), event(id="e-3", Resources=[])))
    assert parsed is not None

    assert [each.event.id for each in events_of(parsed, {MACHINE})] == ["e-2"]


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(event())), JSONS), max_size=4))
def test_no_event_whatever_it_is_keeps_others_from_being_read(odd: list[dict[str, object]]) -> None:
    parsed = parse_document(msgspec.json.encode({"DocumentIncarnation": 1, "Events": [*odd, event(id="last")]}))
    assert parsed is not None

    assert parsed.events[-1].event.id == "last"
    assert len(parsed.events) + len(parsed.set_aside) == len(odd) + 1
