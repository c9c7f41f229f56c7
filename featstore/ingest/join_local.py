"""Joins raw logs without Spark: duckdb joins, featstore reads, hashes and writes.

Each log is read once into narrow tables of duckdb: row numbers, times in microseconds, keys and
hashes. What the join adds is found there, one operation at a time that sorts or hashes, each of
which goes to disk beyond the memory limit. The impressions are then read again, in order, and
written with what was added: their other columns never pass through duckdb, so that types stay as
they are.

The rules are those of `featstore.ingest.join_query`: an event is attributed to the last impression
of its key if the next one comes after it, and to the first if the window of the one before ended
before it. Hashes are Spark's, so that ties and digests are equal to those of a join on Spark.
"""

import functools
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from featstore.base.closing import noted_on_failure
from featstore.base.errors import ConfigError, InputError, StoreError, import_extra
from featstore.base.host import memory_bytes as host_memory_bytes
from featstore.base.host import num_cores
from featstore.extraction.units.raw import MAX_BATCH_ROWS
from featstore.files.listings import list_own
from featstore.files.retry import thread_pool
from featstore.ingest.join_inputs import (
    check_apart,
    check_impressions,
    check_label,
    check_lookup,
    digest_of,
)
from featstore.ingest.join_log import JoinLog, open_log, spark_type
from featstore.ingest.join_options import (
    SAMPLE_WEIGHT,
    EventLog,
    Label,
    LabelJoin,
    LogSource,
    Lookup,
)
from featstore.ingest.join_output import JoinOutput, LocalFiles
from featstore.ingest.join_query import DELAY_BOUNDARIES_S, NUM_BUCKETS, needs_neighbours
from featstore.ingest.join_report import (
    Counts,
    Digest,
    Figures,
    JoinReport,
    digest_of_rows,
    output_url,
    run_join,
)
from featstore.ingest.table_output import CommitFunction, joined_table
from featstore.ops.arrays import microseconds
from featstore.ops.hashing import row_hash, sign, value_hash
from featstore.table import delta

WriteFunction = Callable[[pa.RecordBatchReader, str, tuple[str, ...]], None]
_US = 1_000_000
_NEVER = 2**63 - 1  # microseconds
_FILE_ROWS = 1 << 20
_MEMORY_SHARE = 4  # of the host's memory, as the limit of duckdb
_NAMING = "string|boolean|tinyint|smallint|int|bigint|float|double|date|timestamp(_ntz)?"
_THREAD_BYTES = 128_000_000  # that each thread of duckdb should have


def write_parquet(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
    """Writes the rows to a new directory, in their order, and syncs the files.

    Empty text names no directory: it becomes null there, as in a join on Spark.
    """
    Path(url).mkdir(parents=True)
    texts = [name for name in partition_by if pa.types.is_string(rows.schema.field(name).type)]
    if texts:
        named = (_without_empty(batch, texts) for batch in rows)
        rows = pa.RecordBatchReader.from_batches(rows.schema, named)
    keys = pa.schema([rows.schema.field(name) for name in partition_by])
    pds.write_dataset(
        rows,
        url,
        format="parquet",
        file_options=pds.ParquetFileFormat().make_write_options(compression="snappy"),
        basename_template="part-{i}.parquet",
        partitioning=pds.partitioning(keys, flavor="hive"),
        min_rows_per_group=MAX_BATCH_ROWS,
        max_rows_per_group=2 * MAX_BATCH_ROWS,
        max_rows_per_file=_FILE_ROWS,
        max_partitions=_FILE_ROWS,  # Arrow's default refuses more than 1,024
        existing_data_behavior="error",
        preserve_order=True,
    )
    if not list_own(url):  # A file without rows has the columns.
        pq.write_table(rows.schema.empty_table(), Path(url) / "part-0.parquet")
    for file in list_own(url):
        with Path(file.url).open("rb") as written:
            os.fsync(written.fileno())


def _without_empty(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    for name in names:
        column = batch.column(name)
        named = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        batch = batch.set_column(
            batch.schema.get_field_index(name), batch.schema.field(name), named
        )
    return batch


def join_labels_locally(
    join: LabelJoin,
    *,
    memory_bytes: int | None = None,
    spill: str | None = None,
    write: WriteFunction = write_parquet,
    commit: CommitFunction = delta.commit,
) -> JoinReport:
    """Runs the join without Spark and publishes its rows, as `featstore.ingest.join.join_labels`
    does on Spark: the same rows, ties and report, in the order of the impressions.

    Args:
        memory_bytes: The limit of duckdb's memory; by default a quarter of the host's. Some batches
            of raw rows come on top.
        spill: The directory for what does not fit; by default that of temporary files.
        write: Writes rows to a path; a parameter so that tests can inject faults.
        commit: Commits rows to a table; likewise.

    Raises:
        InputError: The logs do not fit the join, have what only Spark reads, or a file changed.
        JoinError: Rows were lost or duplicated.
        CommitConflictError: Another join published to the same directory, or the same partition of
            a table, at the same time.
        ConfigError: The memory is too little.
        MissingDependencyError: duckdb is not installed.
    """
    check_apart(join)
    duckdb = import_extra("duckdb", "a join without Spark")
    table = joined_table(join, commit)
    logs = {source: open_log(source) for source in join.sources}
    limit_bytes = memory_bytes or host_memory_bytes() // _MEMORY_SHARE

    def written(output: _RowOutput) -> Figures:
        with (
            tempfile.TemporaryDirectory(prefix="featstore-join-", dir=spill) as place,
            _as_errors(duckdb, limit_bytes, place),
            duckdb.connect(
                config={
                    "memory_limit": f"{limit_bytes}B",
                    "temp_directory": place,
                    "threads": max(1, min(num_cores(), limit_bytes // _THREAD_BYTES)),
                    "preserve_insertion_order": False,
                }
            ) as connection,
        ):
            figures = _LocalJoin(join, logs, connection).run(output)
        for log in logs.values():
            log.check()
        return figures

    input_digest = digest_of(logs[source].digest for source in join.sources)
    versions = {source: log.version for source, log in logs.items()}
    if table is not None:
        return run_join(join, table, input_digest, lambda: written(table), versions)
    directory = JoinOutput(LocalFiles(), output_url(join))
    rows = _DirectoryRows(join, directory.rows_url, write)
    return run_join(join, directory, input_digest, lambda: written(rows), versions)


class _RowOutput(Protocol):
    """Where the rows go, until they are published."""

    def check(self, schema: pa.Schema) -> object:
        """InputError if rows of this schema cannot be written."""

    def write(self, rows: pa.RecordBatchReader) -> None: ...

    def digest(self) -> Digest:
        """The ids of the rows, read back."""


class _DirectoryRows:
    def __init__(self, join: LabelJoin, url: str, write: WriteFunction) -> None:
        self._join, self._url, self._write = join, url, write
        self._schema = pa.schema([])

    def check(self, schema: pa.Schema) -> None:
        self._schema = schema
        for name in self._join.partition_by:
            found = schema.field(name).type
            if not re.fullmatch(_NAMING, spark_type(found)):
                raise InputError(
                    f"{self._join.impressions.source}: {name!r} is {found}, by which the engine "
                    f"`local` spreads no rows over directories; expected text, numbers, booleans, "
                    f"dates or timestamps, or use the engine `spark`"
                )

    def write(self, rows: pa.RecordBatchReader) -> None:
        self._write(rows, self._url, self._join.partition_by)

    def digest(self) -> Digest:
        schema = self._schema
        keys = pa.schema([schema.field(name) for name in self._join.partition_by])
        hive = pds.partitioning(keys, flavor="hive")
        files = pds.dataset(self._url, schema, format="parquet", partitioning=hive)
        row_id = list(self._join.impressions.row_id)
        return digest_of_rows(batch.columns for batch in files.to_batches(columns=row_id))


@contextmanager
def _as_errors(duckdb: Any, limit_bytes: int, place: str) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ConfigError(
            f"the join does not fit: {_first_line(error)}; expected more memory than "
            f"{limit_bytes:,} bytes (--memory), or more room in {place} (--spill)"
        ) from error
    except (duckdb.NotSupportedError, duckdb.DataError, duckdb.ProgrammingError) as error:
        where = "; ".join(getattr(error, "__notes__", ())) or "the logs"
        raise InputError(
            f"{where} cannot be joined by the engine `local` ({_first_line(error)}): leave the "
            f"column or its rows out, or use the engine `spark`"
        ) from error
    except duckdb.IOException as error:
        raise StoreError(f"{place}: cannot be used by the join ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _LocalJoin:
    """One run of a join. Not thread-safe.

    The table `impression` has a row for each distinct impression, to which each step adds columns.
    `n` is the number of the row in its log, `h` the hash of its id, `t` its time, and `c{i}` are
    the columns of ids and keys. Columns of label i and lookup i end with `{i}`. Statements that
    sort or hash are run one at a time, so that each has all of the memory.
    """

    def __init__(self, join: LabelJoin, logs: Mapping[LogSource, JoinLog], connection: Any) -> None:
        self._join, self._logs, self._connection = join, logs, connection
        self._log, self._is_ended = logs[join.impressions.source], False
        types = _types(self._log)
        check_impressions(join, types)
        for label in join.labels:
            check_label(label, types, _types(logs[label.source]))
        for lookup in join.lookups:
            check_lookup(lookup, types, _types(logs[lookup.source]))
        names = [*join.impressions.row_id]
        names += [name for part in (*join.labels, *join.lookups) for name in part.key]
        self._columns = {name: f"c{i}" for i, name in enumerate(dict.fromkeys(names))}

    def run(self, output: _RowOutput) -> Figures:
        """Writes the rows and returns the figures."""
        output.check(schema := self._schema())
        impressions = self._read_impressions()
        distinct = self._counts("impression", _digest_metrics())
        dimensions = [self._look_up(j, lookup) for j, lookup in enumerate(self._join.lookups)]
        events = [self._label(i, label) for i, label in enumerate(self._join.labels)]
        self._extend("select * from impression order by n")
        self._connection.execute(f"create view joined as {self._joined()}")
        joined = self._counts("joined", self._joined_metrics())
        for i in range(len(self._join.labels)):
            joined[f"label{i}_delays"] = self._delays(i)
        rows = pa.RecordBatchReader.from_batches(schema, self._rows(schema))
        with thread_pool(1) as thread:  # Python handles no signal in Arrow
            try:
                thread.submit(output.write, rows).result()
            except BaseException:
                self._is_ended = True
                raise
        return Figures(
            impressions=impressions,
            distinct=distinct,
            events=events,
            dimensions=dimensions,
            joined=joined,
            written=output.digest(),
        )

    def _read_impressions(self) -> Counts:
        log, negatives = self._join.impressions, self._join.negatives

        def made(batch: pa.RecordBatch, first: int) -> dict[str, pa.Array]:
            ids = [batch.column(name) for name in log.row_id]
            columns = {
                "n": pa.array(np.arange(first, first + batch.num_rows)),
                "h": _hashed(log.source, ids),
                "content": _hashed(log.source, batch.columns),
                **_times(batch, log),
                **self._plain(log.source, batch, self._columns),
            }
            if negatives is not None and negatives.rate < 1:
                signs = sign(
                    negatives.seed, *(value_hash(_text_or_number(column)) for column in ids)
                )
                columns["drawn"] = pc.less(signs, int(negatives.rate * 2**63))
            return columns

        names, needed = self._log.schema.names, [*log.row_id, log.event_time]
        counts = self._load(log.source, names, needed, made)
        self._make(
            "impression",
            f"select * exclude (known, content) from read qualify row_number() over (partition by "
            f"{self._at(log.row_id)} order by t, known, content, n) = 1",
            "read",
        )
        return counts

    def _label(self, i: int, label: Label) -> Counts:
        """Adds to `impression` what the events of its key mean: `mine{i}`, `pairs{i}`, `once{i}`,
        and `at{i}`, `known{i}` and `value{i}` of the first one, or the value of all.
        """
        counts, keys = self._read_events(label), self._at(label.key)
        [(late,)] = self._fetch(f"select count(*) from read where known >= {self._join.cut_off_us}")
        order = "t, known" if label.value is None else "t, known, value nulls first"
        ids = [f"id{n}" for n in range(len(label.event_id))]
        named = " and ".join(f"{name} is not null" for name in ids) or "false"
        what = ["t"] if label.value is None else ["t", "value"]
        unnamed = [f"case when {named} then null else {name} end" for name in what]
        self._make(
            "distinct_event",
            f"select * from read where known < {self._join.cut_off_us} qualify row_number() over ("
            f"partition by {', '.join([keys, *ids, *unnamed])} order by known, {order}) = 1",
            "read",
        )
        self._make(
            "event",
            f"select *, row_number() over (partition by {keys} order by {order}) as r "
            f"from distinct_event",
            "distinct_event",
        )
        [(num_events,)] = self._fetch("select count(*) from event")
        self._match(i, label)
        self._extend("select * from impression left join matched using (n)", "matched")
        return counts | {"num_late": late, "num_events": num_events}

    def _read_events(self, label: Label) -> dict[str, int]:
        def made(batch: pa.RecordBatch, first: int) -> dict[str, pa.Array]:
            ids = {name: f"id{n}" for n, name in enumerate(label.event_id)}
            keys = {name: self._columns[name] for name in label.key}
            columns = _times(batch, label)
            for named in (ids, keys):
                columns |= self._plain(label.source, batch, named)
            if label.value is not None:
                columns["value"] = _number(batch.column(label.value))
            return columns

        needed = [*label.key, label.event_time]
        more = [*label.event_id, label.log_time, label.value]
        names = [name for name in (*needed, *more) if name is not None]
        return self._load(label.source, names, needed, made)

    def _match(self, i: int, label: Label) -> None:
        """Makes `matched` of `event`: for each impression with events in its window, what they
        are.
        """
        window_us, row_id = label.window_s * _US, self._join.impressions.row_id
        keys, source = self._at(label.key), "impression"
        mine = once = "true"
        if needs_neighbours(label, row_id):
            there = " and ".join(f"{self._columns[name]} is not null" for name in label.key)
            self._make(
                "neighbour",
                f"select n, {keys}, t, coalesce(lead(t) over by_time, {_NEVER}) as following, "
                f"lag(t) over by_time as previous from impression where {there} window by_time as ("
                f"partition by {keys} order by t, {self._at(row_id)})",
            )
            source, before_next = "neighbour", "e.t < i.following"
            if label.attribution == "all":
                once = before_next
            else:
                after = f"i.previous is null or e.t >= i.previous + {window_us}"
                mine = once = before_next if label.attribution == "last" else f"({after})"
        on = " and ".join(
            f"i.{self._columns[name]} = e.{self._columns[name]}" for name in label.key
        )
        value = [] if label.value is None else ["e.value"]
        self._make(
            "pair",
            f"select {', '.join(['i.n', 'e.t', 'e.known', 'e.r', *value])}, {mine} as is_mine, "
            f"{once} as is_once from {source} i join event e on {on} "
            f"and e.t >= i.t and e.t < i.t + {window_us}",
            "event",
            *({source} - {"impression"}),
        )
        columns = {
            f"mine{i}": "count(*)",
            f"at{i}": "min(t)",
            f"known{i}": "arg_min(known, r)",
            f"value{i}": {
                "sum": "sum(coalesce(value, 0) order by r)",
                "first": "arg_min_null(value, r)",
                "last": "arg_max_null(value, r)",
            }.get(label.kind, "count(*)"),
        }
        found = [f"{text} filter (where is_mine) as {name}" for name, text in columns.items()]
        self._make(
            "matched",
            f"select n, {', '.join(found)}, count(*) as pairs{i}, "
            f"count(*) filter (where is_once) as once{i} from pair group by n",
            "pair",
        )

    def _look_up(self, j: int, lookup: Lookup) -> Counts:
        """Adds to `impression` the columns `since{j}`, `from{j}` and `looked{j}_{n}` of the row of
        the dimension that is known at its time.
        """

        def made(batch: pa.RecordBatch, first: int) -> dict[str, pa.Array]:
            values = [batch.column(name) for name in lookup.columns]
            return {
                "content": _hashed(lookup.source, values),
                **_times(batch, lookup),
                **self._plain(lookup.source, batch, {n: self._columns[n] for n in lookup.key}),
                **{f"looked{j}_{n}": _stored(column) for n, column in enumerate(values)},
            }

        needed = [*lookup.key, lookup.event_time]
        names = [name for name in (*needed, lookup.log_time, *lookup.columns) if name is not None]
        counts, keys = self._load(lookup.source, names, needed, made), self._at(lookup.key)
        self._make(
            "version",
            f"select * exclude (t, known, content), t as from{j}, greatest(t, known) as since{j}, "
            f"coalesce(min(greatest(t, known)) over (partition by {keys} order by t desc, known "
            f"desc, content desc rows between unbounded preceding and 1 preceding), {_NEVER}) as "
            f"until from read",
            "read",
        )
        on = " and ".join(f"i.{self._columns[n]} = v.{self._columns[n]}" for n in lookup.key)
        self._extend(
            f"select i.*, v.* exclude (until, {keys}) from impression i left join version v on "
            f"{on} and i.t >= v.since{j} and i.t < v.until",
            "version",
        )
        return counts

    def _joined(self) -> str:
        """The query for the columns that the join adds, by their names in `_added`, and for
        `negative` and `keep`.
        """
        columns = []
        for j, lookup in enumerate(self._join.lookups):
            is_young = (
                "true" if lookup.max_age_s is None else f"t - from{j} <= {lookup.max_age_s * _US}"
            )
            columns.append(f"since{j} is not null and {is_young} as fresh{j}")
        for i, label in enumerate(self._join.labels):
            ripe_us = self._ripe_us(label)
            value = "1" if label.kind == "any" else f"value{i}"
            of = "integer" if label.value is None else "double"
            columns += [
                f"cast(case when {self._no_key(label)} or t > {ripe_us} then null when mine{i} > 0 "
                f"then {value} else 0 end as {of}) as label{i}",
                f"case when t <= {ripe_us} then at{i} end as time{i}",
            ]
        labelled = ", ".join(["select *", *columns]) + " from impression"
        if (negatives := self._join.negatives) is None:
            return labelled
        zero = " and ".join(
            f"coalesce(label{i} = 0, false)"
            for i, label in enumerate(self._join.labels)
            if negatives.label in (None, label.name)
        )
        drawn = "true" if negatives.rate >= 1 else "drawn"
        return (
            f"select *, not negative or {drawn} as keep, "
            f"case when negative then {1 / negatives.rate!r} else 1 end::double as weight "
            f"from (select *, {zero} as negative from ({labelled}))"
        )

    def _joined_metrics(self) -> dict[str, str]:
        metrics = _digest_metrics()
        if self._join.negatives is not None:
            metrics |= _digest_metrics("kept", "num_kept", "keep")
            metrics |= {
                "num_negatives": _count("negative"),
                "num_negatives_kept": _count("negative and keep"),
            }
        for i, label in enumerate(self._join.labels):
            no_key, ripe_us = self._no_key(label), self._ripe_us(label)
            metrics |= {
                f"label{i}_no_key": _count(no_key),
                f"label{i}_unripe": _count(f"not ({no_key}) and t > {ripe_us}"),
                f"label{i}_hit": _count(f"mine{i} > 0 and t <= {ripe_us}"),
                f"label{i}_attributed": f"sum(once{i})",
                f"label{i}_more": f"sum(greatest(pairs{i}, 1) - 1)",
                f"label{i}_max": f"max(pairs{i})",
            }
        for j in range(len(self._join.lookups)):
            metrics |= {
                f"lookup{j}_found": _count(f"fresh{j}"),
                f"lookup{j}_too_old": _count(f"since{j} is not null and not fresh{j}"),
            }
        return metrics

    def _delays(self, i: int) -> list[tuple[int, int]]:
        """The numbers of hits by bucket of delay and of arrival, both in one number."""
        buckets = [
            "case "
            + " ".join(
                f"when {column}{i} - t < {bound * _US} then {n}"
                for n, bound in enumerate(DELAY_BOUNDARIES_S)
            )
            + f" else {len(DELAY_BOUNDARIES_S)} end"
            for column in ("at", "known")
        ]
        ripe_us = self._ripe_us(self._join.labels[i])
        return self._fetch(
            f"select {NUM_BUCKETS} * {buckets[0]} + {buckets[1]}, count(*) from joined "
            f"where mine{i} > 0 and t <= {ripe_us} group by all"
        )

    def _added(self) -> dict[str, tuple[str, pa.DataType]]:
        """Of each column that the join adds, how it is read from `joined`, and its type."""
        added: dict[str, tuple[str, pa.DataType]] = {}
        for j, lookup in enumerate(self._join.lookups):
            schema = self._logs[lookup.source].schema
            for n, (name, column) in enumerate(zip(lookup.added, lookup.columns, strict=True)):
                value = f"case when fresh{j} then looked{j}_{n} end"
                added[name] = value, schema.field(column).type
        for i, label in enumerate(self._join.labels):
            added[label.name] = f"label{i}", pa.int32() if label.value is None else pa.float64()
            if label.with_time:
                added[label.time_column] = f"time{i}", pa.timestamp("us", "UTC")
        if self._join.negatives is not None:
            added[SAMPLE_WEIGHT] = "weight", pa.float64()
        return added

    def _schema(self) -> pa.Schema:
        added = [pa.field(name, of) for name, (_, of) in self._added().items()]
        return pa.schema([*self._log.schema, *added])

    def _rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Reads the impressions again, and yields those that are kept, with what is added."""
        added = self._added()
        columns = ", ".join(
            ["n", *(f"{text} as a{k}" for k, (text, _) in enumerate(added.values()))]
        )
        kept = "" if self._join.negatives is None else " and keep"
        for first, batch in self._log.batches(self._log.schema.names):
            if self._is_ended:
                raise InterruptedError
            found = self._connection.sql(
                f"select {columns} from joined where n >= {first} and n < {first + batch.num_rows}"
                f"{kept} order by n"
            ).to_arrow_table()
            taken = batch.take(pc.subtract(found.column("n"), first).combine_chunks())
            arrays = [
                found.column(f"a{k}").combine_chunks().cast(of)
                for k, (_, of) in enumerate(added.values())
            ]
            yield pa.record_batch([*taken.columns, *arrays], schema=schema)

    def _ripe_us(self, label: Label) -> int:
        return self._join.cut_off_us - label.ripe_after_s * _US

    def _no_key(self, label: Label) -> str:
        if set(label.key) <= set(self._join.impressions.row_id):
            return "false"
        return " or ".join(f"{self._columns[name]} is null" for name in label.key)

    def _at(self, names: Sequence[str]) -> str:
        return ", ".join(self._columns[name] for name in names)

    def _plain(
        self, source: LogSource, batch: pa.RecordBatch, named: Mapping[str, str]
    ) -> dict[str, pa.Array]:
        return {to: _comparable(source, name, batch.column(name)) for name, to in named.items()}

    def _load(
        self,
        source: LogSource,
        names: Sequence[str],
        needed: Sequence[str],
        made: Callable[[pa.RecordBatch, int], dict[str, pa.Array]],
    ) -> dict[str, int]:
        """Makes the table `read` of a log's rows that have a value in each of the columns needed.

        Args:
            names: The columns to read.
            made: Makes the table's columns of a batch, and the number of its first row.
        """
        log, names = self._logs[source], list(dict.fromkeys(names))
        empty = pa.RecordBatch.from_pylist([], pa.schema([log.schema.field(n) for n in names]))
        num_read = num_complete = 0
        for first, batch in itertools.chain([(0, empty)], log.batches(names)):
            rows = pa.table(made(batch, first))
            if any(batch.column(name).null_count for name in needed):
                complete = (pc.is_valid(batch.column(name)) for name in needed)
                rows = rows.filter(functools.reduce(pc.and_, complete))
            self._connection.register("batch", rows)
            into = "create table read as" if batch is empty else "insert into read"
            with noted_on_failure(f"{source}: the columns {', '.join(names)}"):
                self._connection.execute(f"{into} select * from batch")
            num_read, num_complete = num_read + batch.num_rows, num_complete + rows.num_rows
        self._connection.unregister("batch")
        return {"num_input_rows": num_read, "num_incomplete": num_read - num_complete}

    def _make(self, table: str, query: str, *spent: str) -> None:
        """Makes a table, and drops those that are no longer needed."""
        self._connection.execute(f"create or replace table {table} as {query}")
        for name in spent:
            self._connection.execute(f"drop table {name}")

    def _extend(self, query: str, *spent: str) -> None:
        """Replaces `impression`."""
        self._make("extended", query, "impression", *spent)
        self._connection.execute("alter table extended rename to impression")

    def _counts(self, table: str, metrics: Mapping[str, str]) -> dict[str, Any]:
        columns = ", ".join(f"coalesce({text}, 0)" for text in metrics.values())
        [found] = self._fetch(f"select {columns} from {table}")
        return dict(zip(metrics, map(int, found), strict=True))

    def _fetch(self, query: str) -> list[Any]:
        return list(self._connection.execute(query).fetchall())


def _digest_metrics(
    prefix: str = "key", num_rows: str = "num_rows", where: str = "true"
) -> dict[str, str]:
    """As of `join_query.digest_metrics`."""
    return {
        num_rows: _count(where),
        f"{prefix}_xor": f"bit_xor(h) filter (where {where})",
        f"{prefix}_sum": f"sum((h >> 34) & {2**30 - 1}) filter (where {where})",
    }


def _count(condition: str) -> str:
    return f"count(*) filter (where {condition})"


def _types(log: JoinLog) -> dict[str, str]:
    return {field.name: spark_type(field.type) for field in log.schema}


def _hashed(source: LogSource, columns: Sequence[pa.Array]) -> pa.Array:
    try:
        return row_hash(columns)
    except TypeError as error:
        raise InputError(
            f"{source}: a column cannot be compared between rows of one time ({error}): leave it "
            f"out of the log"
        ) from None


def _times(batch: pa.RecordBatch, log: EventLog) -> dict[str, pa.Array]:
    """When rows happened and became known, in microseconds."""
    happened, known = (
        None if name is None else microseconds(batch.column(name)).view(pa.int64())
        for name in (log.event_time, log.log_time)
    )
    return {"t": happened, "known": happened if known is None else pc.coalesce(known, happened)}


def _number(array: pa.Array) -> pa.Array:
    """Values as double, null for NaN."""
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())  # As in `read_column`: Arrow would round twice.
    numbers = pc.add(array.cast(pa.float64(), safe=False), 0.0)  # no -0.0
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def _stored(array: pa.Array) -> pa.Array:
    """Looked-up values as duckdb keeps them: it would cut timestamps by its own rules, and takes a
    null among lists of a fixed length for an empty one.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    return array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array


def _text_or_number(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array


def _comparable(source: LogSource, name: str, array: pa.Array) -> pa.Array:
    """Values that duckdb finds equal where Spark does, and orders as Spark."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found = array.type
    if pa.types.is_timestamp(found):
        return microseconds(array).view(pa.int64())
    if pa.types.is_uint64(found):
        return array.cast(pa.decimal128(20, 0))
    if pa.types.is_integer(found) or pa.types.is_boolean(found):
        return array.cast(pa.int64())
    if pa.types.is_floating(found):
        return pc.add(array.cast(pa.float64()), 0.0)
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return array.cast(pa.string())
    if pa.types.is_date(found) or pa.types.is_decimal128(found) or pa.types.is_binary(found):
        return array
    raise InputError(
        f"{source}: {name!r} is {found}, by which the engine `local` compares no rows; expected "
        f"text, numbers, booleans, dates or timestamps, or use the engine `spark`"
    )
