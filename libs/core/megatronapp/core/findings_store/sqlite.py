"""Findings in one SQLite file, for a laptop. A file that SQLite can't read is moved aside, and an empty one begun."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings_store.base import Row
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")

SCHEMA = """
CREATE TABLE IF NOT EXISTS findings (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    job TEXT NOT NULL,
    open INTEGER NOT NULL,
    updated_unix_ns INTEGER NOT NULL,
    stored_unix_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
)
"""
ANNOTATIONS = """
CREATE TABLE IF NOT EXISTS annotations (number INTEGER PRIMARY KEY, finding TEXT NOT NULL, body BLOB NOT NULL)
"""
ANNOTATIONS_INDEX = "CREATE INDEX IF NOT EXISTS annotations_of_finding ON annotations (finding)"
BUSY_SECONDS = 5.0
"""Another process may be writing."""


class SqliteBackend:
    """See `Backend` for what it promises. Raises UnavailableError when the file can't be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = _opened_or_new(path)
        except (OSError, sqlite3.Error) as error:
            raise UnavailableError(f"the findings in {path} can't be opened: {error}") from error

    async def index(self) -> list[Row]:
        columns = "id, run, job, open, updated_unix_ns, stored_unix_ns, bytes"
        found = await self._run(lambda database: database.execute(f"SELECT {columns} FROM findings").fetchall())  # noqa: S608
        return [Row.of(str(id_), *fields) for id_, *fields in found]

    async def read(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        def bodies(database: sqlite3.Connection) -> dict[str, bytes]:
            found = {id_: database.execute("SELECT body FROM findings WHERE id = ?", (id_,)).fetchone() for id_ in ids}
            return {id_: row[0] if isinstance(row[0], bytes) else b"" for id_, row in found.items() if row}

        return await self._run(bodies)

    async def write(self, row: Row, body: bytes, gone: Sequence[str]) -> None:
        values = (row.id, row.run, row.job, row.open, row.updated_unix_ns, row.stored_unix_ns, row.bytes, body)

        def write(database: sqlite3.Connection) -> None:
            _delete(database, gone)
            database.execute("INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

        await self._run(write)

    async def delete(self, ids: Sequence[str]) -> None:
        await self._run(lambda database: _delete(database, ids))

    async def annotate(self, id: str, body: bytes, most: int) -> bool:  # noqa: A002  as in `Backend`
        def annotate(database: sqlite3.Connection) -> bool:
            added = database.execute(
                "INSERT INTO annotations (finding, body) SELECT id, ? FROM findings WHERE id = ?", (body, id)
            )
            database.execute(
                "DELETE FROM annotations WHERE finding = ? AND number NOT IN"
                " (SELECT number FROM annotations WHERE finding = ? ORDER BY number DESC LIMIT ?)",
                (id, id, most),
            )
            return added.rowcount > 0

        return await self._run(annotate)

    async def annotations(self, ids: Sequence[str]) -> Mapping[str, Sequence[bytes]]:
        query = "SELECT body FROM annotations WHERE finding = ? ORDER BY number"

        def bodies(database: sqlite3.Connection) -> dict[str, list[bytes]]:
            found = {id_: database.execute(query, (id_,)).fetchall() for id_ in ids}
            return {
                id_: [body if isinstance(body, bytes) else b"" for (body,) in rows]
                for id_, rows in found.items()
                if rows
            }

        return await self._run(bodies)

    async def close(self) -> None:
        with self._lock:
            self._database.close()

    async def _run(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        return await asyncio.to_thread(self._transaction, action)

    def _transaction(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            with self._lock, self._database:
                return action(self._database)
        except sqlite3.Error as error:
            raise UnavailableError(f"the findings in {self._path} can't be reached: {error}") from error


def _delete(database: sqlite3.Connection, ids: Sequence[str]) -> None:
    keys = [(id_,) for id_ in ids]
    database.executemany("DELETE FROM findings WHERE id = ?", keys)
    database.executemany("DELETE FROM annotations WHERE finding = ?", keys)


def _opened_or_new(path: Path) -> sqlite3.Connection:
    try:
        return _opened(path)
    except sqlite3.OperationalError:  # locked, or no room: the file itself may be sound
        raise
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.broken-{int(time.time())}")
        log.error("findings_unreadable", file=str(path), error=str(error), moved_to=str(aside))
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _opened(path)


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    database.text_factory = lambda text: text.decode(errors="replace")  # else one bad text fails the whole query
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        with database:
            for statement in (SCHEMA, ANNOTATIONS, ANNOTATIONS_INDEX):
                database.execute(statement)
    except BaseException:
        database.close()
        raise
    return database
