"""Joins raw logs on Spark: one row per distinct impression, with labels and looked-up features.

One Spark job reads, joins, counts and writes. The row ids are then read back from the files and
compared with the ids that were joined, before a rename publishes the rows.
"""

import contextlib
import itertools
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import InputError, not_once
from featstore.extraction.spark.runners import check_workers, run_checked
from featstore.extraction.spark.spark_errors import refused_by_spark, telling_errno
from featstore.files.storage import looking_by, spark_url
from featstore.ingest import join_query as query
from featstore.ingest.join_inputs import (
    check_apart,
    check_columns,
    check_impressions,
    check_label,
    check_logs,
    check_lookup,
    input_digest,
    list_logs,
)
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource, Lookup
from featstore.ingest.join_output import HadoopFiles, JoinOutput
from featstore.ingest.join_report import (
    Counts,
    Digest,
    Figures,
    JoinReport,
    Output,
    digest,
    mismatch,
    output_url,
    run_join,
)
from featstore.ingest.session_files import SessionFiles
from featstore.ingest.table_output import (
    CommitFunction,
    JoinedTable,
    RowTarget,
    WrittenRows,
    joined_table,
    write_rows,
)
from featstore.table import delta

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

WriteFunction = Callable[["DataFrame", str, tuple[str, ...]], None]
_PATTERN = re.compile(r"[*?\[{]")  # of names in Hadoop
_SETTINGS = {
    # HotSpot does not compile methods beyond 8,000 bytes; with this limit Spark falls back to
    # smaller methods, which are compiled. See docs/design/joins_and_imports.md.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}


def write_parquet(rows: "DataFrame", url: str, partition_by: tuple[str, ...]) -> None:
    """Writes the rows to a new directory, in one Spark job."""
    rows.write.mode("errorifexists").option("compression", "snappy").partitionBy(
        *partition_by
    ).parquet(url)


def join_labels(
    join: LabelJoin,
    spark: "SparkSession",
    *,
    write: WriteFunction = write_parquet,
    commit: CommitFunction = delta.commit,
) -> JoinReport:
    """Runs the join and publishes its rows, unless an equal join did so before.

    A join is equal if it has the same options and the same input files. A join that reads a query
    or a table always runs, because its input cannot be identified. The output of an earlier join is
    replaced. On an error or an interrupt the output stays as it was.

    Args:
        spark: The session to run on; its settings are restored afterwards.
        write: Writes rows to a URL; a parameter so that tests can inject faults.
        commit: Commits rows to a table; likewise.

    Raises:
        InputError: The logs do not fit the join, or a file changed while it was read (not detected
            for queries and tables).
        JoinError: Rows were lost or duplicated.
        CommitConflictError: Another join published to the same directory, or the same partition of
            a table, at the same time.
    """
    check_apart(join)
    with looking_by(SessionFiles(spark)):
        return _join_labels(join, spark, write, commit)


def _join_labels(
    join: LabelJoin, spark: "SparkSession", write: WriteFunction, commit: CommitFunction
) -> JoinReport:
    table, logs = joined_table(join, commit), list_logs(join)
    output: Output
    if table is None:
        url = output_url(join)
        output = directory = JoinOutput(HadoopFiles(spark, url), url)
        put = partial(_to_directory, directory.rows_url, write)
    else:
        output, put = table, partial(_to_table, table)

    def written() -> Figures:
        check_columns(logs)
        with _settings(spark):
            figures = _run(_JoinPlan(join, spark), put)
        # Files are checked after the last read and before anything is published.
        check_logs(logs)
        return figures

    return run_join(join, output, input_digest(join, logs), written)


@contextlib.contextmanager
def _settings(spark: "SparkSession") -> Iterator[None]:
    """Applies the Spark settings that the join relies on, and restores the session's at the end."""
    before = {key: spark.conf.get(key) for key in _SETTINGS}

    def restore() -> None:
        for key, value in before.items():
            spark.conf.set(key, value or "")

    with cleaned_up_on_failure(restore):
        for key, value in _SETTINGS.items():
            spark.conf.set(key, value)
        yield
    restore()


def _to_directory(url: str, write: WriteFunction, plan: "_JoinPlan") -> Digest:
    """Writes the rows, and reads their ids back."""
    write(plan.rows, url, plan.join.partition_by)
    files = plan.spark.read.schema(plan.rows.schema).parquet(url)
    return digest(_collect(files, query.digest_metrics(plan.join.impressions.row_id)))


def _to_table(table: JoinedTable, plan: "_JoinPlan") -> Digest:
    table.add(write_frame(table.target, plan.rows))
    return table.digest()


def _run(plan: "_JoinPlan", put: "Callable[[_JoinPlan], Digest]") -> Figures:
    """Writes the rows, reads their ids back and returns the figures.

    If the figures do not agree, they are counted again in separate jobs: Spark may count a row
    twice if it recomputes it, for instance after an executor is lost.
    """
    written = put(plan)
    figures = plan.figures(written, _observed)
    if mismatch(figures) is None:
        return figures
    return plan.figures(written, lambda counted: _collect(counted.frame, counted.metrics))


@dataclass(frozen=True, kw_only=True)
class _ObservedFrame:
    """A frame whose rows are counted as they pass; later steps use `observed`."""

    frame: "DataFrame"
    observed: "DataFrame"
    observation: "Observation"
    metrics: Mapping[str, str]


class _JoinPlan:
    """The join as lazy frames, with the places where rows are counted."""

    def __init__(self, join: LabelJoin, spark: "SparkSession") -> None:
        self.join, self.spark = join, spark
        self.events: list[_ObservedFrame] = []
        self.num_events: list[_ObservedFrame] = []
        self.dimensions: list[_ObservedFrame] = []
        log = read_source(spark, join.impressions.source)
        self.types = _types(log, join.impressions.source)
        check_impressions(join, self.types)
        row_id = join.impressions.row_id
        self.raw = _counted(
            log,
            {
                "num_input_rows": "count(1)",
                "num_incomplete": query.count(f"not ({self._complete})"),
            },
        )
        # Counted before the duplicates are dropped: this also keeps Spark from sorting before the
        # shuffle, as it does for a bare `row_number() = 1`.
        ranked = _ranked(self.raw.observed.where(self._complete), join.impressions, self.types)
        self.distinct = _counted(ranked, query.digest_metrics(row_id, "__rank = 1"))
        frame = self.distinct.observed.where("__rank = 1").selectExpr(
            *map(query.quote, self.types), "__time"
        )
        for j, lookup in enumerate(join.lookups):
            frame = self._look_up(frame, j, lookup)
        # Neighbouring labels with one key share a step, because each step copies every row.
        for _, alike in itertools.groupby(
            enumerate(join.labels), key=lambda numbered: numbered[1].key
        ):
            frame = self._label(frame, list(alike))
        self.joined = _counted(self._drawn(frame), self._joined_metrics())
        self.rows = self._output(self.joined.observed)

    def figures(self, written: Digest, counts: Callable[[_ObservedFrame], Counts]) -> Figures:
        """Returns all figures; `counts` reads those of one frame."""
        events = [
            {**counts(read), **counts(made)}
            for read, made in zip(self.events, self.num_events, strict=True)
        ]
        return Figures(
            impressions=counts(self.raw),
            distinct=counts(self.distinct),
            events=events,
            dimensions=[counts(read) for read in self.dimensions],
            joined=counts(self.joined),
            written=written,
        )

    @property
    def _complete(self) -> str:
        return query.present([*self.join.impressions.row_id, self.join.impressions.event_time])

    def _look_up(self, frame: "DataFrame", j: int, lookup: Lookup) -> "DataFrame":
        """Adds `__from{j}`, `__at{j}`, `__fresh{j}` and the looked-up columns.

        The number of rows does not change.
        """
        matched = frame.join(
            self._versions(j, lookup), _expression(query.lookup_condition(j, lookup)), "left"
        )
        fresh = matched.selectExpr("*", f"{query.lookup_fresh(j, lookup)} as __fresh{j}")
        values = [
            f"if(__fresh{j}, __value{j}_{n}, null) as {query.quote(name)}"
            for n, name in enumerate(lookup.added)
        ]
        joined = [f"__key{j}_{n}" for n in range(len(lookup.key))] + [
            f"__value{j}_{n}" for n in range(len(lookup.columns))
        ]
        return fresh.selectExpr("*", *values).drop(f"__to{j}", *joined)

    def _versions(self, j: int, lookup: Lookup) -> "DataFrame":
        """The dimension's rows, each with the interval in which it is the one to look up.

        Intervals of a key do not overlap.
        """
        read = read_source(self.spark, lookup.source)
        types = _types(read, lookup.source)
        check_lookup(lookup, self.types, types)
        complete = query.present([*lookup.key, lookup.event_time])
        counted = _counted(
            read, {"num_input_rows": "count(1)", "num_incomplete": query.count(f"not ({complete})")}
        )
        self.dimensions.append(counted)
        ranked = counted.observed.where(complete).selectExpr(
            *map(query.quote, dict.fromkeys([*lookup.key, *lookup.columns])),
            f"{query.micros(lookup.event_time, types)} as __at",
            f"{query.known_micros(lookup.log_time, lookup.event_time, types)} as __known",
            f"{query.content_hash(lookup.columns, types)} as __content",
        )
        versions = ranked.selectExpr("*", "greatest(__at, __known) as __from").selectExpr(
            *(f"{query.quote(name)} as __key{j}_{n}" for n, name in enumerate(lookup.key)),
            *(f"{query.quote(name)} as __value{j}_{n}" for n, name in enumerate(lookup.columns)),
            f"__at as __at{j}",
            f"__from as __from{j}",
            f"{query.lookup_interval(lookup)} as __to{j}",
        )
        return versions.where(f"__to{j} is null or __from{j} < __to{j}")

    def _label(self, frame: "DataFrame", alike: list[tuple[int, Label]]) -> "DataFrame":
        """Adds the columns of `query.attributed` for labels that share a key.

        The number of rows does not change. Window functions run before the events are joined, so
        that the sort does not carry the event arrays. All expressions over them are in one
        projection, so that each row is copied once.
        """
        row_id, labels = self.join.impressions.row_id, [label for _, label in alike]
        on, salt = list(labels[0].key), query.salt(labels[0], row_id)
        if salt is not None:
            frame, on = frame.selectExpr("*", f"{salt} as __salt"), [*on, "__salt"]
        if query.needs_neighbours(labels[0], row_id):
            frame = frame.selectExpr("*", *query.neighbours(labels, on, row_id))
        for i, label in alike:
            events = self._events(i, label)
            frame = frame.join(
                events if salt is None else events.selectExpr("*", "0L as __salt"), on, "left"
            )
        labelled = frame.selectExpr(
            "*", *(text for i, label in alike for text in query.attributed(i, label, row_id))
        )
        return labelled.drop("__salt", "__next", "__previous", *(f"__events{i}" for i, _ in alike))

    def _events(self, i: int, label: Label) -> "DataFrame":
        """One row per key, with an array of its distinct events known at the cut-off, by time."""
        read = read_source(self.spark, label.source)
        types = _types(read, label.source)
        check_label(label, self.types, types)
        complete = query.present([*label.key, label.event_time])
        late = (
            f"{query.known_micros(label.log_time, label.event_time, types)} >= "
            f"{self.join.cut_off_us}L"
        )
        metrics = {"num_input_rows": "count(1)", "num_incomplete": query.count(f"not ({complete})")}
        counted = _counted(read, metrics | {"num_late": query.count(f"({complete}) and {late}")})
        self.events.append(counted)
        rows = counted.observed.where(f"{complete} and not ({late})").selectExpr(
            *map(query.quote, label.key),
            *(f"{query.quote(name)} as __id{n}" for n, name in enumerate(label.event_id)),
            f"{query.micros(label.event_time, types)} as __time",
            f"{query.known_micros(label.log_time, label.event_time, types)} as __known",
            *(
                []
                if label.value is None
                else [f"nanvl(cast({query.quote(label.value)} as double), null) as __value"]
            ),
        )
        arrays = _counted(
            _arrays(rows, i, label), {"num_events": f"coalesce(sum(size(__events{i})), 0)"}
        )
        self.num_events.append(arrays)
        return arrays.observed

    def _drawn(self, frame: "DataFrame") -> "DataFrame":
        """Adds the labels, `__negative` and `__keep`, if negatives are sampled."""
        negatives = self.join.negatives
        if negatives is None:
            return frame
        drawn = query.sample(self.join.impressions.row_id, self.types, negatives)
        labelled = frame.selectExpr("*", *self._label_columns()).selectExpr(
            "*", f"{query.negative(self.join.labels, negatives)} as __negative"
        )
        return labelled.selectExpr("*", f"not __negative or ({drawn}) as __keep")

    def _label_columns(self) -> list[str]:
        columns, row_id, cut_off_us = [], self.join.impressions.row_id, self.join.cut_off_us
        for i, label in enumerate(self.join.labels):
            columns.append(
                f"{query.label_value(i, label, row_id, cut_off_us)} as {query.quote(label.name)}"
            )
            columns += (
                [f"{query.label_time(i, label, cut_off_us)} as {query.quote(label.time_column)}"]
                if label.with_time
                else []
            )
        return columns

    def _joined_metrics(self) -> dict[str, str]:
        row_id = self.join.impressions.row_id
        metrics = query.digest_metrics(row_id) | query.kept_metrics(self.join.negatives, row_id)
        for i, label in enumerate(self.join.labels):
            metrics |= query.label_metrics(i, label, row_id, self.join.cut_off_us)
        for j in range(len(self.join.lookups)):
            metrics |= query.lookup_metrics(j)
        return metrics

    def _output(self, frame: "DataFrame") -> "DataFrame":
        negatives, read = (
            self.join.negatives,
            [*self.types, *(name for part in self.join.lookups for name in part.added)],
        )
        columns = [*map(query.quote, read)]
        if negatives is None:
            return frame.selectExpr(*columns, *self._label_columns())
        columns += [query.quote(name) for label in self.join.labels for name in label.columns]
        return frame.where("__keep").selectExpr(*columns, query.weight(negatives))


def read_source(spark: "SparkSession", source: LogSource) -> "DataFrame":
    """Returns the rows of a log.

    Raises:
        InputError: Spark cannot read it.
        StoreError: The metastore fails, or cannot be reached.
    """
    with refused_by_spark(f"read {source}"):
        if source.sql is not None:
            return spark.sql(source.sql)
        if source.table is not None:
            return spark.table(source.table)
        # Without mergeSchema Spark takes the columns of one file, and drops what others add.
        paths = _matching(spark, spark_url(source.url or ""))
        return spark.read.option("mergeSchema", "true").parquet(*paths)


def _matching(spark: "SparkSession", url: str) -> list[str]:
    """What matches a pattern. Spark would do the same, but before that it looks for a file of that
    very name, and logs that there is none with a hundred lines of a Java stack.
    """
    if not _PATTERN.search(url):
        return [url]
    path = spark._jvm.org.apache.hadoop.fs.Path(url)
    found = path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)
    # Where nothing matches, Spark's own error says so.
    return [status.getPath().toString() for status in found or ()] or [url]


def _expression(text: str) -> "Column":
    from pyspark.sql.functions import expr

    return expr(text)


def _counted(frame: "DataFrame", metrics: Mapping[str, str]) -> _ObservedFrame:
    from pyspark.sql import Observation

    observation = Observation()
    observed = frame.observe(observation, _expression(query.counts(metrics)))
    return _ObservedFrame(frame=frame, observed=observed, observation=observation, metrics=metrics)


def _observed(counted: _ObservedFrame) -> Counts:
    """Returns what was counted in passing.

    Spark skips the observation if it finds that it need not read the rows; they are then counted in
    a job of their own.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return _numbers(counted.observation.get["counts"].asDict())
    except Py4JJavaError:
        return _collect(counted.frame, counted.metrics)


def _collect(frame: "DataFrame", metrics: Mapping[str, str]) -> Counts:
    """Computes the metrics over all rows, in a separate job."""
    return _numbers(frame.agg(_expression(query.counts(metrics))).collect()[0]["counts"].asDict())


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces nulls: a sum over no rows becomes 0, a histogram an empty list."""
    empty: dict[str, Any] = {name: [] if name.endswith("_delays") else 0 for name in found}
    return {name: empty[name] if value is None else value for name, value in found.items()}


def _ranked(frame: "DataFrame", impressions: Impressions, types: Mapping[str, str]) -> "DataFrame":
    """Adds `__time` and `__rank`; one row of each row id has rank 1, the same in every run.

    Columns that only the ranking needs are made after the shuffle, so that they are not sent.
    """
    placed = frame.repartition(*map(query.quote, impressions.row_id)).selectExpr(
        "*",
        f"{query.micros(impressions.event_time, types)} as __time",
        f"{query.known_micros(impressions.log_time, impressions.event_time, types)} as __known",
        f"{query.content_hash(types, types)} as __content",
    )
    return placed.selectExpr("*", f"{query.first_of_equals(impressions.row_id)} as __rank")


def _arrays(rows: "DataFrame", i: int, label: Label) -> "DataFrame":
    """Removes duplicate events, keeping the one known first, and makes one array per key.

    Both groupings are by key, so rows cross the network once.
    """
    keys = [query.quote(name) for name in label.key]
    first = (
        rows.repartition(*keys)
        .groupBy(*keys, *map(_expression, query.event_identity(label)))
        .agg(_expression(query.known_first(label)))
    )
    return first.groupBy(*keys).agg(
        _expression(f"sort_array(collect_list({query.event(label)}))").alias(f"__events{i}")
    )


def write_frame(target: RowTarget, rows: "DataFrame") -> list[WrittenRows]:
    """As `write_rows`, for the rows of a query: each task of Spark writes those it has."""
    context = rows.sparkSession.sparkContext
    check_workers(context)
    if target.partition_by:  # As Spark's own writer does, so that a task has one file open.
        rows = rows.sortWithinPartitions(*map(query.quote, target.partition_by))
    found = rows.mapInArrow(partial(_write_task, target), "written binary")
    # Unpickling is safe here: the bytes come from our own tasks.
    return [pickle.loads(row["written"]) for row in run_checked(context, found.collect)]


def _write_task(target: RowTarget, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on a worker of Spark."""
    from pyspark import TaskContext

    unit, attempt = TaskContext.get().partitionId(), TaskContext.get().taskAttemptId()
    for first in batches:
        rows = (batch for part in ((first,), batches) for batch in part)
        with telling_errno():
            written = write_rows(target, first.schema, rows, unit, attempt)
        yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})


def _types(frame: "DataFrame", source: LogSource) -> dict[str, str]:
    """The Spark types of a log's columns.

    Raises:
        InputError: Two columns have the same name, as is possible in a query.
    """
    names = frame.columns
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: {not_once(name, names.count(name))}")
    return dict(frame.dtypes)
