"""The data files of a Delta table, streamed from the add actions of its log in order of path."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featstore.files.storage import join
from featstore.redaction import redact
from featstore.table.layout import decode_path, is_whole
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import DataFile

_FIELDS = ("path", "size_bytes", "num_records", "modification_time")
# Actions converted to Python objects at once. A larger number takes more memory; a smaller one
# means more and shorter rounds of parallel footer reads.
_BATCH_ROWS = 4_096


def files_of(
    url: str, actions: pa.Table, keys: Sequence[str], crc32s: Mapping[str, int]
) -> Iterator[DataFile]:
    """Yields the data files of add actions, sorted by path.

    Only a batch of them exists as Python objects. The footers of files without a row count are
    read.

    Args:
        url: The URL of the table.
        actions: The add actions of delta-rs, flattened.
        keys: The partition keys.
        crc32s: The CRC-32s of files that are known, by path.
    """
    ordered = _sorted(url, actions.select([*_FIELDS, *(f"partition.{key}" for key in keys)]))
    del actions  # its other columns (statistics, tags) can be larger than the selected ones
    for batch in ordered.to_batches(max_chunksize=_BATCH_ROWS):
        yield from _files(url, batch.to_pylist(), keys, crc32s)


def _sorted(url: str, actions: pa.Table) -> pa.Table:
    """The actions sorted by decoded path. Arrow's order of UTF-8 is Python's order of `str`."""
    # Few tables have escaped or absolute paths, and decoding is a call in Python for each file.
    paths = actions["path"].combine_chunks()
    if pc.any(pc.match_substring_regex(paths, "%|^/|:/")).as_py():
        paths = pa.array((decode_path(url, path.as_py()) for path in paths), pa.string())
    order = pc.sort_indices(paths)
    return actions.set_column(0, "path", paths).take(order)


def _files(
    url: str, actions: list[dict[str, Any]], keys: Sequence[str], crc32s: Mapping[str, int]
) -> Iterator[DataFile]:
    urls = [
        action["path"] if is_whole(action["path"]) else join(url, action["path"])
        for action in actions
    ]
    unknown = [
        file
        for file, action in zip(urls, actions, strict=True)
        if action["num_records"] is None or action["num_records"] < 0
    ]
    gone = f"the log of {redact(url)} names it; restore it, or remove it from the log (FSCK REPAIR)"
    counted = each_footer(unknown, lambda footer: footer.num_rows, gone) if unknown else ()
    rows = dict(zip(unknown, counted, strict=True))
    for file, action in zip(urls, actions, strict=True):
        yield DataFile(
            path=action["path"],
            url=file,
            size_bytes=action["size_bytes"],
            num_rows=rows[file] if file in rows else action["num_records"],
            partition={key: _text(action[f"partition.{key}"]) for key in keys},
            version=str(action["modification_time"]),
            crc32=crc32s.get(action["path"]),
        )


def _text(value: object) -> str | None:
    """A partition value as text that casts back to its type."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
