"""Imports files: lists them, infers their columns from the first rows, converts each, and publishes
all at once.
"""

import functools
import multiprocessing
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, WorkerError, all_nearest, require_integer
from featstore.base.redaction import redact
from featstore.files.lineage import LineageDataset, LineageRun
from featstore.files.listings import FileEntry, list_files, listing_digest
from featstore.files.retry import current_policy, retry_in_process
from featstore.files.storage import join, local_path
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.formats.parsed import given, unmarked
from featstore.ingest.conversion import ConvertedFile, OnRows, convert, too_many
from featstore.ingest.import_job import ImportJob, ImportReport, ImportSchema
from featstore.ingest.import_target import ImportTarget, TableTarget, digest_of
from featstore.ingest.table_output import RawTable, table_url
from featstore.table.iceberg import is_iceberg
from featstore.table.layout import parse_partition, partition_path

SAMPLE_FILES = 8
Progress = Callable[[int, int, int], None]
"""Called with (files done, files in total, rows done), from the thread that imports."""
OnSchema = Callable[[ImportSchema], None]


def find_columns(job: ImportJob) -> ImportSchema:
    """The columns that an import would write.

    Raises:
        InputError: There are no files, or no rows; or a type is given for an unknown column.
    """
    return ImportSchema.of(infer_schema(job, _list(job)))


def run_import(
    job: ImportJob,
    *,
    num_workers: int = 1,
    progress: Progress = lambda num_files, num_files_total, num_rows: None,
    on_schema: OnSchema = lambda schema: None,
) -> ImportReport:
    """Imports files; see `featstore.api.import_raw`.

    Args:
        on_schema: Called with the columns before any file is converted.
    """
    read, output = LineageDataset.of(job.input_url), LineageDataset.of(job.output_url)
    with LineageRun("featstore.import", [read], [output]) as run:
        report = _run_import(job, num_workers, progress, on_schema)
        new = report.imported  # else an equal run wrote the rows
        written = replace(
            output,
            version=LineageDataset.of(report.output_url).version,
            num_rows=report.num_rows if new else 0,
            num_files=report.num_files if new else 0,
            size_bytes=report.size_bytes if new else 0,
        )
        run.note(report.as_dict(), outputs=[written])
    return report


def _run_import(
    job: ImportJob, num_workers: int, progress: Progress, on_schema: OnSchema
) -> ImportReport:
    started_s = time.monotonic()
    require_integer("num_workers", num_workers)
    files = _list(job)
    schema = infer_schema(job, files)
    on_schema(ImportSchema.of(schema))
    target = _target(job, files, schema)
    totals = target.earlier()
    imported = totals is None
    if totals is None:
        paths = map(target.path, part_names(files))
        with target.writing():
            run = _Run(job, schema, target, dict(zip(paths, files, strict=True)), progress)
            run.convert_all(num_workers)
            totals = run.totals()
            target.publish(totals)
    return ImportReport(
        output_url=target.address,
        schema=ImportSchema.of(schema),
        imported=imported,
        input_bytes=sum(file.size_bytes for file in files),
        seconds=time.monotonic() - started_s,
        **dict(totals) | {"examples": tuple(totals.get("examples", ()))},
    )


def _target(
    job: ImportJob, files: Sequence[FileEntry], schema: pa.Schema
) -> ImportTarget | TableTarget:
    identity = job.identity(input_digest := listing_digest(files), schema)
    if (url := table_url(job.output_url)) is None:
        directory = join(job.output_url, partition_path(job.partition))
        return ImportTarget(Path(str(local_path(directory))), identity)
    keys = [list(parse_partition(file.name)) for file in files]
    for file, found in zip(files, keys, strict=True):
        if found != keys[0]:
            raise InputError(
                f"{redact(file.url)}: expected a directory for each of the partition keys "
                f"{', '.join(keys[0]) or '(none)'}, as of {redact(files[0].url)}, found "
                f"{', '.join(found) or 'none'}; a table has the same keys for all of its files"
            )
    table = RawTable(url, "the import", partition=job.partition, from_path=keys[0])
    return TableTarget(table, unmarked(schema), digest_of(identity), input_digest)


def infer_schema(job: ImportJob, files: Sequence[FileEntry]) -> pa.Schema:
    """The schema of all of the files, in which types that are not given are marked as inferred.

    Args:
        files: The input, at least one file. At most `SAMPLE_FILES`, spread over it, are looked at.

    Raises:
        InputError: There is no row, a file cannot be read, or a type is given for a column that the
            rows do not have or whose format cannot hold it.
    """
    sampled = spread(files, SAMPLE_FILES)
    rows = [row for file in sampled for row in _sample(job, file)]
    if not rows:
        bad = next((bad for file in sampled for bad in _bad_rows(job, file)), "")
        raise InputError(
            f"{redact(job.input_url)}: expected rows of {job.format.name} to infer columns from, "
            f"found none in {len(sampled)} of {len(files):,} files{bad}; is it another format?"
        )
    schema = with_types(job.format.infer(rows), job.columns)
    job.format.check(schema)
    return schema


def with_types(schema: pa.Schema, columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with these types. Pure.

    Raises:
        InputError: A column is not in the schema.
    """
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise InputError(
            f"expected types of columns that the files have, found one for "
            f"{all_nearest(unknown, schema.names)}; they have {', '.join(schema.names)}"
        )
    return pa.schema([given(of, columns[of.name]) if of.name in columns else of for of in schema])


def spread(files: Sequence[FileEntry], most: int) -> list[FileEntry]:
    """At most `most` of the files, spread from the first to the last. Pure."""
    if len(files) <= most:
        return list(files)
    return [files[i * (len(files) - 1) // (most - 1)] for i in range(most)]


def _sample(job: ImportJob, file: FileEntry) -> list[object]:
    of = job.format
    with errors_of(file.url), open_bytes(file.url, file.size_bytes, of.is_plain) as source:
        return of.sample(source, job.sample_rows)


def _bad_rows(job: ImportJob, file: FileEntry) -> Iterator[str]:
    """The first rows that cannot be read, each with its file, for an error."""
    of = job.format
    with errors_of(file.url), open_bytes(file.url, file.size_bytes, of.is_plain) as source:
        for parsed in of.read(source, pa.schema([])):
            yield from (f", such as {redact(file.url)}, {bad}" for bad in parsed.examples)


def part_names(files: Sequence[FileEntry]) -> list[str]:
    """The name of each file's Parquet file, in the same `key=value/` directories. Pure."""
    return [
        posixpath.join(posixpath.dirname(file.name), f"part-{index:05}.parquet")
        for index, file in enumerate(files)
    ]


def _list(job: ImportJob) -> list[FileEntry]:
    if is_iceberg(job.input_url):
        raise InputError(
            f"{redact(job.input_url)}: expected files of {job.format.name}, found an Iceberg "
            f"table, which needs no import: extraction (--input) and joins (from=) read it"
        )
    files = list_files(job.input_url, suffix="")
    if not files:
        raise InputError(
            f"no files at {redact(job.input_url)}: expected a file, a directory or a glob"
        )
    for file in files:
        parse_partition(file.name)  # raises: what is written could not be read
    return files


class _Run:
    """Converts the files of one import that are not finished, and adds up all. Not thread-safe."""

    def __init__(
        self,
        job: ImportJob,
        schema: pa.Schema,
        target: ImportTarget | TableTarget,
        sources: Mapping[str, FileEntry],
        progress: Progress,
    ) -> None:
        self._convert = functools.partial(convert, job, schema)
        self._max_malformed = job.max_malformed
        # By the path of its Parquet file.
        self._target, self._sources, self._progress = target, sources, progress
        self._done: dict[str, ConvertedFile] = {}

    def convert_all(self, num_workers: int) -> None:
        """Converts in processes, or in this one if it is the only one.

        Raises:
            InputError: More rows than allowed are malformed, or a file cannot be read.
            WorkerError: A process died.
        """
        for path in self._sources:
            if (done := self._target.finished(path)) is not None:
                self._add(path, done)
        unfinished = [item for item in self._sources.items() if item[0] not in self._done]
        if num_workers == 1 or len(unfinished) < 2:
            for path, source in unfinished:
                self._finish(path, self._convert(source, path, self._on_rows()))
            return
        # Spawned, since threads of Arrow and of stores do not survive a fork.
        context = multiprocessing.get_context("spawn")
        num_processes, policy = min(num_workers, len(unfinished)), (current_policy(),)
        with ProcessPoolExecutor(num_processes, context, retry_in_process, policy) as pool:
            futures = {
                pool.submit(self._convert, source, path): path for path, source in unfinished
            }
            try:
                for future in as_completed(futures):
                    self._finish(futures[future], future.result())
            except BrokenProcessPool:
                raise WorkerError(
                    "a process that converts files died, perhaps of too little memory; the files "
                    "that are finished are kept: import again, with fewer processes (--workers, "
                    "num_workers=...)"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)

    def _on_rows(self) -> OnRows:
        num_rows = sum(done.num_rows for done in self._done.values())

        def on_rows(more: int) -> None:
            nonlocal num_rows
            num_rows += more
            self._progress(len(self._done), len(self._sources), num_rows)

        return on_rows

    def _finish(self, path: str, done: ConvertedFile) -> None:
        self._target.finish(path, done)
        self._add(path, done)

    def _add(self, path: str, done: ConvertedFile) -> None:
        self._done[path] = done
        totals = self.totals()
        if totals["num_malformed"] > self._max_malformed:
            raise too_many(totals["num_malformed"], self._max_malformed, totals["examples"])
        self._progress(len(self._done), len(self._sources), totals["num_rows"])

    def totals(self) -> Mapping[str, Any]:
        """The sums over the finished files, as `ImportReport` has them, and as JSON can be."""
        done = [self._done[path] for path in self._sources if path in self._done]
        total = functools.reduce(ConvertedFile.plus, done, ConvertedFile())
        return {"num_files": len(done), **vars(total), "examples": list(total.examples)}
