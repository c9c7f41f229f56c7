"""A store in one SQLite file, for the processes of one host: durable, and readable with any SQLite
tool.

Write-ahead logging lets readers go on while one process writes. With `synchronous=NORMAL` every
write survives any crash of processes. A crash of the machine may lose the last writes, but then no
worker is left to miss them.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from featstore.dispatch.stores.mounts import require_local
from featstore.errors import DispatchError

# How long to wait for a write lock. A process that is stopped in the middle of a write holds it
# (docs/dispatch.md); a larger value only delays the error.
_BUSY_S = 30.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
)
_GET = "SELECT value FROM entries WHERE key = ?"
_SET = "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_ADD = """INSERT INTO entries VALUES (?1, CAST(?2 AS TEXT))
    ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + ?2 AS TEXT)
    RETURNING CAST(value AS INTEGER)"""


class SqliteStore:
    """A handle with one connection, safe for threads and for fork; see `Store`.

    An open SQLite connection must not be carried through a fork: the child would believe that it
    holds file locks which only the parent holds. All connections are therefore closed just before a
    fork, and opened again at the next use, on both sides.

    Raises:
        DispatchError: `path` is on a network file system, or the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        require_local(path)
        self._path, self._is_closed = path, False
        with _making:
            self._link = _Link()
        # Dropped without `close()`, perhaps by the garbage collector in another thread.
        weakref.finalize(self, self._link.drop).atexit = False
        with self._transaction():
            pass

    def set(self, key: str, value: str) -> None:
        with self._transaction() as connection:
            connection.execute(_SET, (key, value))

    def add(self, key: str, amount: int) -> int:
        with self._transaction() as connection:
            return int(connection.execute(_ADD, (key, amount)).fetchone()[0])

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        with self._transaction() as connection:
            row = connection.execute(_GET, (key,)).fetchone()
            held = None if row is None else str(row[0])
            if held == expected or (held is None and not expected):
                connection.execute(_SET, (key, desired))
                held = desired
            return expected if held is None else held

    def check(self, keys: list[str]) -> bool:
        return all(self.get_or_none(key) is not None for key in keys)

    def get_or_none(self, key: str) -> str | None:
        with self._connected() as connection:
            row = connection.execute(_GET, (key,)).fetchone()
            return None if row is None else str(row[0])

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        with self._connected() as connection:
            rows = (connection.execute(_GET, (key,)).fetchone() for key in keys)
            return [None if row is None else str(row[0]) for row in rows]

    def close(self) -> None:
        with self._link.lock:
            self._is_closed = True
            self._link.disconnect()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._link.lock:
            if self._is_closed:
                raise DispatchError(f"this handle of dispatch store {self._path} is closed")
            try:
                if self._link.connection is None:
                    self._link.connection = _connect(self._path)
                yield self._link.connection
            except (sqlite3.Error, OSError) as error:
                code = getattr(error, "sqlite_errorname", None) or type(error).__name__
                raise DispatchError(
                    f"dispatch store {self._path} cannot be used: {error} ({code}); is its "
                    f"directory writable?"
                ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Takes the write lock at the beginning. A read that is upgraded to a write later may fail
        with SQLITE_BUSY without waiting for its turn.
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back after some errors.
                    connection.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        _retried(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = NORMAL")
        _retried(lambda: connection.execute(_SCHEMA))
    except BaseException:
        connection.close()
        raise
    return connection


def _retried(act: Callable[[], object]) -> None:
    """Retries `act` while the database is locked.

    A change of the journal mode fails at once if another process makes it too: it ignores the
    busy timeout.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as error:
            if (
                error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.005)


class _Link:
    """The connection of one handle. It is known to the hook around forks until it is closed, also
    when the handle is gone already.

    `lock` guards the connection. A thread that holds it never takes `_making`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        _links.add(self)

    def disconnect(self) -> None:
        """Closes the connection. The caller holds `lock`."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def drop(self) -> None:
        """The handle is gone. Runs as a finalizer, in any thread and at any time, so it waits for
        no lock: only the hook around forks can hold this one, and then closes the connection.
        """
        if self.lock.acquire(blocking=False):
            try:
                self.disconnect()
            finally:
                self.lock.release()
        _links.discard(self)


_links: set[_Link] = set()
_forking: list[_Link] = []
# Held from before a fork until after it, so that no other thread makes a handle or forks in
# between: the child would inherit an open connection. Lock order: `_making` first, then the locks
# of links. Nobody makes a handle while holding one of those; finalizers, which may run at any
# time, make none. It is reentrant all the same, so that a finalizer that did would not wait for its
# own thread.
_making = threading.RLock()


def _before_fork() -> None:
    _making.acquire()
    _forking.extend(list(_links))  # Made at once: finalizers remove links at any time.
    for link in _forking:
        link.lock.acquire()
        link.disconnect()


def _after_fork() -> None:
    while _forking:
        _forking.pop().lock.release()
    _making.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
