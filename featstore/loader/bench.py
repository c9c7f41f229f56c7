"""Measures how fast a table is read on this machine, by numbers of cores: what `featstore bench`
prints.
"""

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from featstore.base.errors import ConfigError, StagingError
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.decoded.file_sources import (
    FileSource,
    SourcesAhead,
    files_in_place,
    staging_source,
)
from featstore.dispatch.options import Dispatch
from featstore.loader.description import LoaderDescription, described
from featstore.loader.plan.column_sizes import ColumnSizes
from featstore.loader.plan.roofline import FilePart, arrow_loop, limit_of, parts_read
from featstore.loader.request.train_config import load_train_config
from featstore.loader.speeds import Bench, Epoch, Speed, cores_needed
from featstore.loader.table_source import TableSource
from featstore.staging.stager import Stager
from featstore.tensors.batch import Batch
from featstore.tensors.columns import tensors_of

# Bytes of the selected columns in an epoch, as stored, for each core up to the most threads of a
# loader. One core takes some 0.3 to 1.5 seconds for them.
_CORE_BYTES, _MOST_CORES = 64 << 20, 16
_LEAST_EPOCHS = 3  # that have a median and a range
# What belongs to a run, and to no single reading: of a config these are left out.
_OF_RUNS = (
    *("tables", "stop", "order", "num_epochs", "follow", "tail"),
    *("on_stats", "on_bad_file", "progress"),
)
_FLOOR, _LOADER = "floor", "loader"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a child process measured.

    Attributes:
        num_rows: Rows of one epoch.
        epochs: The epochs of the loader and of Arrow's loop.
        limit_s: The limit of one epoch on one core; None if it was not measured.
    """

    num_rows: int
    epochs: Mapping[str, Sequence[Epoch]]
    limit_s: float | None


def bench(
    table: str,
    *,
    config: str | None = None,
    slots: Sequence[str] = (),
    seconds: float = 5.0,
    max_cores: int | None = None,
    rows_per_s: float | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Bench:
    """Measures how fast a table is read: by Arrow's bare loop on one core, and by a loader on one,
    two, four and so on up to all cores, each in a process of its own on so many cores.

    The first files are read, again and again, as many as hold 64 MB of the selected columns for
    each core. Nothing is written but the staging cache, if the config or a remote table has one.

    Args:
        table: The table, also in place of that of the config.
        config: Path or URL of a training config.
        slots: The slots to read where there is no config.
        seconds: How long each of them is measured, in whole epochs, at least three.
        max_cores: The most cores; None is all that this process may use.
        rows_per_s: What an accelerator takes.
        tell: Called with what is measured next.

    Raises:
        ConfigError: The config is invalid, there are no rows, or fewer cores than `max_cores`.
        Everything that `FeatureLoader` raises.
    """
    cores = core_counts(num_cores(), max_cores)
    made = _described(table, config, slots)
    part = _first_files(made, _CORE_BYTES * min(cores[-1], _MOST_CORES))
    found = dict[int, Measured]()
    with _on_disk(part) as (staged, parts):
        for number in cores:
            tell(f"{number} of {cores[-1]} cores, {seconds:g} s and more")
            found[number] = _on_cores(number, staged, parts if number == 1 else (), seconds)
    one = found[1]
    assert one.limit_s is not None
    floor_s, limit_s = median(epoch.seconds for epoch in one.epochs[_FLOOR]), one.limit_s
    speeds = [
        Speed.of(number, each.num_rows, each.epochs[_LOADER], floor_s, limit_s)
        for number, each in found.items()
    ]
    return Bench(
        table=redact(made.url),
        num_files=len(part.job.files),
        num_all_files=len(made.job.files),
        num_rows=one.num_rows,
        batch_size=made.job.batch_size,
        is_shuffled=made.job.shuffle is not None,
        has_histories=bool(made.job.request.histories),
        limit_rows_per_s=one.num_rows / limit_s,
        floor=Speed.of(1, one.num_rows, one.epochs[_FLOOR], floor_s, limit_s),
        speeds=tuple(speeds),
        wanted_rows_per_s=rows_per_s,
        num_cores_needed=None if rows_per_s is None else cores_needed(speeds, rows_per_s),
    )


def core_counts(available: int, most: int | None) -> list[int]:
    """1, 2, 4 and so on up to `most`, with it; by default all that are available.

    Raises:
        ConfigError: `most` is more than is available.
    """
    most = available if most is None else most
    if most > available:
        raise ConfigError(f"max_cores: expected at most the {available} cores here, found {most}")
    return [1 << power for power in range((most - 1).bit_length())] + [most]


def _described(table: str, config: str | None, slots: Sequence[str]) -> LoaderDescription:
    """The loader of a config, without what belongs to a run: it meets no other workers."""
    given = load_train_config(
        config or {"slots": list(slots)}, {**dict.fromkeys(_OF_RUNS), "table": table}
    )
    return replace(described(**given), dispatch=Dispatch(store="memory://"))


def _first_files(made: LoaderDescription, num_bytes: int) -> LoaderDescription:
    """The loader of the first files with rows, as many as have so many bytes of the selected
    columns, and fill at most half of the staging budget.

    Raises:
        ConfigError: No file has rows.
    """
    job = made.job
    files = job.files.take(np.flatnonzero(job.files.files.values("num_rows")))
    if not files:
        raise _no_rows(made)
    sizes = ColumnSizes.of(files.files[:1], job.request.selection)
    row_bytes = max(sizes.stored_bytes.total() / sizes.num_rows, 1)
    row_ends, ends = (
        of.cumsum() for of in (files.files.values("num_rows"), files.files.total_bytes)
    )
    num_files = 1 + int(np.searchsorted(row_ends, num_bytes / row_bytes))
    if made.staging is not None:
        room_bytes = made.staging.num_budget_bytes // 2
        num_files = min(num_files, max(1, int(np.searchsorted(ends, room_bytes, "right"))))
    files = files.take(range(len(files))[:num_files])
    splits = tuple(job.cut(files.files))
    return replace(made, job=replace(job, files=files, splits=splits))


@contextmanager
def _on_disk(made: LoaderDescription) -> Iterator[tuple[LoaderDescription, list[FilePart]]]:
    """The loader with the cache that its files are staged to, if they are, and what it reads of
    them.
    """
    files, selection = list(made.job.files.files), made.job.request.selection
    with ExitStack() as stack:
        if made.staging is None:
            sources = [files_in_place(file) for file in files]
        else:
            stager = stack.enter_context(Stager(made.staging, staging_source(selection)))
            ahead = stack.enter_context(SourcesAhead(stager, files))
            sources = [stack.enter_context(ahead.opened(file)) for file in files]
            made = replace(made, staging=stager.options)
        parts = [part for each in sources for part in parts_read(list(map(_path, each)), selection)]
        if not parts:
            raise ConfigError(
                f"{redact(made.url)}: expected selected columns in its files, found none in the "
                f"first {len(files)}; select others, or choose files by `where`"
            )
        yield made, parts


def _path(source: FileSource) -> Path:
    if not isinstance(source.source, Path):
        raise StagingError(
            f"{source.path}: expected it on the local disk, found that it cannot be staged, as the "
            "warning says; restore it, or write its partition again"
        )
    return source.source.resolve()  # A staged file is open here under a name of this process.


def _no_rows(made: LoaderDescription) -> ConfigError:
    return ConfigError(
        f"{redact(made.url)}: expected rows to read, found none in {len(made.job.files)} files; "
        "extract some, or choose others by `where`"
    )


def _on_cores(
    number: int, made: LoaderDescription, parts: Sequence[FilePart], seconds: float
) -> Measured:
    """Measures in a process of its own, which starts on so many cores: what is loaded there makes
    as many threads.
    """
    every = os.sched_getaffinity(0)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        os.sched_setaffinity(0, sorted(every)[:number])
        try:
            child = pool.submit(measure, made, parts, seconds)
        finally:
            os.sched_setaffinity(0, every)
        return child.result()


def measure(made: LoaderDescription, parts: Sequence[FilePart], seconds: float) -> Measured:
    """Measures epochs in this process.

    Args:
        made: The loader.
        parts: What Arrow's loop reads in turn with it, and of what the limit is; may be empty.
        seconds: How long each of them is measured.

    Raises:
        ConfigError: No row is delivered.
    """
    with closing(TableSource(made)) as source:
        # These epochs are not timed: they load libraries, and fill the page cache.
        counts = np.array([(batch.num_rows, _batch_bytes(batch)) for batch in source], np.int64)
        if not len(counts):
            raise _no_rows(made)
        num_rows, tensor_bytes = counts.sum(axis=0).tolist()
        deque(arrow_loop(parts), maxlen=0)
        runs: dict[str, Callable[[], Iterator[object]]] = {
            _LOADER: lambda: (batch.made() for batch in source)
        }
        if parts:
            runs[_FLOOR] = lambda: arrow_loop(parts)
        taken = epochs_in_turn(runs, seconds)
    limit_s = limit_of(parts, tensor_bytes).seconds if parts else None
    return Measured(num_rows=num_rows, epochs=taken, limit_s=limit_s)


def epochs_in_turn(
    runs: Mapping[str, Callable[[], Iterator[object]]], seconds: float
) -> dict[str, list[Epoch]]:
    """The epochs of each run, one after the other, until all have taken this long each; at least
    three.
    """
    taken: dict[str, list[Epoch]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while min(map(len, taken.values())) < _LEAST_EPOCHS or time.perf_counter() < end:
        for name, run in runs.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            deque(run(), maxlen=0)
            took = time.perf_counter() - began, time.process_time() - cpu_began
            taken[name].append(Epoch(*took))
    return taken


def _batch_bytes(batch: Batch) -> int:
    columns = batch.made().values()
    tensors = sum(tensor.nbytes for of in columns for tensor in tensors_of(of))
    return tensors + int(batch.extras.nbytes)
