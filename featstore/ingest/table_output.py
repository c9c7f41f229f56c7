"""Raw rows as one version of a Delta table, `delta+URL`: what a join or an import publishes in
place of a directory.

A run writes data files that no version names, in any store, and one commit shows all of them. It
replaces the partitions that it writes, as an extraction does, by the same commit
(`featstore.table.delta.commit`). What a killed run leaves is found by `vacuum`.
"""

import contextlib
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import EmptyInputError, InputError
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.files.retry import RetryPolicy, current_policy, retrying
from featstore.files.storage import join, open_read, open_write
from featstore.ingest.join_options import LabelJoin
from featstore.ingest.join_report import Digest, digest_of_rows
from featstore.ops.arrays import cast_text, microseconds
from featstore.table import delta
from featstore.table.evolution import check_case, check_foreign
from featstore.table.layout import (
    check_partition_value,
    data_file_name,
    new_tag,
    partition_path,
    require_delta_scheme,
)
from featstore.table.metadata import CommitMetadata, to_json
from featstore.table.open import DELTA_INPUT, open_for_writing
from featstore.table.running import Mark, WrittenFiles, check_not_removed, marked
from featstore.table.snapshot import DataFile, files_digest

CommitFunction = Callable[[str, delta.Change], int]
# A row group ends with the rows that reach one of these, a file with these rows.
GROUP_ROWS, GROUP_BYTES, _FILE_ROWS = 1 << 17, 64 << 20, 1 << 20
# What all open files hold, and how many are open: rows may come in any order of their partitions.
_HELD_BYTES, _MAX_OPEN = 256 << 20, 256
_COMPARED_BYTES = 1 << 20
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_PLAIN = (
    *(pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_date32),
    *(pa.types.is_string, pa.types.is_binary, pa.types.is_decimal128),
)


def table_url(output_url: str) -> str | None:
    """The table that an output `delta+URL` names; None for a directory.

    Raises:
        InputError: It says more than the URL of a table, which may be where no Delta table is read.
    """
    if not output_url.startswith(DELTA_INPUT):
        return None
    url = output_url.removeprefix(DELTA_INPUT)
    if not url or "?" in url:
        raise InputError(
            f"{redact(output_url)}: expected delta+URL of a table to write to, without '?', found "
            f"{redact(url) or 'no URL'}; name a partition by --partition KEY=VALUE"
        )
    require_delta_scheme(url)
    return url


class RawTable:
    """A Delta table of raw rows, and one run that replaces partitions of it. Not thread-safe.

    Args:
        url: The table. It need not exist.
        what: The run, for errors, such as "the join".
        partition: The values of partition keys that hold for all rows.
        from_path: Further keys, whose values the directories of files have.
        partition_by: Further keys, whose values are columns of the rows.
        commit: Makes the commit; a parameter so that tests can inject faults.

    Raises:
        InputError: The table has slots, a rule that is not kept, or other partition keys; or a
            value cannot be that of a partition.
    """

    def __init__(
        self,
        url: str,
        what: str,
        *,
        partition: Mapping[str, str],
        from_path: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        commit: CommitFunction = delta.commit,
    ) -> None:
        self.url, self.tag = url, new_tag(run_id := uuid.uuid4().hex)
        self._run_id, self._what, self._commit = run_id, what, commit
        self._digests: tuple[str, str | None] = "", None
        self._base = open_for_writing(url, what)
        self._names = self._key_names([*partition, *from_path, *partition_by])
        self.partition = {key: self.canonical(key, value) for key, value in partition.items()}
        self.partition_by = tuple(partition_by)
        self._mark: Mark | None = None
        self._is_sent = False
        self._own = WrittenFiles(table_url=url, tag=self.tag, partitions=[self.partition])

    def _key_names(self, names: Sequence[str]) -> list[str]:
        """The partition keys in the order of the table."""
        if len({*names}) < len(names):
            raise InputError(
                f"{redact(self.url)}: expected each partition key once, found {', '.join(names)}"
            )
        if self._base is None:
            return [*names]
        schema = self._base.schema
        if len(schema.foreign) < len(schema.column_names):
            raise InputError(
                f"{redact(self.url)}: expected a Delta table of raw rows to write to, found one of "
                f"an extraction, with slots; nothing was written: name another one"
            )
        known = [key.name for key in schema.partition_keys]
        if {*known} != {*names}:
            raise InputError(
                f"{redact(self.url)} is partitioned by {', '.join(known) or 'nothing'}, "
                f"{self._what} would write partitions by {', '.join(names) or 'nothing'}; give "
                f"these keys, or name another table"
            )
        return known

    def _key_type(self, key: str) -> pa.DataType:
        keys = () if self._base is None else self._base.schema.partition_keys
        return next((known.type for known in keys if known.name == key), pa.string())

    def canonical(self, key: str, value: str | None) -> str:
        """The value of a key, given as text, as the table's log has it.

        Raises:
            InputError: It is none of the key's type, or none that a partition can have.
        """
        of = self._key_type(key)
        found = cast_text(pa.scalar(value or "", pa.string()), of)
        if found is None:
            raise InputError(
                f"{redact(self.url)}: expected a value of the partition key {key!r} ({of}), found "
                f"{value!r}; correct it"
            )
        return value_text(self.url, key, found.as_py())

    def equal(self, digest: str, input_digest: str | None) -> tuple[str, Mapping[str, Any]] | None:
        """The address and the report of an equal run, whose rows are in the table; None if there is
        none.

        Args:
            digest: What decides over the rows, besides the input.
            input_digest: The input; None if it cannot be identified.
        """
        self._digests = digest, input_digest
        if self._base is None or input_digest is None:
            return None
        for commit, made in delta.with_origins(delta.history(self.url)):
            if (made.spec_hash, made.input_digest) != self._digests:
                continue
            files = self._base.in_partitions(made.partitions)
            # Another writer may have added partitions that this run would replace.
            written, replaced = map(to_json, made.partitions), map(to_json, self._replaced(files))
            if made.data_digest == files_digest(files) and {*replaced} <= {*written}:
                return self._version_url(commit.version), made.report
        return None

    def unchanged_of(self, files: Sequence[DataFile]) -> tuple[str, Mapping[str, Any]] | None:
        """As `equal`, of a run whose files hold the same bytes as these, which are then removed."""
        held = [] if self._base is None else self._base.in_partitions(self._replaced(files))
        pairs = list(zip(_by_path(files), _by_path(held), strict=False))
        if not files or len(files) != len(held) or not all(starmap(_is_same, pairs)):
            return None
        digest = files_digest(held)
        for commit, made in delta.with_origins(delta.history(self.url)):
            if made.data_digest == digest:
                self._remove()
                return self._version_url(commit.version), made.report
        return None

    def _version_url(self, version: int) -> str:
        """How an extraction names a version of the table."""
        return DELTA_INPUT + self.url + f"?version={version}"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around the writing of files and the commit: a vacuum spares the files, and if the block
        fails before the commit they are removed.
        """
        with marked(self.url, self.tag) as self._mark, cleaned_up_on_failure(self._remove):
            yield

    def _remove(self) -> None:
        if not self._is_sent:
            self._own.remove()

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The columns of data files, in types of Delta, for rows of this schema.

        Raises:
            InputError: As of `stored_schema`, or a column has another type in the table.
        """
        keys = [name for name in self._names if name not in self.partition_by]
        stored = stored_schema(self.url, schema, keys=keys, partition_by=self.partition_by)
        if self._base is not None:
            where, known = redact(self.url), self._base.schema
            check_foreign(known, delta.as_stored(self._schema(stored)), where)
        return stored

    def _schema(self, stored: pa.Schema) -> SlotSchema:
        keys = [
            stored.field(name) if name in stored.names else pa.field(name, self._key_type(name))
            for name in self._names
        ]
        columns = [column for column in stored if column.name not in self._names]
        found = SlotSchema.from_arrow(pa.schema([*columns, *keys]), self._names)
        return found.with_foreign_kept()

    def commit(
        self, schema: pa.Schema, files: Sequence[DataFile], report: Mapping[str, Any]
    ) -> str:
        """Makes the one commit; returns the address of its version.

        Args:
            schema: As `check` returned it.
            files: The data files. One without rows is not published, and replaces its partition.
            report: What the commit says of the run.

        Raises:
            EmptyInputError: There are no rows. Nothing is committed.
            CommitConflictError: Another writer has replaced one of the partitions meanwhile, or a
                file is gone. Nothing is committed.
        """
        partitions = self._replaced(files)
        files = [file for file in files if file.num_rows]
        if not files:
            raise EmptyInputError(
                f"{self._what} has no rows; the table {redact(self.url)} is left as it is: "
                f"expected rows; look at what writes its input, or delete the rows that are there"
            )
        assert self._mark is not None  # of `writing`
        metadata = CommitMetadata(
            run_id=self._run_id,
            spec_hash=self._digests[0],
            spec_version=1,
            input_digest=self._digests[1],
            data_digest=files_digest(files),
            partitions=partitions,
            num_files=len(files),
            num_rows=sum(file.num_rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            report=report,
        )
        change = delta.Change(
            base=self._base,
            schema=self._schema(schema),
            partitions=metadata.partitions,
            files=tuple(_by_path(files)),
            metadata=metadata,
        )
        check_not_removed(self._mark, self.url, files)
        self._is_sent = True
        again = "Run it again: it commits the rows, or says that they are committed."
        with self._own.kept_if_committed(self._mark, self._what, len(files), again):
            return self._version_url(self._commit(self.url, change))

    def _replaced(self, files: Sequence[DataFile]) -> tuple[Mapping[str, str], ...]:
        """The partitions that the commit replaces: those of the files, and all of `partition`."""
        found = {to_json(file.partition): dict(file.partition) for file in files}
        if self.partition and self._base is not None:
            for place in self._base.data_files.places:
                if place.items() >= self.partition.items():
                    for key, value in place.items():
                        check_partition_value(key, value or "", redact(self.url))
                    found[to_json(place)] = dict(place)
        return tuple({key: str(of[key]) for key in self._names} for of in found.values())


def _by_path(files: Iterable[DataFile]) -> list[DataFile]:
    """In an order that is the same for equal rows, since a run's files differ in its tag alone."""
    return sorted(files, key=lambda file: file.path)


def _is_same(file: DataFile, held: DataFile) -> bool:
    """Whether two files are of one partition and have the same bytes, and no row is deleted."""
    if held.mask is not None or (file.partition, file.size_bytes) != (
        held.partition,
        held.size_bytes,
    ):
        return False
    with open_read(file.url, file.size_bytes) as one, open_read(held.url) as other:
        while block := one.read(_COMPARED_BYTES):
            if other.read(_COMPARED_BYTES) != block:
                return False
        return not other.read(1)


def value_text(url: str, key: str, value: object) -> str:
    """The value of a partition key as text, as a table's log has it.

    Raises:
        InputError: It is null or empty, or too long for the name of a directory.
    """
    text = "" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    check_partition_value(key, text, redact(url))
    return text


def stored_schema(
    url: str, schema: pa.Schema, *, keys: Iterable[str], partition_by: Sequence[str]
) -> pa.Schema:
    """The columns of data files, in types of Delta, for rows of this schema.

    Args:
        url: The table.
        schema: The columns of the rows.
        keys: The partition keys that are no columns of the rows.
        partition_by: Those that are.

    Raises:
        InputError: A column has a type that Delta lacks, or the name of one of `keys`; two names
            differ in case alone; or one of `partition_by` has a type by which no partitions are
            made.
    """
    where, keys = redact(url), [*keys]
    for key in {*keys} & {*schema.names}:
        raise InputError(
            f"{where}: the rows have a column {key!r}, which would be a partition key, too; spread "
            f"the rows by it (--partition-by {key}), or choose another key"
        )
    stored = table_schema(schema, where)
    for key in partition_by:
        if not _names_partitions(stored.field(key).type):
            raise InputError(
                f"{where}: {key!r} is {schema.field(key).type}, by which no partitions are made; "
                f"expected text, integers, booleans or dates"
            )
    columns = [*stored, *(pa.field(key, pa.string()) for key in keys)]
    check_case(SlotSchema.from_arrow(pa.schema(columns), [*keys, *partition_by]), where)
    return stored


def table_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """The columns in types of Delta, none of which loses a value: times in microseconds, unsigned
    integers in the next wider type.

    Raises:
        InputError: Delta has no such type.
    """

    def typed(column: pa.Field) -> pa.Field:
        if (of := _table_type(column.type)) is None:
            raise InputError(
                f"{where}: {column.name!r} is {column.type}, which a Delta table cannot hold; "
                f"leave the column out, or write to a directory"
            )
        return pa.field(column.name, of)

    return pa.schema(list(map(typed, schema)))


def _table_type(of: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(of):
        return pa.timestamp("us", None if of.tz is None else "UTC")
    if pa.types.is_dictionary(of):
        return _table_type(of.value_type)
    if pa.types.is_fixed_size_binary(of) and not pa.types.is_decimal(of):
        return pa.binary()
    if pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of):
        return None if (inner := _table_type(of.value_type)) is None else pa.list_(inner)
    if pa.types.is_map(of):
        inner_types = _table_type(of.key_type), _table_type(of.item_type)
        return None if None in inner_types else pa.map_(*inner_types)
    if pa.types.is_struct(of):
        fields = [(part.name, _table_type(part.type)) for part in of]
        return None if any(part is None for _, part in fields) else pa.struct(fields)
    wider = _WIDER.get(of, of)
    return wider if any(is_of(wider) for is_of in _PLAIN) else None


def _names_partitions(of: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
    return any(is_of(of) for is_of in tests)


@dataclass(frozen=True, kw_only=True)
class RowTarget:
    """Where the rows of a join go: what a task needs to write some of them.

    Attributes:
        row_id: The columns that identify a row.
        retry: The policy for requests to the store.
    """

    url: str = field(repr=False)
    tag: str
    partition: Mapping[str, str]
    partition_by: tuple[str, ...]
    row_id: tuple[str, ...]
    retry: RetryPolicy = field(default_factory=current_policy)


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """The files that one call wrote.

    Attributes:
        schema: The columns of the rows, in types of Delta.
        digest: The ids, read back from the files.
    """

    schema: pa.Schema
    files: tuple[DataFile, ...]
    digest: Digest


def write_rows(
    target: RowTarget,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    unit: int = 0,
    attempt: int = 0,
) -> WrittenRows:
    """Writes rows to data files, in their order within each partition, and reads their ids back.

    Args:
        schema: The columns of the batches.
        unit, attempt: Numbers in the names of the files.

    Raises:
        InputError: As of `stored_schema`, or a row has no value of a partition key.
        OSError: The store cannot be written to.
    """
    stored = stored_schema(
        target.url, schema, keys=target.partition, partition_by=target.partition_by
    )
    with retrying(target.retry):
        with contextlib.ExitStack() as stack:
            written = _RowFiles(target, stored, stack, unit, attempt)
            for batch in batches:
                arrays = [_as_stored(batch.column(c.name), c.type) for c in stored]
                rows = pa.record_batch(arrays, schema=stored)
                for values, part in _by_values(rows, target.partition_by) if len(rows) else ():
                    written.add(values, part)
            written.finish()
        digest = digest_of_rows(_ids(target, stored, written.files))
    files = tuple(file for _, file in written.files)
    return WrittenRows(schema=stored, files=files, digest=digest)


class JoinedTable(RawTable):
    """A table that a join writes to.

    Args:
        join: The join.
        url: The table.
        commit: As of `RawTable`.
    """

    def __init__(self, join: LabelJoin, url: str, commit: CommitFunction) -> None:
        super().__init__(
            url,
            "the join",
            partition=join.partition,
            partition_by=join.partition_by,
            commit=commit,
        )
        self._written: list[WrittenRows] = []
        self.target = RowTarget(
            url=url,
            tag=self.tag,
            partition=self.partition,
            partition_by=self.partition_by,
            row_id=join.impressions.row_id,
        )

    def add(self, written: Iterable[WrittenRows]) -> None:
        """Takes what was written to `target`."""
        self._written += written

    def write(self, rows: pa.RecordBatchReader) -> None:
        """Writes all rows to data files."""
        self.add([write_rows(self.target, rows.schema, rows)])

    def digest(self) -> Digest:
        """The ids of all rows, read back from the files."""
        return Digest.of(each.digest for each in self._written)

    @property
    def _files(self) -> list[DataFile]:
        return [file for each in self._written for file in each.files]

    def size(self) -> tuple[int, int]:
        """The number of files and bytes that are written but not yet published."""
        return len(self._files), sum(file.size_bytes for file in self._files)

    def unchanged(self) -> tuple[str, Mapping[str, Any]] | None:
        return self.unchanged_of(self._files)

    def publish(self, document: Mapping[str, Any], text: str) -> str:
        """Commits the rows with the report; returns the address of the version. The text is for
        directories.
        """
        schema = self._written[0].schema if self._written else pa.schema([])
        return self.commit(schema, self._files, document)


def joined_table(join: LabelJoin, commit: CommitFunction = delta.commit) -> JoinedTable | None:
    """The table that a join writes to; None for a directory. Errors as of `RawTable`."""
    url = table_url(join.output_url)
    return None if url is None else JoinedTable(join, url, commit)


def _as_stored(array: pa.Array, of: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(of):
        array = microseconds(array)
    return array if array.type == of else array.cast(of, safe=False)  # types only grow


_Values = tuple[object, ...]


def _by_values(
    rows: pa.RecordBatch, names: Sequence[str]
) -> Iterator[tuple[_Values, pa.RecordBatch]]:
    """Yields the rows of each combination of values of these columns, in their order."""
    if not names:
        yield (), rows
        return
    code = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + np.asarray(encoded.indices)
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    for taken in np.split(order, cuts):
        part = rows.take(pa.array(taken))
        yield tuple(part.column(name)[0].as_py() for name in names), part


class _RowFiles:
    """The data files of one call that are open, and those that are finished: `files`, each with the
    values of its partition.
    """

    def __init__(
        self,
        target: RowTarget,
        schema: pa.Schema,
        stack: contextlib.ExitStack,
        unit: int,
        attempt: int,
    ) -> None:
        self._target, self._stack, self._numbers = target, stack, (unit, attempt)
        self._schema = pa.schema([c for c in schema if c.name not in target.partition_by])
        self._open = OrderedDict[_Values, tuple[DataFile, RowFile]]()
        self._num_parts = Counter[_Values]()
        self.files: list[tuple[_Values, DataFile]] = []

    def add(self, values: _Values, rows: pa.RecordBatch) -> None:
        _, file = self._open.get(values) or self._begin(values)
        self._open.move_to_end(values)
        file.add(rows.select(self._schema.names))
        if file.num_rows >= _FILE_ROWS:
            self._finish(values)
        elif len(self._open) > _MAX_OPEN:
            self._finish(next(iter(self._open)))
        elif sum(each.held_bytes for _, each in self._open.values()) > _HELD_BYTES:
            max((each for _, each in self._open.values()), key=lambda of: of.held_bytes).flush()

    def finish(self) -> None:
        for values in [*self._open]:
            self._finish(values)

    def _begin(self, values: _Values) -> "tuple[DataFile, RowFile]":
        target, (unit, attempt) = self._target, self._numbers
        texts = {
            name: value_text(target.url, name, value)
            for name, value in zip(target.partition_by, values, strict=True)
        }
        partition = {**target.partition, **texts}
        name = data_file_name(target.tag, unit, attempt, self._num_parts[values])
        path = "/".join(filter(None, [partition_path(partition), name]))
        self._num_parts[values] += 1
        url = join(target.url, path)
        file = DataFile(path=path, url=url, size_bytes=0, num_rows=0, partition=partition)
        self._open[values] = file, RowFile(url, self._schema, self._stack)
        return self._open[values]

    def _finish(self, values: _Values) -> None:
        file, rows = self._open.pop(values)
        written = replace(file, size_bytes=rows.finish(), num_rows=rows.num_rows)
        self.files.append((values, written))


class RowFile:
    """A Parquet file of raw rows, which are held until they make a row group.

    Args:
        url: Where it appears, whole, at `finish`.
        schema: Its columns.
        stack: Gives the file up if it ends before.
    """

    def __init__(self, url: str, schema: pa.Schema, stack: contextlib.ExitStack) -> None:
        self._schema, self._stack = schema, stack.enter_context(contextlib.ExitStack())
        self._sink = self._stack.enter_context(open_write(url))
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(self._sink, schema, compression="snappy", write_page_checksum=True)
        )
        self._held: list[pa.RecordBatch] = []
        self.num_rows = self._num_held = self.held_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self.num_rows += rows.num_rows
        self._num_held += rows.num_rows
        self.held_bytes += rows.nbytes
        if self._num_held >= GROUP_ROWS or self.held_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Ends a row group."""
        if self._num_held:
            rows = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(rows, row_group_size=len(rows))
        self._held.clear()
        self._num_held = self.held_bytes = 0

    def finish(self) -> int:
        """Publishes the file, and returns its size in bytes."""
        self.flush()
        self._writer.close()
        size_bytes = self._sink.tell()
        self._stack.close()
        return size_bytes


def _ids(
    target: RowTarget, schema: pa.Schema, files: Iterable[tuple[_Values, DataFile]]
) -> Iterator[Sequence[pa.Array]]:
    """The ids of the rows in files, in batches of columns."""
    for values, file in files:
        of_keys = dict(zip(target.partition_by, values, strict=True))
        names = [name for name in target.row_id if name not in of_keys]
        with open_read(file.url, file.size_bytes) as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(columns=names, use_threads=False):
                yield [
                    pa.repeat(pa.scalar(of_keys[name], schema.field(name).type), batch.num_rows)
                    if name in of_keys
                    else batch.column(name)
                    for name in target.row_id
                ]
