"""The functions that users call: import, preview, extract into a table, fit, relabel, compact,
delete, register with a catalog.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

from featstore.base.closing import noted_on_failure
from featstore.base.errors import ConfigError, InputError
from featstore.base.redaction import redact
from featstore.base.telemetry import span
from featstore.explore.preview import preview as preview
from featstore.extraction.days import DaysReport, extract_days, with_slots
from featstore.extraction.deletion import DeletionReport
from featstore.extraction.deletion import delete_rows as delete_rows_of_table
from featstore.extraction.fit import fit_in_threads, fit_spec
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files, new_run_id
from featstore.extraction.restoring import RestoreReport
from featstore.extraction.restoring import restore as restore_table
from featstore.extraction.rewriting import CompactReport
from featstore.extraction.rewriting import compact as compact_table
from featstore.extraction.spark.runners import (
    SparkRunner,
    extract_dataframe,
)
from featstore.extraction.units.unit import Progress, ignore_progress
from featstore.files.lineage import LineageDataset, LineageRun
from featstore.files.retry import retrying_for as retrying_for
from featstore.ingest.import_job import SAMPLE_ROWS, ImportReport, import_job
from featstore.ingest.import_run import OnSchema, run_import
from featstore.spec.lock import load_lock, lock_url, write_lock
from featstore.spec.meaning import keep_fits, make_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.vocabulary import record_vocabularies
from featstore.table.iceberg_mirror import check_registration as check_registration
from featstore.table.iceberg_mirror import register as register
from featstore.table.iceberg_mirror import update_mirrors
from featstore.table.layout import LABELS
from featstore.table.open import OpenedTables

_DATAFRAME = "DataFrame"  # In place of the URL of an input.
Report = TypeVar(
    "Report", bound=ExtractReport | DaysReport | CompactReport | DeletionReport | RestoreReport
)


@overload
def extract(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    no_partition: bool = False,
    days: None = None,
    spark: Any = None,
    dataframe: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    group: str | None = None,
    key: str | None = None,
    events: Mapping[str, Any] | None = None,
    rejects: str | Path | None = None,
    retry_s: float = 120.0,
) -> ExtractReport: ...


@overload
def extract(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    days: str,
    allow_missing: bool = False,
    dry_run: bool = False,
    spark: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    events: Mapping[str, Any] | None = None,
    group: str | None = None,
    key: str | None = None,
    rejects: str | Path | None = None,
    retry_s: float = 120.0,
) -> DaysReport: ...


def extract(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    no_partition: bool = False,
    days: str | None = None,
    allow_missing: bool = False,
    dry_run: bool = False,
    spark: Any = None,
    dataframe: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    group: str | None = None,
    key: str | None = None,
    events: Mapping[str, Any] | None = None,
    rejects: str | Path | None = None,
    retry_s: float = 120.0,
) -> ExtractReport | DaysReport:
    """Extracts raw rows into the table, in one commit that replaces the partitions written.

    A run that would write what the table already holds commits nothing. A spec that gives a slot
    number another meaning than the lock file beside it is refused. After an error the table is as
    it was, except that with `days` the partitions before the failed one are committed.

    Args:
        spec: The spec, or the URL of its YAML file.
        input_url: Raw rows: a file, a directory or a glob of Parquet or, without `spark`, of CSV or
            JSON lines; or an Iceberg table, `iceberg://CATALOG/NAMESPACE.TABLE` or `iceberg+URL` of
            a metadata file; or `delta+URL` of a Delta table. None with `dataframe`. With `days` it
            has `{dt}`, and may have `{hour}`.
        table_url: The table to write. It is created if it does not exist.
        partition: Partition values for all of the input.
        partition_from_path: Partition keys to take from `key=value/` directories of the input, or
            from the partitions of a table.
        no_partition: Make a table without partitions of an input in `key=value/` directories. By
            default such an input without a partition is an InputError.
        days: A range `FIRST..LAST`. Each day, and with `{hour}` in `input_url` each hour, becomes
            the partition `dt` (and `hour`) in a commit of its own. A partition that already holds
            what spec and input would make is skipped.
        allow_missing: With `days`: skip days without input. By default they are an InputError,
            raised before any work.
        dry_run: With `days`: only report what would be done.
        spark: A Spark session whose tasks read the files, or a function that returns it, called
            once there is work. By default threads of this process read them.
        dataframe: A Spark DataFrame whose rows are the input, in place of `input_url`.
        run_id: The name of this run, stored in the commit. Random by default.
        progress: Called as `progress(num_files, num_files_total, num_rows)` while the run goes on.
        group: Extract only the slots and histories that the table's files lack, into the slot group
            of this name. A history needs `key`.
            No base file is read or written. Without `key` the raw files must be the very ones that
            made the base files, so that rows match by position. With `days` those days get it that
            lack slots of the spec, each in a commit.
        key: With `group`: the kept column that matches raw rows with rows of the base files. A
            partition's keys and new columns are held in memory, in this process or in the
            partition's one Spark task.
        events: By history of the spec, the URL of its log of events: raw rows, as of `input_url`.
            With `dataframe`, a log may be a DataFrame, too.
        rejects: A file to write, with the rows that were skipped or whose values were replaced
            since they are malformed, and why: at most 10,000, as lines of JSON
            (docs/contracts.md). With `days` it has the `{dt}` (and `{hour}`) of the input.
        retry_s: How many seconds a request to a store is made again after failures that may pass,
            such as a store or name node that fails over.

    Returns:
        A report of the run, or of each day with `days`.

    Raises:
        SpecError: The spec is invalid.
        ConfigError: The events of a history are missing, or there are others, or a `group` is to
            have one without `key`.
        InputError: The input cannot be extracted, or arguments contradict each other.
        OperatorError: An operator failed on a row.
        CommitConflictError: Another writer committed the same partition first.
    """
    _check_extract(input_url, dataframe, days, group, key, allow_missing or dry_run)
    if rejects is not None and group is not None:
        raise InputError(
            "rejects: expected it without `group`, found both: the rows of a group are those of "
            "the table's files, whose extraction lists them"
        )
    with retrying_for(retry_s):
        where = (partition, partition_from_path, no_partition)
        urls, frames = _logs(events or {}, dataframe)
        job = _job(spec, input_url, table_url, *where, run_id, urls)
        job = replace(job, rejects=None if rejects is None else str(rejects))
        report: ExtractReport | DaysReport
        runner = None if spark is None else SparkRunner(spark)

        def grouped(one: ExtractJob) -> ExtractReport:
            return _extract_group(GroupJob(job=one, name=str(group), key=key), spark, progress)

        opened = OpenedTables()
        with _watched(job, dry_run, opened) as done:
            if dataframe is not None:
                report = extract_dataframe(job, dataframe, events=frames, progress=progress)
            elif group is not None and days is None:
                report = grouped(job)
            elif days is None:
                report = extract_files(job, runner=runner, progress=progress, opened=opened)
            else:
                report = extract_days(
                    job,
                    days,
                    allow_missing=allow_missing,
                    dry_run=dry_run,
                    runner=runner,
                    progress=progress,
                    extract_group=None if group is None else grouped,
                    opened=opened,
                )
                if dry_run and group is not None:
                    report = with_slots(report, GroupJob(job=job, name=group, key=key))
            done(report)
        return report if dry_run else _shown(report)


@contextmanager
def _watched(
    job: ExtractJob, is_dry: bool, opened: OpenedTables
) -> Iterator[Callable[[ExtractReport | DaysReport], None]]:
    """A span around an extraction and, unless nothing is to be done, OpenLineage events. Yields
    what is to be told of its report.
    """
    urls = [url for url in (job.input_url, *job.events.values()) if url != _DATAFRAME]
    table = LineageDataset(url=job.table_url)
    run = LineageRun("featstore.extract", map(LineageDataset.of, urls), [table], is_on=not is_dry)
    with span("extract", table=redact(job.table_url), run_id=job.run_id) as note, run:

        def done(report: ExtractReport | DaysReport) -> None:
            made = [report] if isinstance(report, ExtractReport) else report.extracted
            new = [
                each for each in made if each.committed
            ]  # Of others, an equal run wrote the rows.
            num_rows = sum(each.num_rows for each in new)
            note(rows=num_rows, commits=len(new))
            written = LineageDataset(
                url=job.table_url,
                version=max((each.version for each in made), default=None),
                num_rows=num_rows,
                num_files=sum(each.num_files for each in new),
                size_bytes=sum(each.size_bytes for each in new),
            )
            read = [LineageDataset.of(url, opened.versions) for url in urls]
            run.note({"run_id": job.run_id, **report.as_dict()}, read, [written])

        yield done


def _job(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    partition: Mapping[str, str] | None,
    partition_from_path: Sequence[str],
    no_partition: bool,
    run_id: str | None,
    events: Mapping[str, str] | None = None,
) -> ExtractJob:
    return ExtractJob(
        spec=spec if isinstance(spec, Spec) else load_spec(spec),
        input_url=_DATAFRAME if input_url is None else str(input_url),
        table_url=str(table_url),
        partition=partition or {},
        partition_from_path=partition_from_path,
        no_partition=no_partition,
        run_id=run_id or new_run_id(),
        events=events or {},
    )


def _logs(events: Mapping[str, Any], dataframe: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The logs of histories that are URLs, and those that are DataFrames."""
    if not isinstance(events, Mapping):
        raise ConfigError(f"events: expected a log by the name of its history, found {events!r}")
    urls = {name: str(log) for name, log in events.items() if isinstance(log, (str, Path))}
    frames = {name: log for name, log in events.items() if name not in urls}
    for name, log in frames.items():
        if dataframe is None or not isinstance(log, type(dataframe)):
            raise ConfigError(
                f"events: expected the URL of the log of {name}, or a DataFrame beside "
                f"`dataframe`, found {type(log).__name__}"
            )
    return urls, frames


def import_raw(
    format: str,  # noqa: A002  what the command line calls it, too
    input_url: str | Path,
    output_url: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    max_malformed: int = 0,
    sample_rows: int = SAMPLE_ROWS,
    partition: Mapping[str, str] | None = None,
    num_workers: int = 1,
    progress: Progress = ignore_progress,
    on_schema: OnSchema = lambda schema: None,
    retry_s: float = 120.0,
    **options: Any,
) -> ImportReport:
    """Imports files of another format to a directory of raw Parquet, or a Delta table, the input of
    an extraction.

    Columns and their types are inferred from the first rows of some of the files. Each file becomes
    one Parquet file with its rows in order, below the same `key=value/` directories. The directory
    appears at the end, with all files. An interrupted import that is started again continues where
    it stopped; a complete one does nothing.

    Args:
        format: `csv`, `json` (JSON lines), `libsvm`, `pairs` (lines such as
            `label:1,slot1:17,tags:a,tags:b`) or `tfrecord`.
        input_url: A file, a directory (all of its files, at any depth) or a glob, on any storage;
            plain, or compressed with gzip or zstd.
        output_url: The directory to write, on the local disk; or `delta+URL` of a Delta table on
            any storage, of which one commit replaces the partitions of these rows.
        columns: Types by column, such as `{"item": "string"}`, where the inferred one is wrong.
        max_malformed: How many rows may be left out because they cannot be read.
        sample_rows: The number of rows of a file from which columns are inferred. Columns that
            appear only later are left out, and counted.
        partition: The values of partition keys that hold for all rows; the directories of the
            files may have further keys. A directory gets `key=value/` for each.
        num_workers: The number of processes. With several, the script must be importable: its own
            work is under `if __name__ == "__main__"`.
        progress: Called as `progress(num_files, num_files_total, num_rows)`.
        on_schema: Called with the columns before any file is converted.
        retry_s: As for `extract`.
        **options: For csv: `delimiter`, `names` (of the columns, if files have no header),
            `nulls` (texts that mean null besides the empty one) and `encoding`. For pairs:
            `delimiter`.

    Returns:
        A report, which has the `inputs` of a spec that reads the rows.

    Raises:
        InputError: A file cannot be read, more rows than allowed are malformed, or the output
            exists and holds something else.
        MissingDependencyError: `tfrecord` without its extra.
    """
    job = import_job(
        format,
        input_url,
        output_url,
        columns=columns,
        max_malformed=max_malformed,
        sample_rows=sample_rows,
        partition=partition,
        **options,
    )
    with retrying_for(retry_s):
        return run_import(job, num_workers=num_workers, progress=progress, on_schema=on_schema)


def _extract_group(group: GroupJob, spark: Any, progress: Progress) -> ExtractReport:
    if spark is None:
        return extract_group(group, progress=progress)
    return extract_group(
        group, runner=SparkRunner(spark), run_keyed=SparkRunner(spark).by_key, progress=progress
    )


def _check_extract(
    input_url: object,
    dataframe: object,
    days: str | None,
    group: str | None,
    key: str | None,
    is_only_with_days: bool,
) -> None:
    """InputError for arguments of `extract` that do not go together."""
    if (input_url is None) == (dataframe is None):
        raise InputError("expected either an input URL or a DataFrame to extract from")
    if days is None and is_only_with_days:
        raise InputError(
            "allow_missing and dry_run go with days: expected days=FIRST..LAST, found none"
        )
    if key is not None and group is None:
        raise InputError(
            "key: expected it with `group`, found it alone: leave it out, since the rows of a "
            "replaced partition are not matched"
        )
    if dataframe is not None and group is not None:
        raise InputError(
            "a slot group has the rows of the table's files in their order, and a DataFrame has no "
            "order: write the query to Parquet, and extract that with `key`"
        )
    if dataframe is not None and days is not None:
        raise InputError("days: expected an input URL with {dt}, found a DataFrame")


def relabel(
    spec: Spec | str | Path,
    input_url: str | Path,
    table_url: str | Path,
    *,
    key: str,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    no_partition: bool = False,
    spark: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    retry_s: float = 120.0,
) -> ExtractReport:
    """Rewrites labels and weight of partitions, from raw rows whose delayed labels are now known.

    The labels are written to a slot group beside the table's files, which stay as they are.

    Args:
        spec: The spec that defines labels and weight, or the URL of its YAML file.
        input_url: Raw Parquet: a file, a directory or a glob. Rows may come in any order and in any
            files, but must include every row of the partitions.
        table_url: The table.
        key: The kept column that identifies each row.
        partition: As for `extract`.
        partition_from_path: As for `extract`.
        no_partition: As for `extract`.
        spark: A Spark session that runs one task per partition. A partition's keys and labels must
            fit the memory of its task, or by default of this process.
        run_id: As for `extract`.
        progress: As for `extract`.
        retry_s: As for `extract`.

    Raises:
        SpecError, InputError, OperatorError, CommitConflictError: As for `extract`. The table stays
            as it was.
    """
    with retrying_for(retry_s):
        where = (partition, partition_from_path, no_partition)
        job = _job(spec, input_url, table_url, *where, run_id)
        labels = GroupJob(job=job, name=LABELS, key=key, labels=True)
        return _shown(_extract_group(labels, spark, progress))


def _shown(report: Report) -> Report:
    """Updates the Iceberg tables that show a table, after a commit. Returns the report of it."""
    note = (
        "The table itself is written; once this is mended, the next commit or `table register` "
        f"shows it: {report}"
    )
    with noted_on_failure(note):
        update_mirrors(report.table_url)
    return report


def compact(table_url: str | Path, *, field_ids: bool = False) -> CompactReport:
    """Merges a table's slot groups into its base files, in one commit. No row's content changes.

    Args:
        table_url: The table.
        field_ids: Also write data files of earlier versions again, whose columns have no permanent
            ids.

    Returns:
        A report of the files and bytes rewritten.

    Raises:
        CommitConflictError: Partitions or groups were written meanwhile. The table stays as it was.
    """
    return _shown(compact_table(str(table_url), field_ids=field_ids))


def delete_rows(table_url: str | Path, where: str, *, dry_run: bool = False) -> DeletionReport:
    """Removes rows from a table, in one commit: its data files, slot groups, statistics and texts.

    Earlier versions, and snapshots of Iceberg tables that show the table, hold the rows until a
    vacuum removes their files. Extracting the same raw rows
    into another spec, or raw rows that changed, brings back what the raw rows still hold.

    Args:
        table_url: The table.
        where: A SQL predicate over partition keys, slots, labels and kept columns, such as
            `"user in ('u1', 'u2')"`. Where it is null, a row stays.
        dry_run: Only count the rows.

    Returns:
        A report of the rows and files.

    Raises:
        TableNotFoundError: There is no Delta table.
        SelectionError: The predicate is invalid, or names an unknown column.
        CommitConflictError: Partitions or groups were written meanwhile. The table stays as it was.
    """
    report = delete_rows_of_table(str(table_url), where, dry_run=dry_run)
    return report if dry_run else _shown(report)


def restore(table_url: str | Path, version: int, *, dry_run: bool = False) -> RestoreReport:
    """Commits a new version of a table with the files, columns and slot groups of an earlier one.

    Readers and `follow` take it as any other version. Versions in between stay until a vacuum
    removes their files. The spec and its lock file are put back by whoever keeps them.

    Args:
        table_url: The table.
        version: The version to go back to.
        dry_run: Only look whether it is possible, and what would change.

    Returns:
        A report of the rows and files.

    Raises:
        TableNotFoundError: There is no Delta table, or not in this version.
        InputError: A vacuum removed files of the version. The table stays as it was.
        CommitConflictError: Another writer committed meanwhile, or a vacuum is at work. The table
            stays as it was.
    """
    report = restore_table(str(table_url), version, dry_run=dry_run)
    return report if dry_run else _shown(report)


def fit(
    spec_url: str | Path, input_url: str | Path, *, again: bool = False, spark: Any = None
) -> str:
    """Fits the operators that need data, and freezes their values in the lock file of the spec.

    Digests of vocabulary files that were never recorded are recorded too. The slots' entries in an
    existing lock are left as they are, so that `spec lint` can name the slots whose meaning
    changed.

    Args:
        spec_url: The spec's YAML file. The lock file is beside it.
        input_url: Raw Parquet to fit on: a file, a directory or a glob.
        again: Fit every node. By default nodes whose definition is unchanged keep their fit.
        spark: A Spark session whose tasks read the rows. By default threads of this process do.

    Returns:
        A line for each node fitted, and one for the lock file.

    Raises:
        SpecError, InputError, OperatorError: As for `extract`. The lock stays as it was.
    """
    url = lock_url(str(spec_url))
    spec, lock = load_spec(spec_url), load_lock(url)
    # The spec with what is kept: recorded vocabularies, and fits of the lock whose nodes are
    # unchanged.
    before = keep_fits(
        replace(spec, vocabularies={**record_vocabularies(spec).vocabularies, **spec.vocabularies}),
        lock,
    )
    fitted = fit_spec(
        before,
        str(input_url),
        fit_in_threads if spark is None else SparkRunner(spark).fit,
        again=again,
    )
    locked = make_lock(fitted)
    # The slots of an existing lock are kept: a fit must not silently accept their new meaning.
    write_lock(
        locked
        if lock is None
        else replace(lock, fitted=locked.fitted, vocabularies=locked.vocabularies),
        url,
    )
    lines = [
        f"{name}: {entry}"
        for name, entry in fitted.fitted.items()
        if again or entry != before.fitted.get(name)
    ]
    if not fitted.fitted and not fitted.vocabularies:
        lines = [f"{redact(str(spec_url))}: no operator of the spec is fitted on data"]
    return "\n".join([*lines, f"{redact(url)}: written"])
