"""A store in one SQLite file, for the processes of one host: durable, and readable with any SQLite
tool.

Write-ahead logging lets readers go on while one process writes. With `synchronous=NORMAL` every
write survives any crash of processes. A crash of the machine may lose the last writes, but then no
worker is left to miss them.

The data of a TCP store's server are such a file, too, which answers each numbered request once.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import DispatchError, DispatchUnavailableError, system_may_pass
from featstore.base.host import network_mount_of
from featstore.base.sqlite_connection import ForkSafeConnection
from featstore.dispatch.stores.base import Store

# How long to wait for a lock. A process that is stopped in the middle of a write holds it
# (docs/dispatch.md); a larger value only delays the error.
_BUSY_S = 30.0
# How long one try waits, after which the connections are opened again. Chosen, not measured: a lock
# that nobody releases stops all workers for so long.
_TRY_S = 3.0
# A change of the journal mode fails at once if another process makes it too: it ignores the busy
# timeout.
_PAUSE_S = 0.005
# PROTOCOL: a lock that readers take for a moment was held through all of SQLite's tries, for 10 s.
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_PASSING = (*_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM)
Result = TypeVar("Result")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
)
_GET = "SELECT value FROM entries WHERE key = ?"
_SET = "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_ADD = """INSERT INTO entries VALUES (:key, CAST(:amount AS TEXT))
    ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + :amount AS TEXT)
    RETURNING CAST(value AS INTEGER)"""


class SqliteStore(Store):
    """A handle with one connection, safe for threads and for fork; see `Store`.

    Args:
        path: The file.
        connect: Opens a connection to it.

    Raises:
        DispatchError: `path` is on a network file system, or the file cannot be opened.
    """

    def __init__(
        self, path: Path, connect: Callable[[Path], sqlite3.Connection] | None = None
    ) -> None:
        _require_local(path)
        self._path = path
        self._connection = ForkSafeConnection(
            partial(connect or shared_connection, path),
            lambda: DispatchError(f"this handle of dispatch store {path} is closed"),
        )
        with self.transaction():
            pass

    def set(self, key: str, value: str) -> None:
        with self.transaction() as connection:
            put(connection, key, value)

    def add(self, key: str, amount: int) -> int:
        with self.transaction() as connection:
            return add(connection, key, amount)

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        with self.transaction() as connection:
            return compare_put(connection, key, expected, desired)

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        with ExitStack() as using:
            return self._unlocked(using, lambda connection: [get(connection, key) for key in keys])

    def close(self) -> None:
        self._connection.close()

    def _unlocked(self, using: ExitStack, act: Callable[[sqlite3.Connection], Result]) -> Result:
        """Does what changes nothing, and does it again on new connections while the file is locked.

        SQLite ignores it if the system fails to release a lock. Then all processes wait for that
        lock, this one too, until it closes its connections and so drops all locks that it holds.

        Args:
            using: Keeps the connection for this thread, and names the store in errors.
            act: What to do with it.
        """
        using.enter_context(self._named_errors())
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                with ExitStack() as tried:
                    tried.enter_context(self._connection.lock)
                    result = act(self._connection.opened())
                    using.push(tried.pop_all())
                    return result
            except sqlite3.OperationalError as error:
                # The low byte is the primary code, of which the rest says more.
                is_locked = error.sqlite_errorcode & 0xFF in _LOCKED
                if not is_locked or time.monotonic() > deadline:
                    raise
            self._connection.disconnect_all()
            time.sleep(_PAUSE_S)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorname", None) or type(error).__name__
            raise (DispatchUnavailableError if _may_pass(error) else DispatchError)(
                f"dispatch store {self._path} cannot be used: {error} ({code}); is its "
                f"directory writable?"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which ends with the block: all of it is written, or with an error nothing.

        It takes the write lock at the beginning. A read that is upgraded to a write later may fail
        with SQLITE_BUSY without waiting for its turn.
        """
        with ExitStack() as using:
            connection = self._unlocked(using, _begun)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back after some errors.
                    connection.execute("ROLLBACK")
                raise


def _may_pass(error: sqlite3.Error | OSError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in _PASSING if isinstance(error, sqlite3.Error) else system_may_pass(error)


def _require_local(path: Path) -> None:
    """Checks that a store at `path` would be on a local file system, as far as /proc tells.

    Raises:
        DispatchError: `path` is on a network file system.
    """
    mount = network_mount_of(path)
    if mount is not None:
        raise DispatchError(
            f"dispatch store sqlite://{path} lies on {mount[1]} (mounted at {mount[0]}): expected "
            "a local file system, because workers of several machines would not see each other's "
            "SQLite locks and would read rows twice; choose a local path for the processes of one "
            "host (store auto takes $TMPDIR), or tcp://host:port of `featstore dispatch serve` for "
            "many"
        )


def _begun(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    return connection


def get(connection: sqlite3.Connection, key: str) -> str | None:
    """The value of a key, or None; here and below see `Store`."""
    row = connection.execute(_GET, (key,)).fetchone()
    return None if row is None else str(row[0])


def put(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(_SET, (key, value))


def add(connection: sqlite3.Connection, key: str, amount: int) -> int:
    return int(connection.execute(_ADD, {"key": key, "amount": amount}).fetchone()[0])


def compare_put(connection: sqlite3.Connection, key: str, expected: str, desired: str) -> str:
    held = get(connection, key)
    if held == expected or (held is None and not expected):
        put(connection, key, desired)
        return desired
    return expected if held is None else held


def shared_connection(
    path: Path,
    *,
    options: Sequence[str] = ("synchronous = NORMAL",),
    tables: Sequence[str] = (_SCHEMA,),
) -> sqlite3.Connection:
    """Opens a connection beside those of other processes. The file is created if it is missing.

    Args:
        path: The file.
        options: SQLite's pragmas that are set first, such as `synchronous = FULL`.
        tables: The statements that create its tables.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_TRY_S, isolation_level=None, check_same_thread=False
    )
    with cleaned_up_on_failure(connection.close):
        for option in options:
            connection.execute(f"PRAGMA {option}")
        connection.execute("PRAGMA journal_mode = WAL")
        for table in tables:
            connection.execute(table)
    return connection


_REPLIES = (
    "CREATE TABLE IF NOT EXISTS replies "
    "(client TEXT PRIMARY KEY, number INTEGER NOT NULL, reply TEXT NOT NULL) WITHOUT ROWID"
)
_READ_REPLY = "SELECT number, reply FROM replies WHERE client = ?"
_WRITE_REPLY = "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)"
_WRITES: Mapping[str, Callable[..., Any]] = {"set": put, "add": add, "compare_set": compare_put}


class ReplyingStore(SqliteStore):
    """A file that this process alone uses.

    What a request wrote and the reply to it are one transaction. So a client that has lost a reply
    can ask again with the same number, also a server that was killed and came back.

    Args:
        path: The file.
        is_durable: Whether every write survives a crash of the machine: its workers, on other
            machines, live on.

    Raises:
        DispatchError: The file cannot be opened, or another process uses it.
    """

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        # Exclusive: of two servers with one file, the second must not begin.
        options = "locking_mode = EXCLUSIVE", f"synchronous = {'FULL' if is_durable else 'OFF'}"
        super().__init__(
            path, partial(shared_connection, options=options, tables=(_SCHEMA, _REPLIES))
        )

    def answer(self, client: str, number: int, verb: str, *arguments: Any) -> Any:
        """Does what a request asks for, or returns its reply if it is done already.

        Args:
            client: The client, by a name that no other has.
            number: Of the request. A client has one request at a time.
            verb: `get_many`, `leave`, or a verb of `Store` that writes.
            arguments: Those of the verb.

        Raises:
            DispatchError: The file cannot be written.
            ValueError, TypeError: There is no such request.
        """
        if verb == "get_many":
            return self.get_many(*arguments)
        if verb != "leave" and verb not in _WRITES:
            raise ValueError(f"no verb {verb!r}")
        with self.transaction() as connection:
            if verb == "leave":
                connection.execute("DELETE FROM replies WHERE client = ?", (client,))
                return None
            known = connection.execute(_READ_REPLY, (client,)).fetchone()
            if known is not None and known[0] == number:
                return json.loads(known[1])
            reply = _WRITES[verb](connection, *arguments)
            connection.execute(_WRITE_REPLY, (client, number, json.dumps(reply)))
            return reply
