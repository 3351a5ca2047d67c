"""The decision history is limited, survives restarts, and never stops the controller."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace
from tests.control.records.deciding import removal_decision

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history.history import EACH, FILE, History, StoredDecision, open_history
from gpuscaler.control.records.history.inputs import unpack_decision
from gpuscaler.control.records.history.keeping import WAITING, HistoryWriter
from gpuscaler.control.records.history.replaying import replay_decision
from gpuscaler.planning.plans import Plan


def memory(*, decisions: int = 10, most_bytes: int = 1_000) -> History:
    return open_history("", decisions=decisions, most_bytes=most_bytes)[0]


def test_a_history_that_is_dropped_closes_its_database() -> None:
    connection = sqlite3.connect(":memory:")
    History(connection, decisions=1, most_bytes=1, on_disk=False)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def stored_decision(number: int, size: int = 100) -> StoredDecision:
    return StoredDecision(f"d-{number}", float(number), f"decision {number}", Plan(), b"x" * size)


def history_event(number: int, **fields: object) -> HistoryEvent:
    return replace(HistoryEvent(float(number), kinds.ORDERED, f"number {number}"), **fields)


def test_events_are_found_by_pod_node_or_decision_with_the_oldest_first() -> None:
    history = memory()
    history.add(
        [history_event(1, pods=("a/x", "a/y"), decision="d-1"), history_event(2, node="n"), history_event(3, pods=("a/x",), node="n")], []
    )

    assert [event.text for event in history.events_about("pod/a/x")] == ["number 1", "number 3"]
    assert [event.text for event in history.events_about("pod/a/y")] == ["number 1"]
    assert [event.text for event in history.events_about("node/n")] == ["number 2", "number 3"]
    assert [event.text for event in history.events_about("decision/d-1")] == ["number 1"]
    assert history.events_about("pod/a/x", most=1) == [history_event(3, pods=("a/x",), node="n")]
    assert history.events_about("pod/unknown/pod") == []


def test_only_the_newest_decisions_and_events_are_kept() -> None:
    history = memory(decisions=3)
    for number in range(50):
        history.add([history_event(number, node="n")], [stored_decision(number, 1)])

    assert [brief.id for brief in history.decisions()] == ["d-49", "d-48", "d-47"]
    assert len(history.recent_events(most=1_000)) == 3 * EACH
    assert len(history.events_about("node/n", most=1_000)) == 3 * EACH
    assert history.decision("d-1") is None


def test_inputs_of_old_decisions_are_deleted_and_the_reason_for_that_is_kept() -> None:
    history = memory(most_bytes=250)
    for number in range(4):
        history.add([], [stored_decision(number)])

    assert [brief.size for brief in history.decisions()] == [100, 100, 0, 0]
    old = history.decision("d-0", inputs=True)
    assert old is not None
    assert old.inputs is None
    assert old.missing == "the inputs of newer decisions take the 250 bytes that are kept (history.bytes)"


def test_inputs_of_a_decision_are_loaded_only_on_request() -> None:
    history = memory()
    history.add([], [stored_decision(1)])

    without, with_inputs = history.decision("d-1"), history.decision("d-1", inputs=True)
    assert without is not None
    assert with_inputs is not None
    assert (without.inputs, with_inputs.inputs) == (None, b"x" * 100)


def test_history_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for _ in range(2):
        history, trouble = open_history(str(tmp_path), decisions=3, most_bytes=1 << 20)
        assert trouble == ""
        assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == dict.fromkeys(
            [path.name for path in tmp_path.iterdir()], "0o600"
        )
        history.close()
        path.chmod(0o644)


def test_a_history_file_keeps_the_history_across_restarts(tmp_path: Path) -> None:
    first, trouble = open_history(str(tmp_path / "new"), decisions=10, most_bytes=1_000)
    first.add([history_event(1, node="n")], [stored_decision(1)])
    first.close()

    again, _ = open_history(str(tmp_path / "new"), decisions=10, most_bytes=1_000)

    assert trouble == ""
    assert again.on_disk
    assert [brief.id for brief in again.decisions()] == ["d-1"]
    assert again.events_about("node/n") == [history_event(1, node="n")]
    again.close()


@pytest.mark.parametrize("damage", ["garbage", "another form"])
def test_an_unreadable_history_file_is_renamed_and_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    if damage == "garbage":
        path.write_bytes(b"this is no database" * 100)
    else:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()

    history, trouble = open_history(str(tmp_path), decisions=10, most_bytes=1_000)

    assert trouble == ""
    assert history.on_disk
    assert history.decisions() == []
    assert (tmp_path / "history.unreadable").exists()
    history.close()


def test_if_the_history_folder_is_not_writable_that_is_reported_and_history_stays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    history, trouble = open_history(str(tmp_path / "file"), decisions=10, most_bytes=1_000)
    history.add([history_event(1)], [])

    assert not history.on_disk
    assert trouble.startswith(f"history.folder {tmp_path}/file: saw ")
    assert trouble.endswith("decisions are kept in memory only")


async def test_decisions_are_written_within_seconds_and_can_be_replayed() -> None:
    keeper = HistoryWriter(memory(most_bytes=1_000_000))
    running = asyncio.create_task(keeper.run())
    keeper.happened(history_event(1, node="n"))
    keeper.decided(removal_decision())
    assert keeper.history.decisions() == []
    await asyncio.sleep(2.0)

    stored = keeper.history.decision("d-1", inputs=True)
    assert stored is not None
    assert stored.inputs is not None
    decision, _ = unpack_decision(stored.inputs)
    assert replay_decision(decision).identical
    keeper.happened(history_event(2, node="n"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(keeper.history.events_about("node/n")) == 2


async def test_many_decisions_at_once_keep_only_a_few_cluster_states_in_memory() -> None:
    keeper = HistoryWriter(memory())
    some = removal_decision()
    for number in range(WAITING + 3):
        keeper.decided(Decision(f"d-{number}", some.at, "", some.cluster, some.state, some.policy, some.plan))
    await keeper.flush()

    assert len(keeper.history.decisions()) == WAITING
    assert keeper.lost == 3


async def test_failed_writes_of_the_history_are_reported_once_and_counted() -> None:
    history = memory()
    keeper = HistoryWriter(history)
    history.close()
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            keeper.happened(history_event(number))
            await keeper.flush()

    assert keeper.lost == 3
    assert keeper.trouble.startswith("the history of decisions cannot be written: ")
    assert [log["event"] for log in logs] == ["decisions could not be kept"]
