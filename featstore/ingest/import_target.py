"""The directory that an import writes: hidden until it is complete, then renamed.

Beside the output, `_import-<digest>` holds the finished files of an import that goes on or was
interrupted. The digest is that of what decides over the output, so an equal import goes on there.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.base.closing import cleaned_up_on_failure, noted_on_failure
from featstore.base.errors import InputError
from featstore.files.listings import list_own
from featstore.files.looks import exists, is_directory_at, names_in
from featstore.files.private_directory import try_lock, unlock
from featstore.files.storage import delete, join, open_write
from featstore.ingest.conversion import ConvertedFile
from featstore.ingest.table_output import RawTable
from featstore.table.layout import data_file_name, parse_partition, partition_path
from featstore.table.snapshot import DataFile

REPORT = "_import.json"
_LOCK = "_lock"
_HIDDEN = "_import-"


class ImportTarget:
    """The output of one import. Not thread-safe; other processes are kept out by a lock.

    Args:
        output: The directory to publish.
        identity: What decides over its content.
    """

    def __init__(self, output: Path, identity: Mapping[str, object]) -> None:
        self._output = output.absolute()
        self.address, self.digest = str(output), digest_of(identity)
        self._hidden = self._output.with_name(f"{_HIDDEN}{self.digest[:16]}")

    def earlier(self) -> Mapping[str, Any] | None:
        """The totals of an equal import that was published; None if there is no output yet.

        Raises:
            InputError: The output exists, and is of something else.
        """
        is_empty = is_directory_at(self._output) and not names_in(self._output)
        if is_empty or not exists(self._output):
            return None
        # A report that cannot be read is an error, not another output.
        with contextlib.suppress(ValueError, FileNotFoundError, NotADirectoryError):
            report = json.loads((self._output / REPORT).read_text())
            if isinstance(report, dict) and report.get("digest") == self.digest:
                return dict(report["totals"])
        raise InputError(
            f"{self._output} exists, and is not what this import would write; it is left as it is: "
            f"choose another directory, or remove it"
        )

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps other processes from writing the same output. What is finished is kept at the end.

        Raises:
            InputError: Another process is writing it.
        """
        self._hidden.mkdir(parents=True, exist_ok=True)
        (self._hidden / _LOCK).write_text(self._output.name)
        lock = try_lock(self._hidden / _LOCK, fcntl.LOCK_EX)
        if lock is None:
            raise InputError(
                f"{self._output}: an equal import is writing it ({self._hidden}); wait for its end"
            )
        try:
            with cleaned_up_on_failure(self._remove_if_nothing_is_finished):
                yield
            self._remove_if_nothing_is_finished()
        finally:
            unlock(lock)

    def path(self, part: str) -> str:
        """The path of a part, such as `dt=2026-11-01/part-00000.parquet`, until it is published."""
        return str(self._hidden / part)

    def finished(self, path: str) -> ConvertedFile | None:
        """What the part at a path of `path()` holds; None if it is not finished."""
        try:
            found = json.loads(_note(path).read_text())
        except FileNotFoundError:
            return None
        return ConvertedFile(**found | {"examples": tuple(found["examples"])})

    def finish(self, path: str, converted: ConvertedFile) -> None:
        """Notes that a part is finished, after its file is."""
        with open_write(str(_note(path))) as file:
            file.write(json.dumps(asdict(converted)).encode())

    def publish(self, totals: Mapping[str, Any]) -> None:
        """Publishes all parts with their totals, by one rename.

        Raises:
            InputError: Something else was put there meanwhile.
        """
        with open_write(str(self._hidden / REPORT)) as file:
            file.write(json.dumps({"digest": self.digest, "totals": totals}).encode())
        for path in self._files():
            # Notes, and what killed processes left.
            if path.name.startswith(".") and path.suffix in (".json", ".partial"):
                path.unlink()
        try:
            self._hidden.rename(self._output)
        except OSError as error:
            raise InputError(
                f"{self._output}: cannot be published ({error.strerror}); the finished files are "
                f"in {self._hidden}: rename it yourself, or remove it and import again"
            ) from error
        with noted_on_failure(
            f"{self._output} is published all the same; its file {_LOCK} can be removed."
        ):
            (self._output / _LOCK).unlink()
            self._remove_superseded()

    def _remove_superseded(self) -> None:
        """Removes what unfinished imports of other inputs have left for the same output: nobody
        continues them, since it is there.
        """
        parent = self._output.parent
        for hidden in (parent / name for name in names_in(parent) if name.startswith(_HIDDEN)):
            lock = try_lock(hidden / _LOCK, fcntl.LOCK_EX)
            if lock is not None:
                try:
                    if (hidden / _LOCK).read_text() == self._output.name:
                        shutil.rmtree(hidden)
                finally:
                    unlock(lock)

    def _files(self) -> list[Path]:
        return [Path(entry.url) for entry in list_own(str(self._hidden))]

    def _remove_if_nothing_is_finished(self) -> None:
        """Nobody continues a directory without a finished file."""
        if not any(path.suffix == ".json" for path in self._files()):
            with contextlib.suppress(FileNotFoundError):  # it was published
                shutil.rmtree(self._hidden)


def digest_of(identity: Mapping[str, object]) -> str:
    """The digest of what decides over the output of an import."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


class TableTarget:
    """A Delta table that an import writes to, with the methods of `ImportTarget`. An import that
    ended early begins anew: its files are left to a vacuum. Not thread-safe.

    Args:
        table: The table, with the run.
        schema: The columns of the files.
        digest: What decides over the rows, besides the input.
        input_digest: Identifies the input.
    """

    def __init__(self, table: RawTable, schema: pa.Schema, digest: str, input_digest: str) -> None:
        self.address, self._table, self._schema = "", table, table.check(schema)
        self._digests = digest, input_digest
        self._files: dict[str, DataFile] = {}

    def earlier(self) -> Mapping[str, Any] | None:
        """The totals of an equal import whose rows are in the table; None if there is none."""
        found = self._table.equal(*self._digests)
        if found is None:
            return None
        self.address, totals = found
        return totals

    def writing(self) -> AbstractContextManager[None]:
        """As of `RawTable`."""
        return self._table.writing()

    def path(self, part: str) -> str:
        """The URL of the data file of a part, such as `dt=2026-11-01/part-00000.parquet`."""
        found = parse_partition(part).items()
        texts = {key: self._table.canonical(key, value) for key, value in found}
        partition = {**self._table.partition, **texts}
        name = data_file_name(self._table.tag, len(self._files), 0)
        path = "/".join(filter(None, [partition_path(partition), name]))
        url = join(self._table.url, path)
        self._files[url] = DataFile(
            path=path, url=url, size_bytes=0, num_rows=0, partition=partition
        )
        return url

    def finished(self, path: str) -> ConvertedFile | None:
        """None: no file of an earlier start is used."""
        return None

    def finish(self, path: str, converted: ConvertedFile) -> None:
        """Takes a data file that is written."""
        size_bytes, num_rows = converted.size_bytes, converted.num_rows
        self._files[path] = replace(self._files[path], size_bytes=size_bytes, num_rows=num_rows)

    def publish(self, totals: Mapping[str, Any]) -> None:
        """Commits the rows with their totals. Errors as of `RawTable.commit`."""
        for file in self._files.values():
            if not file.num_rows:
                delete(file.url)
        self.address = self._table.commit(self._schema, [*self._files.values()], totals)


def _note(path: str) -> Path:
    return Path(path).with_name(f".{Path(path).name}.json")
