"""What it takes at least to read the selected columns of files: Arrow's bare loop over them, and
the limit of this machine.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.native.bounds import read_page_header
from featstore.native.footers import Chunks
from featstore.reading.file_columns import Selection, find_columns
from featstore.reading.open_file import OpenFile

_COPY_BYTES, _SAMPLE_BYTES, _REPEATS = 64 << 20, 64 << 20, 3
# By their numbers in the format. Number 5, LZ4 in Hadoop's frames, is not written any more.
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
# How a header begins whose page is of version 2: levels come before the compressed values there,
# and the header's reader does not tell how long they are.
_VERSION_2 = b"\x15\x06"
Page = tuple[pa.Codec, bytes, int]  # with its decompressed size


class FilePart(NamedTuple):
    """Columns that are read of a local file, by their names in the file."""

    path: Path
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The time of one core that only copies the stored bytes out of the page cache, decompresses
    them, and writes the bytes of the batches once. It decodes nothing.

    More cores divide it, as if they did not share the memory's bandwidth.

    Attributes:
        stored_bytes: What is read of the files.
        raw_bytes: What becomes of compressed pages.
        tensor_bytes: Of all columns of all batches.
        copy_rate: Bytes that one core copies in a second, from buffers larger than the caches.
        decompress_rate: Bytes that one core makes in a second out of the files' first pages.
            Infinite if none is compressed, or all are of version 2.
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

    @property
    def seconds(self) -> float:
        """Seconds of one core."""
        return sum(self.parts_s.values())


def parts_read(paths: Sequence[Path], selection: Selection) -> Iterator[FilePart]:
    """What a selection reads of one data file.

    Args:
        paths: The data file, then the files of its slot groups. A column is taken from the last
            one that has it.
        selection: The columns.

    Raises:
        DataFileError: A file is damaged, or a column has a type that was not selected.
    """
    places = dict[str, tuple[Path, str]]()
    for path in paths:
        with OpenFile(path) as file:
            found = find_columns(file.footer.file_schema, selection, file.name)
        columns = {**found.slots, **found.others}
        places |= {name: (path, column) for name, column in columns.items() if column is not None}
    for path in paths:
        own = dict.fromkeys(column for place, column in places.values() if place == path)
        if own:
            yield FilePart(path, tuple(own))


def arrow_loop(parts: Sequence[FilePart]) -> Iterator[pa.Table]:
    """A bare loop of Arrow's `read_row_group` in one thread, which makes no batches."""
    for path, columns in parts:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                yield file.read_row_group(index, columns=list(columns), use_threads=False)


def limit_of(parts: Sequence[FilePart], tensor_bytes: int) -> Limit:
    """Measures the limit of reading these columns.

    Args:
        parts: The columns.
        tensor_bytes: The bytes of all batches that are made of them.
    """
    stored_bytes = raw_bytes = sampled_bytes = 0
    sample = list[Page]()
    for part in parts:
        with OpenFile(part.path) as file:
            chunks = _chunks(file, part.columns)
            stored_bytes += int(chunks.stored_bytes.sum())
            raw_bytes += int(chunks.raw_bytes[np.isin(chunks.codec, list(_CODECS))].sum())
            for page in _pages(file, chunks):
                if sampled_bytes >= _SAMPLE_BYTES:
                    break
                sample.append(page)
                sampled_bytes += page[2]
    return Limit(
        stored_bytes=stored_bytes,
        raw_bytes=raw_bytes,
        tensor_bytes=tensor_bytes,
        copy_rate=_COPY_BYTES / least_s(_copier()),
        decompress_rate=sampled_bytes / least_s(lambda: _decompress(sample))
        if sampled_bytes
        else math.inf,
    )


def _chunks(file: OpenFile, columns: Sequence[str]) -> Chunks:
    schema = file.footer.file_schema
    roots = [schema.roots[index] for name in columns for index in schema.by_name[name]]
    leaves = [leaf for root in roots for leaf in root.leaves]
    return file.footer.chunks_of(range(len(file.row_group_rows)), leaves)


def _pages(file: OpenFile, chunks: Chunks) -> Iterator[Page]:
    """The compressed pages. What is no page ends its chunk; who reads it raises an error."""
    spans = (of.ravel().tolist() for of in (chunks.codec, chunks.first, chunks.end))
    for codec, at, end in zip(*spans, strict=True):
        while at < end and codec in _CODECS:
            if (header := read_page_header(file.read_at, at, end)) is None:
                break
            first = at + header.num_bytes
            if file.read_at(len(_VERSION_2), at) != _VERSION_2:
                stored = file.read_at(header.size_bytes, first)
                yield pa.Codec(_CODECS[codec]), stored, header.raw_bytes
            at = first + header.size_bytes


def _copier() -> Callable[[], None]:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.ones(_COPY_BYTES, np.uint8)
    return lambda: np.copyto(target, source)


def _decompress(pages: Sequence[Page]) -> None:
    for codec, page, size in pages:
        codec.decompress(page, size)


def least_s(run: Callable[[], None]) -> float:
    """CPU seconds of the fastest run: other work can only make one slower."""
    found = []
    for _ in range(_REPEATS):
        started = time.thread_time()
        run()
        found.append(time.thread_time() - started)
    return min(found)
