"""Extraction on Spark.

Spark schedules, retries and scales. Each task writes its data file with the same code as the local
runner, and returns one row per file. The driver collects these rows once and commits once. The lazy
frame is never exposed: evaluating it twice would write twice.
"""

import contextlib
import importlib
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from featstore.base.errors import InputError, MissingDependencyError, WorkerError, missing_extra
from featstore.extraction.by_key import KeyedPartition, write_by_key
from featstore.extraction.fit import FitTask, States, fit_units, merge_states
from featstore.extraction.job import (
    CommitFunction,
    ExtractJob,
    ExtractReport,
    begin_run,
    check_events,
    earlier_report,
    event_files,
    in_key_order,
    write_and_commit,
)
from featstore.extraction.local import kept_memory
from featstore.extraction.spark.java import java_environment
from featstore.extraction.spark.spark_errors import spark_error, telling_errno
from featstore.extraction.units.blocks import Blocks, RowBlock
from featstore.extraction.units.buckets import (
    Bucket,
    CutRows,
    block_schema,
    cut_unit,
    in_buckets,
    plan_buckets,
    require_all,
    write_bucket,
)
from featstore.extraction.units.extractor import EventExtractor, Extractor
from featstore.extraction.units.findings import BatchOrigin
from featstore.extraction.units.history_rows import CutEvents, cut_events, event_schema
from featstore.extraction.units.part import GroupTask
from featstore.extraction.units.raw import Unit, plan_units
from featstore.extraction.units.unit import (
    OnRows,
    Progress,
    UnitReport,
    UnitTask,
    extract_batches,
    ignore_progress,
    raw_columns,
    run_unit,
    write_unit,
)
from featstore.files.retry import RetryPolicy, retrying
from featstore.table import delta
from featstore.table.open import open_for_writing

if TYPE_CHECKING:
    from pyspark import RDD, Accumulator, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

_PROGRESS_INTERVAL_S = 0.5  # reading an accumulator on the driver costs no job
_WORKER_MODULES = {
    "pyarrow": "pyarrow",
    "numpy": "numpy",
    "featstore.extraction.units.unit": "featstore",
}
_Result = TypeVar("_Result")
_Task = TypeVar("_Task", bound=UnitTask)
_Item = TypeVar("_Item")
_Write = Callable[[_Task, _Item, int], list[UnitReport]]
"""Writes an item's files under the number of an attempt."""
_Piece = tuple[str, tuple[int, int], int, bytes] | UnitReport
"""Rows for a bucket, or, by the name of their history, events: the place, number and bytes of those
of a block. Or what a unit found, which comes with the rows, so that it is of the attempt whose rows
are used."""
_ROWS = ""
_BLOCK_BYTES = 32 << 20  # Python's side of Spark's shuffle holds a few blocks in memory


def spark_session(
    app: str, conf: Mapping[str, str] | None = None, *, hive: bool = False
) -> "SparkSession":
    """Returns the running session, or a new one whose workers use this interpreter.

    The caller stops it.

    Args:
        app: Name of the application.
        conf: Further Spark settings.
        hive: Whether to connect to a Hive metastore.

    Raises:
        MissingDependencyError: pyspark is missing, or no Java 17 or newer is found.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise missing_extra("Spark", error) from error
    # Java matters only if this process starts a JVM: not with a running session, nor under
    # spark-submit, which started the JVM itself.
    own = dict[str, str]()
    if SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.update(java_environment(os.environ))
        own = _worker_paths((conf or {}).get("spark.master", "local"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    for key, value in {"spark.ui.showConsoleProgress": "false", **own, **(conf or {})}.items():
        builder = builder.config(key, value)
    return (builder.enableHiveSupport() if hive else builder).getOrCreate()


def _worker_paths(master: str) -> dict[str, str]:
    """Settings by which workers on this host find modules where this process does. By themselves
    they look in the working directory first: in a clone they import its source, without compiled
    kernels, though this process runs what is installed.
    """
    # Another interpreter has packages of its own.
    is_same = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    if not master.startswith("local") or not is_same:
        return {}
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {"spark.executorEnv.PYTHONSAFEPATH": "1", "spark.executorEnv.PYTHONPATH": paths}


def check_workers(context: "SparkContext") -> None:
    """Runs a tiny task that imports what extraction needs.

    Raises:
        MissingDependencyError: The workers' interpreter lacks a package.
    """
    failed = run_checked(
        context, lambda: context.parallelize([0], 1).map(_import_probe()).collect()
    )
    for module, reason in failed[0].items():
        raise MissingDependencyError(
            f"Spark's Python workers run {context.pythonExec}, which cannot import {module} "
            f"({reason}): install {_WORKER_MODULES[module]} for it, point PYSPARK_PYTHON to an "
            "interpreter that has it, or send one with the job (featstore spark pack)"
        )


class SparkRunner:
    """Runs units as Spark tasks, one per unit. Progress counts the rows of finished tasks.

    Args:
        spark: A session, or a function that returns it, called once there is work.
    """

    def __init__(self, spark: "SparkSession | Callable[[], SparkSession]") -> None:
        self._spark = spark

    @property
    def _context(self) -> "SparkContext":
        return (self._spark() if callable(self._spark) else self._spark).sparkContext

    def __call__(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]:
        if task.spec.cluster_by is None:
            return self._run(task, units, run_unit, progress, lambda unit: 1)
        check_workers(self._context)
        cuts, buckets = plan_buckets(units, task.spec.output.rows_per_file)
        counters = _ProgressAccumulators(self._context, progress, len(buckets))
        logs, task = task.events, replace(task, events={})  # each Spark task gets a copy
        cut = partial(_cut_units, task, counters.num_rows)
        pieces = [self._context.parallelize(cuts, len(cuts)).mapPartitions(cut)]
        pieces += _event_pieces(self._context, task, logs, [numbers for _, numbers in cuts])
        return _write_buckets(task, pieces, buckets, counters)

    def by_key(
        self, task: GroupTask, partitions: Sequence[KeyedPartition], progress: Progress
    ) -> list[UnitReport]:
        """Runs `write_by_key` as Spark tasks, one per partition of the table.

        A task holds a partition's keys and new columns in memory, and uses as many threads as its
        host has cores. Set `spark.task.cpus` and the memory beside the JVM's
        (`spark.executor.memoryOverhead`) accordingly.
        """
        return self._run(
            task, partitions, write_by_key, progress, lambda partition: len(partition.files)
        )

    def fit(self, task: FitTask, units: Sequence[Unit]) -> list[States]:
        """Runs a fitting pass as Spark tasks; their states are merged on the executors."""
        check_workers(self._context)

        def fit(of_task: Iterator[Unit]) -> list[States]:
            with telling_errno():
                return [fit_units(task, of_task)]

        states = self._context.parallelize(units, len(units)).mapPartitions(fit)
        return [run_checked(self._context, lambda: states.treeReduce(merge_states))]

    def _run(
        self,
        task: _Task,
        items: Sequence[_Item],
        write: "_Write[_Task, _Item]",
        progress: Progress,
        weigh: "Callable[[_Item], int]",
    ) -> list[UnitReport]:
        """Runs a Spark task for each item, and counts the rows of finished ones.

        `weigh` tells how many files an item counts as.
        """
        check_workers(self._context)
        counters = _ProgressAccumulators(self._context, progress, sum(map(weigh, items)))
        run = partial(_run_items, task, write, weigh, counters.num_files, counters.num_rows)
        tasks = self._context.parallelize(items, len(items)).mapPartitions(run)
        return _collect(self._context, tasks.collect, counters)


def extract_dataframe(
    job: ExtractJob,
    dataframe: "DataFrame",
    *,
    events: "Mapping[str, DataFrame] | None" = None,
    progress: Progress = ignore_progress,
    commit: CommitFunction = delta.commit,
) -> ExtractReport:
    """Extracts a DataFrame into one partition of the table, as one commit.

    The input of a query has no digest, so every run commits, unless its run id was committed
    before. Row order is only kept within a data file. With `cluster_by` rows go to as many buckets
    as the setting `spark.sql.shuffle.partitions` says.

    Args:
        job: Its `input_url` is only used in error messages.
        dataframe: The raw rows; only columns that the spec reads are computed.
        events: By history, the raw events of those whose log the job does not name.
        progress: Called with a total of 0 files, because their number is not known before the end.
        commit: Makes the commit; a parameter so that tests can inject faults.

    Raises:
        ConfigError: The events of a history are missing, or there are others.
        InputError: The rows or events do not fit the spec, the partition or the table.
        OperatorError: An operator failed.
        CommitConflictError: Another writer changed the table in the meantime.
    """
    started_s = time.monotonic()
    frames = events or {}
    check_events(job, frames)
    if job.partition_from_path:
        raise InputError(
            "a DataFrame has no paths to take a partition from; give its partition as key=value"
        )
    context = dataframe.sparkSession.sparkContext
    base = open_for_writing(job.table_url, "extract")
    partition = in_key_order(job.partition, base)
    run = begin_run(job, base, (partition,), None, started_s)
    earlier = earlier_report(run, None)
    if earlier is not None:
        return earlier
    most = job.spec.output.rows_per_file
    files = {name: plan_units(log, most) for name, log in event_files(job, with_text=False).items()}
    chosen = _chosen(dataframe, Extractor(job.spec), job.partition)
    logs = {
        history.name: _chosen(frames[history.name], EventExtractor(history), {})
        for history in job.spec.histories
        if history.name in frames
    }
    check_workers(context)
    counters = _ProgressAccumulators(context, progress, 0)
    write = partial(_write_partition, run.task, partition, counters.num_files, counters.num_rows)

    def write_buckets() -> list[UnitReport]:
        said = dataframe.sparkSession.conf.get("spark.sql.shuffle.partitions") or ""
        # Some platforms say `auto`.
        num_buckets = int(said) if said.isdecimal() else context.defaultParallelism
        cut = partial(_cut_partition, run.task, partition, num_buckets, counters.num_rows)
        buckets = [Bucket(index=index, partition=partition) for index in range(num_buckets)]
        pieces = [_mapped(chosen, cut)]
        for name, log in logs.items():
            # Partitions are counted on, from one of these to the next.
            first = sum(part.getNumPartitions() for part in pieces)
            cut_log = partial(_cut_event_partition, run.task, name, num_buckets, first)
            pieces.append(_mapped(log, cut_log))
        pieces += _event_pieces(context, run.task, files, [range(num_buckets)])
        return _write_buckets(run.task, pieces, buckets, counters)

    def write_files() -> list[UnitReport]:
        rows = _collect(context, chosen.mapInArrow(write, "report binary").collect, counters)
        # Unpickling is safe here: the bytes come from our own tasks.
        return [pickle.loads(row["report"]) for row in rows]

    is_clustered = run.task.spec.cluster_by is not None
    return write_and_commit(run, write_buckets if is_clustered else write_files, commit, None)


def _chosen(
    dataframe: "DataFrame", extractor: Extractor, partition: Mapping[str, str]
) -> "DataFrame":
    """The columns that are read of a DataFrame, which must fit."""
    extractor.bind(dataframe.limit(0).toArrow().schema)
    columns = raw_columns(extractor, dataframe.columns, partition)
    return dataframe.select(*(f"`{name}`" for name in columns))


def _mapped(
    dataframe: "DataFrame", cut: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> "RDD[tuple[int, _Piece]]":
    return dataframe.mapInArrow(cut, "bucket int, piece binary").rdd.map(_unpickled)


def _event_pieces(
    context: "SparkContext",
    task: UnitTask,
    logs: Mapping[str, Sequence[Unit]],
    buckets: Sequence[range],
) -> "list[RDD[tuple[int, _Piece]]]":
    """What the first pass over the units of logs gives, a Spark task for each.

    Args:
        logs: The units, by history.
        buckets: The numbers of the buckets of partitions, which may be repeated.
    """
    items = [(name, unit) for name, units in logs.items() for unit in units]
    if not items:
        return []
    cut = partial(_cut_logs, task, list(dict.fromkeys(buckets)))
    return [context.parallelize(items, len(items)).mapPartitions(cut)]


class _ProgressAccumulators:
    """Counts of finished tasks, kept in Spark accumulators and read by the driver."""

    def __init__(self, context: "SparkContext", progress: Progress, num_files_total: int) -> None:
        self.num_files: Accumulator[int] = context.accumulator(0)
        self.num_rows: Accumulator[int] = context.accumulator(0)
        self._progress = progress
        self._num_files_total = num_files_total

    def report(self) -> None:
        self._progress(self.num_files.value, self._num_files_total, self.num_rows.value)


def _collect(
    context: "SparkContext", collect: Callable[[], _Result], counters: _ProgressAccumulators
) -> _Result:
    """Runs one job while reporting its progress.

    An interrupt, or an error of the progress callback, cancels the job.
    """
    group = f"featstore-{uuid.uuid4().hex}"

    def run() -> _Result:
        # Job groups belong to a thread, so this runs in the thread that starts the job.
        context.setJobGroup(group, "featstore extract", interruptOnCancel=True)
        return run_checked(context, collect)

    with ThreadPoolExecutor(1, "featstore-spark") as thread:
        future = thread.submit(run)
        try:
            while wait([future], _PROGRESS_INTERVAL_S).not_done:
                counters.report()
        except BaseException:
            # Leaving the `with` waits for the thread, which ends only when its job does.
            context.cancelJobGroup(group)
            raise
    counters.report()
    return future.result()


def _write_buckets(
    task: UnitTask,
    pieces: "Sequence[RDD[tuple[int, _Piece]]]",
    buckets: Sequence[Bucket],
    counters: _ProgressAccumulators,
) -> list[UnitReport]:
    """Runs the second pass of `cluster_by`, a Spark task for each bucket.

    Args:
        pieces: What the first passes over rows and events give, by the number of a bucket.
    """
    write = partial(_write_bucket, task, buckets, counters.num_files)
    context = pieces[0].context
    tasks = context.union(list(pieces)).partitionBy(len(buckets), int).mapPartitions(write)
    return require_all(_collect(context, tasks.collect, counters))


def run_checked(context: "SparkContext", collect: Callable[[], _Result]) -> _Result:
    """Runs a job, and raises the error of featstore behind Spark's error, if there is one.

    A WorkerError is raised without Java's trace, because its message says everything.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return collect()
    except (Py4JJavaError, PySparkException) as error:
        cause = spark_error(str(error), context.pythonExec)
        if cause is None:
            raise
        raise cause from (None if isinstance(cause, WorkerError) else error)


def _import_probe() -> Callable[[object], dict[str, str]]:
    """Returns a function that reports which modules a worker cannot import.

    It is nested, so that it is pickled by value and does not need featstore on the worker.
    """
    modules = tuple(_WORKER_MODULES)

    def probe(_: object) -> dict[str, str]:
        failed = {}
        for module in modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                failed[module] = str(error)
        return failed

    return probe


@contextlib.contextmanager
def _at_work(retry: RetryPolicy) -> Iterator[None]:
    """On a worker: what holds while it reads and writes files."""
    with kept_memory(), retrying(retry), telling_errno():
        yield


def _numbers() -> tuple[int, int]:
    """Runs on a worker: the number of the Spark task's partition, and that of its attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId(), context.taskAttemptId()


def _run_items(
    task: _Task,
    write: "_Write[_Task, _Item]",
    weigh: "Callable[[_Item], int]",
    num_files: "Accumulator[int]",
    num_rows: "Accumulator[int]",
    items: Iterator[_Item],
) -> Iterator[UnitReport]:
    """Runs on a worker: writes the items of one Spark task, under the name of this attempt."""
    _, attempt = _numbers()
    for item in items:
        with _at_work(task.retry):
            reports = write(task, item, attempt)
        num_files.add(weigh(item))
        num_rows.add(sum(report.num_rows for report in reports))
        yield from reports


def _write_partition(
    task: UnitTask,
    partition: dict[str, str],
    num_files: "Accumulator[int]",
    num_rows: "Accumulator[int]",
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: writes one partition of the DataFrame into data files."""
    unit, attempt = _numbers()
    extractor = task.extractor()
    origin = BatchOrigin(source=f"DataFrame, partition {unit}")
    extracted = extract_batches(batches, extractor, partition, origin)
    with _at_work(task.retry):
        reports = write_unit(task, partition, extractor, extracted, index=unit, attempt=attempt)
    num_files.add(sum(report.num_rows > 0 for report in reports))
    num_rows.add(sum(report.num_rows for report in reports))
    for report in reports:
        yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]})


def _cut_units(
    task: UnitTask, num_rows: "Accumulator[int]", items: Iterator[tuple[Unit, range]]
) -> Iterator[tuple[int, _Piece]]:
    """Runs on a worker: the first pass of `cluster_by` over raw files."""
    _, attempt = _numbers()
    for unit, numbers in items:
        rows = cut_unit(task, unit, numbers, _BLOCK_BYTES)
        with _at_work(task.retry):
            yield from _pieces(_ROWS, rows, num_rows.add)
            yield numbers.start, rows.report(unit.partition, attempt)


def _cut_partition(
    task: UnitTask,
    partition: dict[str, str],
    num_buckets: int,
    num_rows: "Accumulator[int]",
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: the first pass over one partition of a DataFrame."""
    unit, attempt = _numbers()
    extractor, numbers = task.extractor(), range(num_buckets)
    origin = BatchOrigin(source=f"DataFrame, partition {unit}")
    extracted = extract_batches(batches, extractor, partition, origin)
    rows = CutRows(task, extractor, extracted, numbers, unit, _BLOCK_BYTES)
    with _at_work(task.retry):
        yield from starmap(_pickled, _pieces(_ROWS, rows, num_rows.add))
        yield _pickled(0, rows.report(partition, attempt))


def _cut_logs(
    task: UnitTask, buckets: Sequence[range], items: Iterator[tuple[str, Unit]]
) -> Iterator[tuple[int, _Piece]]:
    """Runs on a worker: reads events of raw files, which go to the buckets of all partitions."""
    histories = {history.name: history for history in task.spec.histories}
    for name, unit in items:
        with telling_errno(), retrying(task.retry):
            yield from _log_pieces(cut_events(histories[name], unit), name, buckets)


def _cut_event_partition(
    task: UnitTask,
    name: str,
    num_buckets: int,
    first_partition: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: the same of one partition of a DataFrame."""
    index = _numbers()[0] - first_partition
    [history] = (history for history in task.spec.histories if history.name == name)
    extractor = EventExtractor(history)
    origin = BatchOrigin(source=f"DataFrame of {name}, partition {index}")
    events = CutEvents(extractor, extract_batches(batches, extractor, {}, origin), index)
    yield from starmap(_pickled, _log_pieces(events, name, [range(num_buckets)]))


def _log_pieces(
    events: CutEvents, name: str, buckets: Sequence[range]
) -> Iterator[tuple[int, _Piece]]:
    num_events = 0
    for block in events:
        num_events += block.rows.num_rows * len(buckets)
        yield from _pieces(name, (in_buckets(block, numbers) for numbers in buckets))
    yield 0, replace(events.report(), num_events_cut=num_events)


def _pieces(
    name: str, blocks: Iterable[RowBlock], on_rows: OnRows = lambda num_rows: None
) -> Iterator[tuple[int, _Piece]]:
    for block in blocks:
        for part in block.split():
            yield part.first_bucket, (name, part.place, part.rows.num_rows, part.to_bytes())
        on_rows(block.rows.num_rows)


def _pickled(bucket: int, piece: _Piece) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"bucket": pa.array([bucket], pa.int32()), "piece": [pickle.dumps(piece)]}
    )


def _unpickled(row: "Row") -> tuple[int, _Piece]:
    # Safe here: the bytes come from our own tasks.
    return row["bucket"], pickle.loads(row["piece"])


def _write_bucket(
    task: UnitTask,
    buckets: Sequence[Bucket],
    num_files: "Accumulator[int]",
    pieces: Iterator[tuple[int, _Piece]],
) -> Iterator[UnitReport]:
    """Runs on a worker: the second pass of `cluster_by` over one bucket."""
    (unit, attempt), reports, num_events = _numbers(), list[UnitReport](), 0
    schemas = {_ROWS: block_schema(task.spec)}
    schemas |= {history.name: event_schema(history) for history in task.spec.histories}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_at_work(task.retry))
        blocks = {
            name: stack.enter_context(Blocks(schema, _local_directory()))
            for name, schema in schemas.items()
        }
        for number, piece in pieces:
            if isinstance(piece, UnitReport):
                reports.append(piece)
            else:
                name, place, num_rows, message = piece
                blocks[name].add_message(place, message, number, [num_rows])
                num_events += num_rows if name != _ROWS else 0
        reports.append(UnitReport(path="", partition={}, num_events_cut=-num_events))
        rows = blocks.pop(_ROWS)
        reports += write_bucket(task, buckets[unit], rows, attempt, events=blocks)
    num_files.add(1)
    yield from reports


def _local_directory() -> str | None:
    """Where Spark keeps temporary data, which takes more than the directory of temporary files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
