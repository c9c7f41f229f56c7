"""What users call: extract into a table, fit a spec, label anew, compact."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from featstore.errors import InputError
from featstore.extraction.days import Days, DaysReport, extract_days
from featstore.extraction.fit import fit_in_threads, fit_spec
from featstore.extraction.groups.compaction import CompactReport
from featstore.extraction.groups.compaction import compact as compact_table
from featstore.extraction.groups.group_job import LABELS, GroupJob, extract_group
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files, new_run_id
from featstore.extraction.local import LocalRunner
from featstore.extraction.spark.runners import (
    SparkFitRunner,
    SparkKeyRunner,
    SparkRunner,
    extract_dataframe,
)
from featstore.extraction.unit import Progress, ignore_progress
from featstore.redaction import redact
from featstore.spec.lock import load_lock, lock_url, write_lock
from featstore.spec.meaning import keep_fits, make_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.vocabulary import record_vocabularies


@overload
def extract(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    days: None = None,
    spark: Any = None,
    dataframe: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    group: str | None = None,
    key: str | None = None,
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
) -> DaysReport: ...


def extract(
    spec: Spec | str | Path,
    input_url: str | Path | None,
    table_url: str | Path,
    *,
    partition: Mapping[str, str] | None = None,
    partition_from_path: Sequence[str] = (),
    days: str | None = None,
    allow_missing: bool = False,
    dry_run: bool = False,
    spark: Any = None,
    dataframe: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
    group: str | None = None,
    key: str | None = None,
) -> ExtractReport | DaysReport:
    """Extracts raw rows into the table, as one commit that replaces the partitions written; an
    equal run commits nothing.

    Input: Parquet files at `input_url` (file, directory or glob), or the rows of a Spark
    `dataframe`. Files are read in threads of this process, or by tasks of a `spark` session.
    `partition` holds for all of the input; the keys of `partition_from_path` come from its
    `key=value/` directories. `progress(num_files, num_files_total, num_rows)` is called as the work
    goes on. SpecError, InputError, OperatorError, CommitConflictError; on any of them the table
    stays as it was.

    `days` is `FIRST..LAST`: for each day, and with `{hour}` in `input_url` for each hour, the files
    that `input_url` names with `{dt}` filled in become the partition `dt` (and `hour`) in a commit
    of its own, unless the table holds just what spec and input would make. An error leaves the days
    before it committed. Days without input are an InputError before any work, or left out with
    `allow_missing`. With `dry_run` nothing is done but told.

    `group`: only the slots that the table's files lack, into the slot group of that name; no base
    file is read or written. Rows are those of the base because the raw files are the very ones that
    made it, or, with `key`, by a kept column: then a partition's keys and new columns are in memory
    at a time, in this process, or on Spark in the partition's one task.

    A spec whose slots are not what the lock beside it says of their numbers is refused.
    """
    _check_extract(
        input_url,
        dataframe,
        days=days,
        group=group,
        key=key,
        only_with_days=allow_missing or dry_run,
    )
    job = ExtractJob(
        spec=spec if isinstance(spec, Spec) else load_spec(spec),
        input_url="DataFrame" if input_url is None else str(input_url),
        table_url=str(table_url),
        partition=partition or {},
        partition_from_path=partition_from_path,
        run_id=run_id or new_run_id(),
    )
    if dataframe is not None:
        return extract_dataframe(job, dataframe, progress=progress)
    if group is not None:
        return _extract_group(GroupJob(job=job, name=group, key=key), spark, progress)
    runner = LocalRunner() if spark is None else SparkRunner(spark)
    if days is None:
        return extract_files(job, runner=runner, progress=progress)
    return extract_days(
        job,
        Days(days=days, allow_missing=allow_missing, dry_run=dry_run),
        runner=runner,
        progress=progress,
    )


def _extract_group(group: GroupJob, spark: Any, progress: Progress) -> ExtractReport:
    if spark is None:
        return extract_group(group, progress=progress)
    return extract_group(
        group, runner=SparkRunner(spark), run_keyed=SparkKeyRunner(spark), progress=progress
    )


def _check_extract(
    input_url: object,
    dataframe: object,
    *,
    days: str | None,
    group: str | None,
    key: str | None,
    only_with_days: bool,
) -> None:
    """InputError for arguments of `extract` that do not go together."""
    if (input_url is None) == (dataframe is None):
        raise InputError("expected either an input URL or a DataFrame to extract from")
    if days is None and only_with_days:
        raise InputError(
            "allow_missing and dry_run go with days: expected days=FIRST..LAST, found none"
        )
    if days is not None and group is not None:
        raise InputError(
            "days and group: expected one of them, found both; extract a slot group for each "
            "partition"
        )
    if key is not None and group is None:
        raise InputError(
            "key: expected it with `group`, found it alone: a partition that is replaced needs none"
        )
    if dataframe is not None and group is not None:
        raise InputError(
            "a slot group has the rows of the table's files in their order, and a DataFrame has no "
            "order: write the query to "
            "Parquet, and extract that with `key`"
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
    spark: Any = None,
    run_id: str | None = None,
    progress: Progress = ignore_progress,
) -> ExtractReport:
    """Writes the spec's labels and weight anew for partitions of the table, from raw rows whose
    labels have ripened.

    `key` is a kept column that names each row: the raw rows may come in any order and any files,
    but must hold all rows of the partitions. No file of the table is touched; other arguments and
    errors as for `extract`. With `spark` each partition is a task of its own, in whose memory the
    partition's keys and labels must fit.
    """
    job = ExtractJob(
        spec=spec if isinstance(spec, Spec) else load_spec(spec),
        input_url=str(input_url),
        table_url=str(table_url),
        partition=partition or {},
        partition_from_path=partition_from_path,
        run_id=run_id or new_run_id(),
    )
    return _extract_group(GroupJob(job=job, name=LABELS, key=key, labels=True), spark, progress)


def compact(table_url: str | Path) -> CompactReport:
    """Folds a table's slot groups into its base files, in one commit; content stays equal row for
    row.

    CommitConflictError where partitions or groups were written meanwhile: the table stays as it
    was.
    """
    return compact_table(str(table_url))


def fit(
    spec_url: str | Path, input_url: str | Path, *, again: bool = False, spark: Any = None
) -> str:
    """Fits the spec's nodes that need it on raw Parquet, and freezes what it finds in the lock
    beside the spec.

    Nodes whose fit is as they are now keep it, but with `again`. Vocabulary files that were never
    recorded are recorded too. What an existing lock says of slots is left as it is, so that `spec
    lint` tells which slots mean something else now. Rows are read in threads of this process, or by
    tasks of a `spark` session. Gives a line for each node fitted. SpecError, InputError,
    OperatorError; on any of them the lock stays as it was.
    """
    url = lock_url(str(spec_url))
    spec, lock = load_spec(spec_url), load_lock(url)
    before = keep_fits(
        replace(spec, vocabularies={**record_vocabularies(spec).vocabularies, **spec.vocabularies}),
        lock,
    )
    found = fit_spec(
        before,
        str(input_url),
        fit_in_threads if spark is None else SparkFitRunner(spark),
        again=again,
    )
    locked = make_lock(found)
    write_lock(
        locked
        if lock is None
        else replace(lock, fitted=locked.fitted, vocabularies=locked.vocabularies),
        url,
    )
    lines = [
        f"{name}: {entry}"
        for name, entry in found.fitted.items()
        if again or entry != before.fitted.get(name)
    ]
    if not found.fitted and not found.vocabularies:
        lines = [f"{redact(str(spec_url))}: no operator of the spec is fitted on data"]
    return "\n".join([*lines, f"{redact(url)}: written"])
