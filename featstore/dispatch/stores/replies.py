"""The data of a TCP store's server: a SQLite file that answers each numbered request once."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from featstore.dispatch.stores.sqlite import (
    SqliteStore,
    add,
    compare_put,
    put,
    shared_connection,
)

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS replies "
    "(client TEXT PRIMARY KEY, number INTEGER NOT NULL, reply TEXT NOT NULL) WITHOUT ROWID"
)
_READ = "SELECT number, reply FROM replies WHERE client = ?"
_WRITE = "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)"
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
        super().__init__(path, partial(_connect, is_durable=is_durable))

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
            known = connection.execute(_READ, (client,)).fetchone()
            if known is not None and known[0] == number:
                return json.loads(known[1])
            reply = _WRITES[verb](connection, *arguments)
            connection.execute(_WRITE, (client, number, json.dumps(reply)))
            return reply


def _connect(path: Path, *, is_durable: bool) -> sqlite3.Connection:
    durability = "FULL" if is_durable else "OFF"
    # Exclusive: of two servers with one file, the second must not begin.
    connection = shared_connection(path, "locking_mode = EXCLUSIVE", f"synchronous = {durability}")
    try:
        connection.execute(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection
