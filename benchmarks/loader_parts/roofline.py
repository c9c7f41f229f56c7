"""What this machine could do at best with the bytes of a case, and where a reader's time goes.

The limit of a case is the time of one core that only copies the stored bytes out of the page cache,
decompresses the pages, and writes the tensors' bytes once:

    limit_s = stored / copy rate + pages' raw bytes / decompression rate + tensors / copy rate

Both rates are measured in the same process: `numpy.copyto` of buffers larger than the caches, and
pyarrow's snappy on real pages of the case. More cores divide the limit, as if they did not share
the memory's bandwidth, so on two cores it is a little too low. The limit has no decoding of
dictionary indices and levels in it.
"""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.native.bounds import read_page_header
from featstore.reading.open_file import OpenFile
from loader_parts.reading import Columns

_COPY_BYTES, _SAMPLE_BYTES, _REPEATS = 64 << 20, 64 << 20, 3
_SNAPPY = pa.Codec("snappy")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Bytes of one epoch of a case, and the rates of one core.

    Attributes:
        stored_bytes: Of the pages that are read, without their headers.
        raw_bytes: Of these pages, decompressed.
        tensor_bytes: Of all columns of all batches.
        copy_rate: Bytes that one core copies in a second.
        decompress_rate: Bytes that one core makes in a second out of snappy pages.
    """

    stored_bytes: int
    raw_bytes: int
    tensor_bytes: int
    copy_rate: float
    decompress_rate: float

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds of one core for each part of the limit."""
        return {
            "read": self.stored_bytes / self.copy_rate,
            "decompress": self.raw_bytes / self.decompress_rate,
            "write": self.tensor_bytes / self.copy_rate,
        }

    def share(self, seconds: float, num_cores: int) -> float:
        """What share of the limit's speed an epoch of so many seconds on so many cores has."""
        return sum(self.parts_s.values()) / num_cores / seconds

    def part(self, rows: float) -> "Limit":
        """The limit of this share of the rows, at the same rates."""
        return replace(
            self,
            stored_bytes=round(self.stored_bytes * rows),
            raw_bytes=round(self.raw_bytes * rows),
            tensor_bytes=round(self.tensor_bytes * rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """Megabytes, rates in GB/s, and milliseconds of one core, as they are told."""
        return {
            "stored_mb": round(self.stored_bytes / 1e6, 1),
            "raw_mb": round(self.raw_bytes / 1e6, 1),
            "tensor_mb": round(self.tensor_bytes / 1e6, 1),
            "copy_gb_per_s": round(self.copy_rate / 1e9, 2),
            "decompress_gb_per_s": round(self.decompress_rate / 1e9, 2),
            "one_core_ms": {name: round(1e3 * s, 1) for name, s in self.parts_s.items()},
        }


def limit_of(paths: Sequence[str], columns: Sequence[str], epoch: Iterator[Columns]) -> Limit:
    """Measures the limit of reading these columns.

    Args:
        paths: Files with pages in snappy.
        columns: Names of columns, each a scalar or a list.
        epoch: All batches of the case; their bytes are counted.

    Raises:
        ValueError: A page is no snappy page of Parquet's first data page version.
    """
    wanted = set(columns)
    stored_bytes = raw_bytes = sampled = 0
    sample: list[tuple[bytes, int]] = []
    for path in paths:
        for page, size in _pages(path, wanted):
            stored_bytes += len(page)
            raw_bytes += size
            if sampled < _SAMPLE_BYTES:
                sample.append((page, size))
                sampled += size
    return Limit(
        stored_bytes=stored_bytes,
        raw_bytes=raw_bytes,
        tensor_bytes=sum(map(_batch_bytes, epoch)),
        copy_rate=_COPY_BYTES / _least_s(_copier()),
        decompress_rate=sampled / _least_s(lambda: _decompress(sample)),
    )


def costs_of(epoch: Callable[..., Iterator[Columns]], paths: Sequence[str]) -> dict[str, Any]:
    """What the system tells of one epoch in this process.

    Args:
        epoch: `epoch(stats=dict)` reads all batches, and fills `stats` with the loader's own. It is
            run once.
        paths: The files that it reads.

    Returns:
        Milliseconds of: the clock; all threads in user and in system mode; the thread that takes
        batches; opening all files and parsing their footers; the loader's own clocks, which run
        on while a thread waits for a core. And the number of minor page faults, whose time is part
        of the system's.
    """
    stats = dict[str, Any]()
    before, cpu, wall = (
        resource.getrusage(resource.RUSAGE_SELF),
        time.thread_time(),
        time.perf_counter(),
    )
    for _ in epoch(stats=stats):
        pass
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = {
        "clock": wall,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "training_thread": cpu,
        "footers": _least_s(lambda: _open(paths)),
        **{name: stats[name] for name in ("wait_s", "decode_s", "assemble_s")},
    }
    told = {f"{name.removesuffix('_s')}_ms": round(1e3 * s, 1) for name, s in seconds.items()}
    return {**told, "minor_faults": after.ru_minflt - before.ru_minflt}


def _pages(path: str, columns: set[str]) -> Iterator[tuple[bytes, int]]:
    """Each page of these columns as it is stored, and its decompressed size."""
    with OpenFile(Path(path)) as footer:
        for row_group in range(len(footer.row_group_rows)):
            for place, leaf in enumerate(footer.footer.leaves):
                if leaf.path.partition(".")[0] not in columns:
                    continue
                at, end = footer.footer.span(row_group, place)
                while at < end:
                    header = read_page_header(footer.read_at, at, end)
                    if header is None:
                        raise ValueError(
                            f"{path}: column {leaf.path!r}: row group {row_group}: expected a page "
                            f"header at byte {at}, found none; write the workload again"
                        )
                    first = at + header.num_bytes
                    at = first + header.size_bytes
                    yield footer.read_at(header.size_bytes, first), header.raw_bytes


def _batch_bytes(batch: Columns) -> int:
    parts = [part for of in batch.values() for part in (of if isinstance(of, tuple) else (of,))]
    return sum(np.asarray(part).nbytes for part in parts)


def _copier() -> Callable[[], None]:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.ones(_COPY_BYTES, np.uint8)
    return lambda: np.copyto(target, source)


def _decompress(pages: Sequence[tuple[bytes, int]]) -> None:
    for page, size in pages:
        _SNAPPY.decompress(page, size)


def _open(paths: Sequence[str]) -> None:
    for path in paths:
        with OpenFile(Path(path)) as footer:
            _ = footer.footer.leaves


def _least_s(run: Callable[[], None]) -> float:
    """CPU seconds of the fastest run: other work can only make one slower."""
    found = []
    for _ in range(_REPEATS):
        started = time.thread_time()
        run()
        found.append(time.thread_time() - started)
    return min(found)
