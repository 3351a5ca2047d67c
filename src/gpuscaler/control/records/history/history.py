"""The decision history: the newest events, decisions and their inputs, in SQLite.

A file keeps it across restarts; on a dry run, and without a folder to write to, it is in memory.
"""

import sqlite3
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.model.pods import Owner
from gpuscaler.planning.plans import Plan

#: The version of the tables; a file with another version is renamed and replaced.
FORMAT_VERSION = 1
FILE = "history.db"
#: The number of events kept for each decision that the limit allows, of pods indexed for each event, and of index entries kept.
EACH, NAMED, SUBJECTS = 10, 500, 200_000

_TABLES = """
CREATE TABLE happenings (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE subjects (subject TEXT NOT NULL, number INTEGER NOT NULL);
CREATE INDEX subjects_by_name ON subjects (subject, number);
CREATE INDEX subjects_by_number ON subjects (number);
CREATE TABLE decisions (
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at REAL NOT NULL, text TEXT NOT NULL, plan TEXT NOT NULL,
  inputs BLOB, size INTEGER NOT NULL, missing TEXT NOT NULL
);
"""


class StoredDecision(Struct, frozen=True):
    """A stored decision. ``inputs`` are None if they were not kept, and ``missing`` then says why."""

    id: str
    at: float
    text: str
    plan: Plan
    inputs: bytes | None = None
    missing: str = ""


class DecisionSummary(Struct, frozen=True):
    """A decision in a list; ``size`` is the size of its inputs in bytes, 0 if there are none."""

    id: str
    at: float
    text: str
    size: int


class History:
    """The history in a database. Its methods may be called from any thread: a lock serializes them. Raise sqlite3.Error and OSError."""

    def __init__(self, connection: sqlite3.Connection, *, decisions: int, most_bytes: int, on_disk: bool) -> None:
        self.on_disk = on_disk
        self._db = connection
        self._decisions, self._bytes = decisions, most_bytes
        self._lock = threading.Lock()
        # A start that fails half-way drops the history without closing it.
        weakref.finalize(self, connection.close)

    def add(self, happenings: Sequence[HistoryEvent], decisions: Iterable[StoredDecision]) -> None:
        """Add events and decisions, and delete the oldest ones."""
        encode = msgspec.json.Encoder().encode
        with self._lock, self._db:
            for event in happenings:
                number = self._db.execute("INSERT INTO happenings (body) VALUES (?)", (encode(event).decode(),)).lastrowid
                about = {f"pod/{pod}" for pod in event.pods[:NAMED]} | ({f"node/{event.node}"} if event.node else set())
                about |= {f"decision/{event.decision}"} if event.decision else set()
                if event.owner.kind and event.pods:
                    about.add(owner_subject(event.pods[0], event.owner))
                self._db.executemany("INSERT INTO subjects VALUES (?, ?)", [(name, number) for name in sorted(about)])
            for made in decisions:
                size = len(made.inputs or b"")
                row = (made.id, made.at, made.text, encode(made.plan).decode(), made.inputs, size, made.missing)
                self._db.execute(
                    "INSERT OR REPLACE INTO decisions (id, at, text, plan, inputs, size, missing) VALUES (?, ?, ?, ?, ?, ?, ?)", row
                )
            self._delete_old()

    def _delete_old(self) -> None:
        """Limit the number of rows, and the inputs in bytes; the newest decision keeps its inputs unless they alone are too large."""
        most = self._decisions * EACH
        self._db.execute("DELETE FROM happenings WHERE number <= (SELECT max(number) FROM happenings) - ?", (most,))
        self._db.execute("DELETE FROM subjects WHERE number <= (SELECT max(number) FROM happenings) - ?", (most,))
        self._db.execute("DELETE FROM subjects WHERE rowid <= (SELECT max(rowid) FROM subjects) - ?", (SUBJECTS,))
        self._db.execute("DELETE FROM decisions WHERE number <= (SELECT max(number) FROM decisions) - ?", (self._decisions,))
        remaining_bytes = self._bytes
        for number, size in self._db.execute("SELECT number, size FROM decisions WHERE size > 0 ORDER BY number DESC").fetchall():
            remaining_bytes -= size
            if remaining_bytes < 0:
                why = f"the inputs of newer decisions take the {self._bytes} bytes that are kept (history.bytes)"
                self._db.execute("UPDATE decisions SET inputs = NULL, size = 0, missing = ? WHERE number = ?", (why, number))

    def events_about(self, subject: str, *, most: int = 20) -> list[HistoryEvent]:
        """The newest events about ``pod/NS/NAME``, ``node/NAME``, ``owner/KIND/NS/NAME`` or ``decision/ID``, the oldest first."""
        rows = self._select(
            "SELECT body FROM happenings JOIN subjects USING (number) WHERE subject = ? ORDER BY number DESC LIMIT ?", (subject, most)
        )
        return [msgspec.json.decode(body, type=HistoryEvent) for (body,) in reversed(rows)]

    def recent_events(self, *, most: int = 50) -> list[HistoryEvent]:
        """The newest events, the oldest first."""
        rows = self._select("SELECT body FROM happenings ORDER BY number DESC LIMIT ?", (most,))
        return [msgspec.json.decode(body, type=HistoryEvent) for (body,) in reversed(rows)]

    def decisions(self, *, most: int = 50) -> list[DecisionSummary]:
        """The newest decisions, the newest first."""
        return [
            DecisionSummary(*row) for row in self._select("SELECT id, at, text, size FROM decisions ORDER BY number DESC LIMIT ?", (most,))
        ]

    def decision(self, name: str, *, inputs: bool = False) -> StoredDecision | None:
        """A decision by its id, with its inputs only if ``inputs`` is set."""
        what = "inputs" if inputs else "NULL"
        rows = self._select(f"SELECT id, at, text, plan, {what}, missing FROM decisions WHERE id = ?", (name,))  # noqa: S608  # a constant
        for decision_id, at, text, plan, blob, missing in rows:
            return StoredDecision(decision_id, at, text, msgspec.json.decode(plan, type=Plan), blob, missing)
        return None

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _select(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()


def owner_subject(pod: str, owner: Owner) -> str:
    """The subject under which events about pods of ``owner`` are indexed; ``pod`` is the ``namespace/name`` of one of them."""
    return f"owner/{owner.kind}/{pod.partition('/')[0]}/{owner.name}"


def open_history(folder: str, *, decisions: int, most_bytes: int) -> tuple[History, str]:
    """The history in ``folder``, or in memory if that is empty; and the problem, if there is one.

    If the folder cannot be written to, the history is in memory. A file that is damaged or has another version is renamed and replaced.
    """
    if folder:
        try:
            return _make_history(_open_database(Path(folder)), decisions=decisions, most_bytes=most_bytes, on_disk=True), ""
        except (sqlite3.Error, OSError) as error:
            trouble = f"history.folder {folder}: saw {error}, expected a writable folder; decisions are kept in memory only"
    else:
        trouble = ""
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    memory.executescript(_TABLES)
    return _make_history(memory, decisions=decisions, most_bytes=most_bytes, on_disk=False), trouble


def read_history(path: Path) -> History:
    """The history in the file ``path``, opened read-only, also while a controller writes it. Raises sqlite3.Error."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM decisions").fetchone()
    except BaseException:
        connection.close()
        raise
    return _make_history(connection, decisions=0, most_bytes=0, on_disk=True)


def _make_history(connection: sqlite3.Connection, *, decisions: int, most_bytes: int, on_disk: bool) -> History:
    return History(connection, decisions=decisions, most_bytes=most_bytes, on_disk=on_disk)


def _open_database(folder: Path) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    try:
        return _connect(path)
    except sqlite3.DatabaseError:
        if not path.exists():
            raise
        path.replace(path.with_suffix(".unreadable"))
        for rest in (f"{FILE}-wal", f"{FILE}-shm"):
            (folder / rest).unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    # Not every user of a machine may read names of pods and nodes; SQLite gives the files beside it the same mode.
    with suppress(OSError):
        path.touch(mode=0o600)
        path.chmod(0o600)
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT_VERSION):
            raise sqlite3.DatabaseError(f"saw tables of version {version}, expected {FORMAT_VERSION}")
        # Losing the last second in a crash of the machine does no harm; waiting for the disk at each write would cost time.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            connection.executescript(f"{_TABLES}PRAGMA user_version = {FORMAT_VERSION};")
        connection.execute("SELECT count(*) FROM decisions").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
