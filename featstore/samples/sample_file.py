"""The file of a sample store: its format, how it is opened, and what its errors mean.

The format is described in docs/contracts.md. It is SQLite's, with write-ahead logging, so that
readers go on while one process writes.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import DiskFullError, SampleStoreError
from featstore.base.host import network_mount_of
from featstore.base.named_errors import told_as
from featstore.base.redaction import shown
from featstore.files.looks import exists
from featstore.samples.sample_fields import SampleFields, Stored, checksum

_APPLICATION_ID = 0x66735353  # "fsSS"
_FORMAT = 1
# What SQLite says of a damaged schema quotes it.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


@dataclass(frozen=True, kw_only=True)
class SampleFile:
    """Where a store is and how it is opened. It holds no open file, so it may be pickled.

    Attributes:
        path: The absolute path of the file.
        immutable: Whether it is opened as a file that nobody changes: without locks, and without
            files beside it.
        wait_s: How long to wait for another writer.
    """

    path: Path
    immutable: bool = False
    wait_s: float = 30.0

    def create(self, fields: SampleFields) -> None:
        """Makes a store without samples.

        Raises:
            SampleStoreError: There is a file already, or the directory cannot be written, or is on
                a network file system.
            DiskFullError: The disk is full.
        """
        self._require_local("cannot be created there")
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError as error:
            raise SampleStoreError(
                f"sample store {self.path}: there is a file already; open it, or choose another "
                f"path"
            ) from error
        except OSError as error:
            what = f"sample store {self.path} cannot be created"
            raise told_as(SampleStoreError, what, error, "then create it again") from error
        with (
            cleaned_up_on_failure(self._remove),
            self.translated(),
            closing(sqlite3.connect(self.path, isolation_level=None)) as connection,
        ):
            _lay_out(connection, fields)

    def connect(self, *, to_write: bool = False) -> sqlite3.Connection:
        """A new connection, after a look at what the file is.

        Raises:
            SampleStoreError: There is no file, or it is no sample store, of another format,
                damaged, on a network file system, or may not be opened.
        """
        if not exists(self.path):
            raise SampleStoreError(
                f"sample store {self.path}: there is no such file; SampleStore.create makes one"
            )
        self._require_openable(to_write=to_write)
        # Readers, too, may write the file: who closes it last folds the log into it.
        mode = "ro&immutable=1" if self.immutable else "rw"
        with self.translated():
            connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={mode}",
                uri=True,
                timeout=self.wait_s,
                isolation_level=None,
                check_same_thread=False,
            )
            with cleaned_up_on_failure(connection.close):
                self._require_format(connection)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA query_only = {'OFF' if to_write else 'ON'}")
        return connection

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Takes the write lock at once, and commits at the end of the block or undoes all of it.

        Raises:
            SampleStoreError: Another process keeps the lock for `wait_s`, or the file is damaged.
            DiskFullError: The disk is full.
        """
        with self.translated():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has rolled back after some errors.
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns errors of SQLite into those of featstore."""
        try:
            yield
        except SQLITE_ERRORS as error:
            raise self.error(error) from error

    def error(self, error: Exception) -> SampleStoreError | DiskFullError:
        """What an error of SQLite means."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        said = f"sample store {self.path}"
        if code == sqlite3.SQLITE_FULL or name == "SQLITE_IOERR_SHMSIZE":
            return DiskFullError(
                f"{said} cannot be written or opened, since the disk, or the quota on it, is full "
                f"({name}); what was committed before is kept: free space there and go on"
            )
        if code == sqlite3.SQLITE_BUSY:
            return SampleStoreError(
                f"{said}: another process has been writing to it for {self.wait_s:g} s: expected "
                f"one writer at a time ({name}); wait for it, or raise wait_s",
                errno.EBUSY,
            )
        if code in _DAMAGED or "UTF-8" in str(error) or isinstance(error, UnicodeDecodeError):
            return self.damaged(f"{error} ({name})")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return SampleStoreError(
                f"{said} cannot be opened: {error} ({name}); readers, too, need to write to its "
                f"directory: change its permissions, or open a file that nobody changes with "
                f"immutable=True"
            )
        return SampleStoreError(f"{said} cannot be used: {error} ({name})", errno.EIO)

    def view(self, connection: sqlite3.Connection) -> "StoreView":
        """What an open store holds now.

        Raises:
            SampleStoreError: The row that describes the store is damaged.
        """
        row = connection.execute(
            "SELECT checksum, version, num_samples, fields FROM store"
        ).fetchone()
        if row is None or checksum(row[1:]) != row[0]:
            raise self.damaged("what describes the store does not match its checksum")
        return StoreView(
            version=row[1], num_samples=row[2], fields=SampleFields(kinds=dict(json.loads(row[3])))
        )

    def require_sound(self, found: Stored, sample: Sequence[Stored]) -> None:
        """Compares a sample (position, id and values) with the checksum found beside it.

        Raises:
            SampleStoreError: They do not match.
        """
        if checksum(sample) != found:
            raise self.damaged(
                f"a sample does not match its checksum (position {shown(sample[0])}, id "
                f"{shown(sample[1])})"
            )

    def noted(self, connection: sqlite3.Connection, source: str) -> str | None:
        """The progress of an import, as JSON; None before its first transaction.

        Raises:
            SampleStoreError: It is damaged.
        """
        row = connection.execute(
            "SELECT checksum, source, progress FROM imports WHERE source = ?", (source,)
        ).fetchone()
        if row is None:
            return None
        if row[1] != source or checksum(row[1:]) != row[0]:
            raise self.damaged(f"the progress of the import of {shown(source)}")
        return str(row[2])

    def damaged(self, what: str) -> SampleStoreError:
        """The error that the file does not hold what was written."""
        return SampleStoreError(
            f"sample store {self.path} is damaged: {what}; copy it again, or rescue what is left "
            f"with  sqlite3 {self.path} .recover"
        )

    def deleted_meanwhile(self) -> SampleStoreError:
        """The error that indices have another meaning than when the store was opened."""
        return SampleStoreError(
            f"sample store {self.path}: samples were deleted, or the file was replaced, since it "
            f"was opened, so that indices stand for other samples; call refresh(), and begin the "
            f"epoch again"
        )

    def closed(self) -> SampleStoreError:
        """The error that this handle was closed."""
        return SampleStoreError(f"sample store {self.path} is closed")

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _require_openable(self, *, to_write: bool) -> None:
        if to_write and self.immutable:
            raise SampleStoreError(
                f"sample store {self.path} was opened with immutable=True: open it without, to "
                f"write to it"
            )
        if not self.immutable:
            self._require_local(
                "cannot be opened there; open a file that nobody changes with immutable=True"
            )
            return
        log = self.path.with_name(self.path.name + "-wal")
        if exists(log) and log.stat().st_size:
            raise SampleStoreError(
                f"sample store {self.path} has changes in {log.name} that immutable=True would not "
                f"see: expected none; open and close it once without, where it can be written"
            )

    def _require_local(self, what: str) -> None:
        mount = network_mount_of(self.path)
        if mount is not None:
            raise SampleStoreError(
                f"sample store {self.path} lies on {mount[1]} (mounted at {mount[0]}) and {what}: "
                f"expected a local file system, since SQLite's log and locks do not reach the "
                f"other hosts; write it on a local disk, close it, and copy it"
            )

    def _require_format(self, connection: sqlite3.Connection) -> None:
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        if application != _APPLICATION_ID:
            raise SampleStoreError(
                f"{self.path} is no sample store: expected application_id {_APPLICATION_ID}, found "
                f"{application}; SampleStore.create makes one"
            )
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version != _FORMAT:
            raise SampleStoreError(
                f"sample store {self.path}: expected format {_FORMAT}, found {version}; use a "
                f"featstore that knows it"
            )


@dataclass(frozen=True, kw_only=True)
class StoreView:
    """What a reader sees of a store.

    Attributes:
        version: A number that every delete changes, and that no two stores share.
        num_samples: How many samples there are, at positions from 0. Appending only adds to it.
        fields: The fields of the samples.
    """

    version: int
    num_samples: int
    fields: SampleFields

    def write(self, connection: sqlite3.Connection) -> None:
        """Makes this what the store holds, in a transaction that changes its samples likewise."""
        values = (self.version, self.num_samples, self.fields.as_json)
        connection.execute(
            "UPDATE store SET checksum = ?, version = ?, num_samples = ?, fields = ?",
            (checksum(values), *values),
        )


def new_version() -> int:
    """A number that no other store, and no other state of one, has."""
    return int.from_bytes(os.urandom(7))


def value_columns(fields: SampleFields) -> list[str]:
    """The names of the columns of fields. Names that users give are never part of a statement."""
    return [f"value_{index}" for index in range(len(fields.kinds))]


def _lay_out(connection: sqlite3.Connection, fields: SampleFields) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_FORMAT}")
    columns = ", ".join(value_columns(fields))
    connection.execute(
        f"CREATE TABLE samples (position INTEGER PRIMARY KEY, id TEXT, checksum INTEGER NOT NULL, "
        f"{columns})"
    )
    connection.execute("CREATE UNIQUE INDEX ids ON samples (id) WHERE id IS NOT NULL")
    connection.execute(
        "CREATE TABLE store (checksum INTEGER, version INTEGER, num_samples INTEGER, fields TEXT)"
    )
    connection.execute(
        "CREATE TABLE imports (source TEXT PRIMARY KEY, progress TEXT NOT NULL, "
        "checksum INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("INSERT INTO store VALUES (NULL, NULL, NULL, NULL)")
    StoreView(version=new_version(), num_samples=0, fields=fields).write(connection)
    connection.execute("COMMIT")
