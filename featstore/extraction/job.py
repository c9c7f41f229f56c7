"""Extracts raw files into the data files of a table, as one commit.

A run has three phases. It begins by checking the input and the table. It then runs its units in
parallel; each writes one data file, or several of wide rows. It ends with one commit. Until that
commit no snapshot names any of its files, so a run that dies at any point leaves the table
unchanged.
"""

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from featstore.base.errors import (
    ChangedInputError,
    ConfigError,
    EmptyInputError,
    InputError,
    nearest,
)
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.extraction.event_logs import as_told, file_marks, with_events
from featstore.extraction.local import LocalRunner
from featstore.extraction.replaced import ReplacedPartition, replaced_partitions, texts_of
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import (
    MAX_REJECTS,
    Malformed,
    describe,
    first_examples,
    may_hold_rejects,
    write_rejects,
)
from featstore.extraction.units.part import is_made_by
from featstore.extraction.units.raw import (
    LogFile,
    RawFile,
    check_partition_given,
    find_raw_files,
    input_digest,
    plan_units,
)
from featstore.extraction.units.unit import (
    Progress,
    Runner,
    UnitReport,
    UnitTask,
    bind,
    ignore_progress,
)
from featstore.extraction.units.unit_statistics import merge_partition
from featstore.extraction.units.unit_values import merge_partition_values
from featstore.files.listings import list_own
from featstore.files.looks import is_directory_at
from featstore.files.storage import join, lies_within, local_path
from featstore.files.walking import MAGIC
from featstore.histories.stored import with_ranges
from featstore.spec.graph import build_graph
from featstore.spec.lint import check_lock, check_meanings
from featstore.spec.meaning import short_meanings
from featstore.spec.model import EventHistory, Spec
from featstore.spec.value_names import kept_values
from featstore.statistics.column_statistics import add_counts
from featstore.statistics.data_checks import CheckResult, check_before_commit
from featstore.table import delta
from featstore.table.evolution import check_case, check_foreign, merge_schemas
from featstore.table.groups import GroupOrigins
from featstore.table.layout import (
    check_partition_value,
    is_data_file,
    new_tag,
    overwrite_filters,
)
from featstore.table.metadata import CommitMetadata, to_json
from featstore.table.open import OpenedTables, open_for_writing
from featstore.table.running import Mark, WrittenFiles, check_not_removed, marked
from featstore.table.snapshot import DataFile, Snapshot, by_partition, files_digest

CommitFunction = Callable[[str, delta.Change], int]
_LOG = logging.getLogger(__name__)
_REJECTS_OF_PARTITION = 100  # of a DataFrame's, whose number is not known


def new_run_id() -> str:
    """Returns a new run id, unique to one run."""
    return uuid.uuid4().hex


@dataclass(frozen=True, kw_only=True)
class ExtractJob:
    """The input, target table and identity of an extraction.

    Creating a job checks the spec against the lock file beside it, so that no entry point can write
    to a table without that check.

    Attributes:
        spec: The features to extract.
        input_url: A file of raw rows, a directory or a glob.
        table_url: The table to write to; created if it does not exist.
        partition: Partition keys and values that hold for every file of the input. The run replaces
            all partitions that it writes.
        partition_from_path: Further partition keys, taken from the `key=value/` directories of each
            file's path.
        no_partition: The table has no partitions. Without it, an input in `key=value/` directories
            needs a partition.
        run_id: Identifies the run. A repeated id is recognised as the same run.
        events: By history of the spec, its log of events: raw input, as of `input_url`.
        rejects: The file to write, with rows that have malformed values; None for none.

    Raises:
        InputError: The partition is not valid, or a key is given twice.
        SpecError: The spec is not valid, or its slots differ from those in its lock file.
    """

    spec: Spec
    input_url: str = field(repr=False)
    table_url: str = field(repr=False)
    partition: Mapping[str, str] = field(default_factory=dict)
    partition_from_path: Sequence[str] = ()
    no_partition: bool = False
    run_id: str = field(default_factory=new_run_id)
    events: Mapping[str, str] = field(default_factory=dict, repr=False)
    rejects: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_lock(self.spec)
        if isinstance(self.partition_from_path, str):
            raise InputError(
                f"partition_from_path: expected a list of keys, found the text "
                f"{self.partition_from_path!r}"
            )
        if self.no_partition and (self.partition or self.partition_from_path):
            found = [*self.partition, *self.partition_from_path]
            raise InputError(
                f"no_partition: expected no partition besides, found the keys {found}; remove one "
                f"of them"
            )
        for key, value in self.partition.items():
            check_partition_value(key, value, "partition")
        for key in self.partition_from_path:
            if key in self.partition:
                raise InputError(
                    f"partition key {key!r} is given as {self.partition[key]!r} and also in "
                    f"partition_from_path; remove one of them"
                )


@dataclass(frozen=True, kw_only=True)
class ExtractReport:
    """The result of a run.

    Attributes:
        version: The version of the table that holds the result.
        committed: False if the table already held the result of an equal run, at `version`.
        num_rows: Rows written; skipped rows are not included.
        input_bytes: Size of the raw files; None for DataFrame input.
        seconds: Wall-clock time of the whole run.
        counts: Number of dropped or replaced values by `<slot or column>: <kind>`, such as NaN.
        examples: The first malformed values of each column, from this run only.
        warnings: The checks of severity `warn` that did not pass.
        stale_groups: The slot groups that belonged to files which this run replaced, with their
            slots that the new files lack.
        replaced: What each partition held that this run replaced, and what it holds now.
    """

    table_url: str = field(repr=False)
    run_id: str
    version: int
    committed: bool
    partitions: tuple[Mapping[str, str], ...]
    num_files: int
    num_rows: int
    size_bytes: int
    input_bytes: int | None
    seconds: float
    counts: Mapping[str, int]
    num_rows_skipped: int = 0
    examples: tuple[Malformed, ...] = ()
    warnings: tuple[CheckResult, ...] = ()
    stale_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: tuple[ReplacedPartition, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            **{key: value for key, value in vars(self).items() if key != "table_url"},
            "table": redact(self.table_url),
            "examples": list(map(str, self.examples)),
            "partitions": list(map(dict, self.partitions)),
            "warnings": [warning.as_dict() for warning in self.warnings],
            "replaced": list(map(asdict, self.replaced)),
        }

    def __str__(self) -> str:
        done = (
            "committed" if self.committed else "nothing to do: an equal run was committed before as"
        )
        text = (
            f"{done} version {self.version} of {redact(self.table_url)}: {self.num_rows:,} rows in "
            f"{self.num_files:,} files, "
            f"{self.size_bytes:,} bytes, {self.seconds:.1f} s (run {self.run_id})"
        )
        warned = [f"warning: {warning}" for warning in self.warnings]
        warned += [
            f"warning: slot group {name!r} is stale in these partitions, where {', '.join(slots)} "
            f"cannot be read until it is extracted again (--group {name}), with a spec that has "
            "them"
            for name, slots in self.stale_groups.items()
        ]
        found = describe(self.counts, self.examples, self.num_rows_skipped)
        if not self.committed:
            text += (
                "; equal is the same spec apart from `output`, and the same input: to cut files "
                "anew, extract into a new table"
            )
        return "\n".join([text, *texts_of(self.replaced), *warned, *found])


@dataclass(frozen=True, kw_only=True)
class ExtractionRun:
    """A run that has begun, but not yet written.

    Attributes:
        base: The snapshot that the run found, None for a new table.
        partitions: The partitions that the run will replace.
        input_digest: Digest of the raw files, None for DataFrame input.
        started_s: Start time on the monotonic clock.
        num_raw_files: The raw files of each of `partitions`; empty if unknown.
        replaced: The data files of the base that the run will replace. Those of a slot group count
            as none: they have the rows of the table's.
        logs: By history, the files of its log, as of `file_marks`; empty if unknown.
        rejects: As of `ExtractJob`.
    """

    task: UnitTask
    schema: SlotSchema
    base: Snapshot | None
    partitions: tuple[Mapping[str, str], ...]
    input_digest: str | None
    started_s: float
    num_raw_files: tuple[int, ...] = ()
    replaced: tuple[DataFile, ...] = ()
    logs: Mapping[str, Mapping[bytes, LogFile]] = field(default_factory=dict)
    rejects: str | None = None

    @property
    def written(self) -> WrittenFiles:
        """The files that it writes before its commit."""
        return WrittenFiles(
            table_url=self.task.table_url, tag=self.task.tag, partitions=self.partitions
        )


def extract_files(
    job: ExtractJob,
    *,
    runner: Runner | None = None,
    progress: Progress = ignore_progress,
    commit: CommitFunction = delta.commit,
    opened: OpenedTables | None = None,
) -> ExtractReport:
    """Extracts raw files into the table as one commit.

    If an equal run was committed before, nothing is written and its report is returned. An error or
    an interrupt leaves the table at the version it had.

    Args:
        runner: Runs the units; by default they run in threads of this process.
        progress: Called as units write rows and finish files.
        commit: Makes the commit; a parameter so that tests can inject faults.
        opened: As of `open_input`.

    Raises:
        ConfigError: The job lacks the events of a history, or has others.
        InputError: The raw files do not fit the spec, the partition or the table.
        OperatorError: An operator failed; names the slot and the raw row.
        CheckFailedError: A check of the spec failed.
        CommitConflictError: Another writer changed the table in the meantime.
    """
    started_s = time.monotonic()
    check_events(job)
    check_apart(job.input_url, job.table_url)
    base = open_for_writing(job.table_url, "extract")
    files = raw_files_of(job, base, with_text=runs_here(runner), opened=opened)
    check_raw_schemas(job.spec, files)
    # A partition without any row is left as it is. Of one with rows, files without any count too.
    listed, with_rows = by_partition(files), by_partition(f for f in files if any(f.row_groups))
    partitions = tuple(found[0].partition for found in with_rows.values())
    digest = digest_of(files, [*Extractor(job.spec).input_columns, *job.partition_from_path])
    num_raw_files = tuple(len(listed[key]) for key in with_rows)
    logs = event_files(job, with_text=runs_here(runner), opened=opened)
    marks = marks_of(job.spec, logs)
    digest = with_events(digest, marks)
    run = begin_run(job, base, partitions, digest, started_s, num_raw_files)
    input_bytes = sum(file.listed.size_bytes for file in itertools.chain(files, *logs.values()))
    earlier = earlier_report(run, input_bytes)
    if earlier is not None:
        return earlier
    most = job.spec.output.rows_per_file
    units = plan_units(files, most)
    events = {name: plan_units(of_log, most) for name, of_log in logs.items()}
    max_rejects = 0 if job.rejects is None else -(-MAX_REJECTS // max(len(units), 1))
    task = replace(run.task, events=events, max_rejects=max_rejects)
    run = replace(run, task=task, logs=marks)
    return write_and_commit(
        run, lambda: (runner or LocalRunner())(run.task, units, progress), commit, input_bytes
    )


def check_events(job: ExtractJob, others: Iterable[str] = ()) -> None:
    """Raises ConfigError unless there are events of each history and of no others, either named by
    the job or among `others`; or if the histories have several keys.
    """
    require_logs(job.spec.histories, [*job.events, *others], "the spec has no histories")
    for history in job.spec.histories:
        if history.key != job.spec.cluster_by:
            raise ConfigError(
                f"{history.where}.key: expected {job.spec.cluster_by!r}, the key of the first "
                f"history, by which rows are put side by side, found {history.key!r}; extract it "
                f"into a slot group, or into a table of its own"
            )


def require_logs(histories: Iterable[EventHistory], found: Sequence[str], none: str) -> None:
    """Raises ConfigError unless there are logs of events of each history and of no others.

    Args:
        histories: The histories that are extracted.
        found: The histories whose logs are there.
        none: Why there is none, for the error.
    """
    names = [history.name for history in histories]
    known = f"those of {', '.join(names)}" if names else f"none, as {none}"
    for name in found:
        if name not in names:
            hint = nearest(name, names) or "; leave it out"
            raise ConfigError(f"events: expected {known}, found {name!r}{hint}")
    for name in names:
        if name not in found:
            raise ConfigError(
                f"events: expected the log of the history {name!r}, found none: give --events "
                f"{name}=URL (events={{{name!r}: URL}}), where its raw events are"
            )


def event_files(
    job: ExtractJob, *, with_text: bool, opened: OpenedTables | None = None
) -> dict[str, list[RawFile]]:
    """The files of the logs that the job names, by history, which they fit. Arguments and errors as
    of `raw_files_of`.
    """
    logs = dict[str, list[RawFile]]()
    for history in job.spec.histories:
        if history.name in job.events:
            url, declared = job.events[history.name], history.events.raw_types
            check_apart(url, job.table_url)
            logs[history.name] = find_raw_files(
                url, {}, (), declared if with_text else None, opened
            )
            check_raw_schemas(history.events, logs[history.name])
    return logs


def marks_of(spec: Spec, logs: Mapping[str, Sequence[RawFile]]) -> dict[str, dict[bytes, LogFile]]:
    """By history, the files of its log, as of `file_marks`."""
    return {
        history.name: file_marks(history, [(f.listed, f.of_table) for f in logs[history.name]])
        for history in spec.histories
    }


def digest_of(files: Iterable[RawFile], columns: Iterable[str]) -> str:
    """The `input_digest` of raw files of which these columns are read."""
    return input_digest(((file.listed, file.of_table) for file in files), columns)


def runs_here(runner: Runner | None) -> bool:
    """Whether units run in this process, which alone reads raw files of text."""
    return runner is None or isinstance(runner, LocalRunner)


def raw_files_of(
    job: ExtractJob,
    base: Snapshot | None,
    *,
    with_text: bool,
    opened: OpenedTables | None = None,
) -> list[RawFile]:
    """The raw files of a job's input, with their partitions in the order of the table's keys.

    Args:
        with_text: Whether CSV and JSON lines are read.
        opened: As of `open_input`.

    Raises:
        InputError: The files cannot be read, or lie in directories of partitions and the job says
            nothing about partitions.
    """
    declared = job.spec.raw_types if with_text else None
    raw_files = find_raw_files(
        job.input_url, job.partition, job.partition_from_path, declared, opened
    )
    if not (job.partition or job.partition_from_path or job.no_partition):
        check_partition_given(raw_files)
    return [replace(file, partition=in_key_order(file.partition, base)) for file in raw_files]


def in_key_order(partition: Mapping[str, str], base: Snapshot | None) -> dict[str, str]:
    """Returns the partition with its keys in the order of the table's.

    The key order determines the directory of a partition, so every writer must use the same one.
    For a new table the given order is kept. It is also kept if the keys are not those of the table;
    `begin_run` rejects them.
    """
    keys = [key.name for key in base.schema.partition_keys] if base is not None else []
    return {key: partition[key] for key in keys} if set(keys) == set(partition) else dict(partition)


def begin_run(
    job: ExtractJob,
    base: Snapshot | None,
    partitions: tuple[Mapping[str, str], ...],
    digest: str | None,
    started_s: float,
    num_raw_files: tuple[int, ...] = (),
) -> ExtractionRun:
    """Checks that the run's files may join the table, before any work is done.

    Args:
        base: The table's snapshot, None for a new table.
        partitions: The partitions to replace, with keys in the table's order.
        digest: Digest of the raw input, None if the input has no files.
        started_s: Start time of the run on the monotonic clock.
        num_raw_files: The raw files of each partition; empty if unknown.

    Raises:
        InputError: The schema or partitions do not fit the table, or the input has no rows.
    """
    if not partitions:
        raise EmptyInputError(f"{redact(job.input_url)} holds no rows; the table is left as it is")
    if base is not None:
        check_meanings(job.spec, base.meanings, redact(job.table_url))
    keys = tuple(pa.field(key, pa.string()) for key in partitions[0])
    rows = replace(Extractor(job.spec).schema, partition_keys=keys)
    schema = with_ranges(rows, job.spec)
    _check_target(job.table_url, schema, base, partitions)
    _check_rejects(job)
    task = UnitTask(
        spec=job.spec,
        table_url=job.table_url,
        run_id=job.run_id,
        tag=new_tag(job.run_id),
        max_rejects=0 if job.rejects is None else _REJECTS_OF_PARTITION,
    )
    return ExtractionRun(
        task=task,
        schema=schema,
        base=base,
        partitions=partitions,
        input_digest=digest,
        started_s=started_s,
        num_raw_files=num_raw_files,
        replaced=() if base is None else tuple(base.in_partitions(partitions)),
        rejects=job.rejects,
    )


def _check_rejects(job: ExtractJob) -> None:
    """Raises InputError if the file of rejected rows would be taken for rows, or cannot be one."""
    if job.rejects is None:
        return
    for url in (job.table_url, job.input_url, *job.events.values()):
        # What a glob may find is below the part before its first wildcard.
        glob = MAGIC.search(url)
        base_url = url if glob is None else url[: glob.start()].rpartition("/")[0] or "."
        if lies_within(job.rejects, base_url):
            raise InputError(
                f"rejects: expected a file outside of {redact(base_url)}, found "
                f"{redact(job.rejects)}"
            )
    path = local_path(job.rejects)
    if path is not None and is_directory_at(path):
        raise InputError(f"rejects: expected a file, found the directory {path}")
    if not may_hold_rejects(job.rejects):
        raise InputError(
            f"rejects: expected no file, or one of rejected rows, found another: "
            f"{redact(job.rejects)}"
        )


def write_and_commit(
    run: ExtractionRun,
    write: Callable[[], Sequence[UnitReport]],
    commit: CommitFunction,
    input_bytes: int | None,
) -> ExtractReport:
    """Has the units write, and commits their files as one version.

    If the commit fails, files are removed only if it is certain that no commit names them. If the
    reply to a commit was lost, the commit may still land, so its files are kept; the run's mark
    protects them from a vacuum until it expires.

    Args:
        write: Runs the units and returns their reports.

    Raises:
        InputError: All rows were skipped, or there were none.
        CheckFailedError: A check of the spec failed. Nothing is committed.
        CommitConflictError: The mark or one of the files no longer exists. Nothing is committed.
    """
    url = run.task.table_url
    # The mark tells a concurrent vacuum that files of this tag are not orphans.
    with marked(url, run.task.tag) as mark:
        # Whatever fails in this block fails before the commit, so no snapshot names the files.
        with run.written.removed_on_failure():
            reports = write()
            if run.rejects is not None:
                # Before the commit, which there is none of if all rows were skipped.
                write_rejects(run.rejects, (of for report in reports if (of := report.rejects)))
            files = sorted(
                (
                    DataFile(
                        path=report.path,
                        url=join(url, report.path),
                        size_bytes=report.size_bytes,
                        num_rows=report.num_rows,
                        partition=report.partition,
                        crc32=report.crc32,
                    )
                    for report in reports
                    if report.num_rows
                ),
                key=lambda file: file.path,
            )
            metadata = _metadata(run, reports, tuple(files), mark)
            change = delta.Change(
                base=run.base,
                schema=run.schema,
                partitions=run.partitions,
                files=tuple(files),
                metadata=metadata,
            )
            # The last look, as late as can be: statistics and checks of many files take minutes.
            check_not_removed(mark, url, files)
            commits = delta.history(url) if run.replaced else ()
            replaced = replaced_partitions(run.replaced, commits, files, metadata)
        again = (
            "Run it again with this run id: that commits the files, or reports the version that "
            "holds them."
        )
        with run.written.kept_if_committed(mark, f"run {run.task.run_id!r}", len(files), again):
            version = commit(url, change)
    for partition in replaced:
        level = logging.WARNING if partition.loses_rows else logging.INFO
        _LOG.log(level, "%s, version %d: %s", redact(url), version, partition)
    report = _report(run, version, metadata, committed=True, input_bytes=input_bytes)
    for warning in report.warnings:
        _LOG.warning("%s, version %d, a check warns: %s", redact(url), version, warning)
    return replace(
        report,
        examples=first_examples(example for report in reports for example in report.examples),
        stale_groups=_stale_groups(run),
        replaced=replaced,
    )


def _metadata(
    run: ExtractionRun, reports: Sequence[UnitReport], files: tuple[DataFile, ...], mark: Mark
) -> CommitMetadata:
    """What the commit tells of the run, whose statistics are stored and whose checks are run."""
    spec, num_rows_skipped = run.task.spec, sum(report.num_rows_skipped for report in reports)
    if not files:
        raise _no_rows_error(run, reports, num_rows_skipped)
    warnings = _prepare(run, reports, files, mark)
    return CommitMetadata(
        run_id=run.task.run_id,
        spec_hash=spec.hash,
        spec_version=spec.version,
        input_digest=run.input_digest,
        data_digest=files_digest(files),
        partitions=run.partitions,
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        counts=add_counts(report.counts for report in reports),
        num_rows_skipped=num_rows_skipped,
        num_raw_files=run.num_raw_files,
        checks=tuple(check.as_entry() for check in spec.checks),
        warnings=tuple(warning.as_dict() for warning in warnings),
        events=as_told(run.logs, reports),
        meanings=short_meanings(spec),
    )


def _prepare(
    run: ExtractionRun, reports: Sequence[UnitReport], files: Sequence[DataFile], mark: Mark
) -> tuple[CheckResult, ...]:
    """Stores the statistics, and runs the checks; returns those that warn."""
    url = run.task.table_url
    if any(report.has_statistics or report.has_values for report in reports):
        try:
            _merge_statistics(run, reports, files)
        except FileNotFoundError:
            # Whatever removed the statistics probably removed data files too. If it did, this
            # raises the clearer CommitConflictError.
            check_not_removed(mark, url, files)
            raise
    if not run.task.spec.output.statistics:
        return ()
    return check_before_commit(run.task.spec, run.schema, url, files, run.partitions, run.base)


def _stale_groups(run: ExtractionRun) -> dict[str, tuple[str, ...]]:
    """Of the slot groups of what the run replaces, the slots that its own files lack."""
    replaced = {bound.group for file in run.replaced for bound in file.groups}
    own = {slot.name for slot in run.schema.slots}
    lacking = {
        group.name: tuple(slot.name for slot in group.schema.slots if slot.name not in own)
        for group in (run.base.groups if run.base is not None else ())
        if group.name in replaced
    }
    return {name: slots for name, slots in lacking.items() if slots}


def _no_rows_error(
    run: ExtractionRun, reports: Sequence[UnitReport], num_rows_skipped: int
) -> InputError:
    spec = run.task.spec
    if not num_rows_skipped and run.input_digest is None:
        return EmptyInputError("the input holds no rows; the table is left as it is")
    if not num_rows_skipped:
        return ChangedInputError(
            "the raw files hold rows, and none of them arrived; the table is left as it is: run it "
            "again"
        )
    skipping = {name for name, on_error in spec.on_error.items() if on_error == "skip"} | {
        s.name for s in spec.sequences
    }
    # There is one: only malformed values of these columns and sequences skip a row.
    example_text = next(
        f"{example.column}: {example.what} {example}"
        for example in first_examples(one for report in reports for one in report.examples)
        if example.column in skipping
    )
    return InputError(
        f"all {num_rows_skipped:,} rows are skipped as malformed ({example_text}); the table is "
        f"left as it is"
    )


def _merge_statistics(
    run: ExtractionRun, reports: Sequence[UnitReport], files: Sequence[DataFile]
) -> None:
    spec, table_url, tag = run.task.spec, run.task.table_url, run.task.tag
    kept = kept_values(spec, build_graph(spec))
    unlimited = [name for name, values in kept.items() if values == "top"]
    reported = by_partition(reports)
    # One partition at a time, and of it one file at a time: so the driver's memory holds what is
    # merged of a single partition, whatever the number of units.
    for key, of_partition in by_partition(files).items():
        own = reported[key]
        paths = sorted(report.path for report in own if report.has_statistics)
        if paths:
            counts = (report.counts for report in own)
            merge_partition(table_url, tag, of_partition, counts, paths)
        with_values = sorted(report.path for report in own if report.has_values)
        if with_values:
            merge_partition_values(table_url, tag, of_partition, with_values, unlimited)


def check_raw_schemas(spec: Spec, files: Sequence[RawFile]) -> None:
    """Checks that the columns of every file fit the spec, once per distinct schema.

    Raises:
        InputError: A column is missing or has the wrong type; names the first such file.
    """
    extractor = Extractor(spec)
    checked: list[pa.Schema] = []
    for file in files:
        if file.schema not in checked:
            bind(file.listed.url, extractor, file.schema)
            checked.append(file.schema)


def check_apart(input_url: str, table_url: str) -> None:
    """Raises InputError if the table lies within the input.

    Its data files would otherwise become raw input of the next run.
    """
    if lies_within(table_url, input_url):
        raise InputError(
            f"the table {redact(table_url)} lies within the input {redact(input_url)}; use "
            f"separate directories"
        )


def _check_target(
    url: str, schema: SlotSchema, base: Snapshot | None, partitions: Sequence[Mapping[str, str]]
) -> None:
    taken = set(schema.column_names)
    for key in schema.partition_keys:
        if key.name in taken:
            raise InputError(
                f"partition key {key.name!r} is also the name of a column that the spec stores; "
                f"rename one"
            )
    if base is not None:
        stored = delta.as_stored(schema)
        check_foreign(base.schema, stored, redact(url))
        merge_schemas(base.schema, stored, redact(url))
        overwrite_filters(partitions, base.partitions)
        return
    check_case(schema, redact(url))
    # With the log of a new table the directory is a Delta table, and files of others are not seen.
    own = list_own(url, ".parquet", hidden=False)
    foreign = [file.name for file in own if not is_data_file(file.name)]
    if foreign:
        raise InputError(
            f"{redact(url)} is not a table but holds Parquet files ({foreign[0]}, ...); choose an "
            f"empty directory"
        )


def earlier_report(run: ExtractionRun, input_bytes: int | None) -> ExtractReport | None:
    """Returns the report of this run, or of an equal one, if it was committed before.

    A run is equal if it has the same spec and input, and the partitions still hold its files.
    """
    if run.base is None:
        return None
    # The run id first: it also finds a run of a DataFrame, whose input has no digest.
    earlier = _commit_of_run(run) or commit_of_input(run, run.base)
    return report_of_commit(run, earlier, input_bytes)


def report_of_commit(
    run: ExtractionRun, commit: delta.Commit | None, input_bytes: int | None
) -> ExtractReport | None:
    """Returns the report of a run whose rows a commit holds; None if there is no such commit."""
    if commit is None or commit.metadata is None:
        return None
    return _report(run, commit.version, commit.metadata, committed=False, input_bytes=input_bytes)


def _commit_of_run(run: ExtractionRun) -> delta.Commit | None:
    own = delta.commit_of_run(run.task.table_url, run.task.run_id)
    if own is None or own.metadata is None:
        return None
    same = (own.metadata.spec_hash, own.metadata.input_digest) == (
        run.task.spec.hash,
        run.input_digest,
    )
    found, asked = (set(map(to_json, of.partitions)) for of in (own.metadata, run))
    if not same or found != asked:
        where = f"version {own.version} of {redact(run.task.table_url)}"
        raise InputError(
            f"run id {run.task.run_id!r} is already used by {where}, with another spec, input or "
            f"partition; choose a new id"
        )
    return own


def commit_of_input(run: ExtractionRun, base: Snapshot) -> delta.Commit | None:
    """Returns the commit of `base` that holds this run's rows, None if there is none. Slots may be
    in groups beside them, or folded into them.
    """
    if run.input_digest is None:
        return None
    groups = GroupOrigins(base).of(run.partitions)
    commits = delta.commits_of_input(base, run.partitions, run.input_digest)
    return next(
        (
            commit
            for commit, made in commits
            if is_made_by(run.task.spec, made.spec_hash, (*made.folded, *groups))
        ),
        None,
    )


def _report(
    run: ExtractionRun,
    version: int,
    metadata: CommitMetadata,
    *,
    committed: bool,
    input_bytes: int | None,
) -> ExtractReport:
    return ExtractReport(
        table_url=run.task.table_url,
        run_id=metadata.run_id,
        version=version,
        committed=committed,
        partitions=metadata.partitions,
        num_files=metadata.num_files,
        num_rows=metadata.num_rows,
        size_bytes=metadata.size_bytes,
        input_bytes=input_bytes,
        seconds=time.monotonic() - run.started_s,
        counts=metadata.counts,
        num_rows_skipped=metadata.num_rows_skipped,
        warnings=tuple(map(CheckResult.from_dict, metadata.warnings)),
    )
