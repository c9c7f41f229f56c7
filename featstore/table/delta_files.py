"""The data files of a Delta table out of its log's actions, in order of their paths, without
keeping them all as objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featstore.files.storage import join
from featstore.table.layout import decode_path
from featstore.table.parquet_dir import read_footers
from featstore.table.snapshot import DataFile

_FIELDS = ("path", "size_bytes", "num_records", "modification_time")
_MANY = 4_096


def files_of(
    url: str, actions: pa.Table, keys: Sequence[str], crc32s: Mapping[str, int]
) -> Iterator[DataFile]:
    """The files that delta-rs's flattened add actions name, sorted by path, with the CRC-32s that
    are known by path. Opens the footers of those without a row count."""
    ordered = _sorted(actions.select([*_FIELDS, *(f"partition.{key}" for key in keys)]))
    del actions
    for batch in ordered.to_batches(max_chunksize=_MANY):
        yield from _files(url, batch.to_pylist(), keys, crc32s)


def _sorted(actions: pa.Table) -> pa.Table:
    """With decoded paths. UTF-8 sorts as Python's text does."""
    paths = actions["path"].combine_chunks()
    if pc.any(pc.match_substring(paths, "%")).as_py():
        paths = pa.array((decode_path(path.as_py()) for path in paths), pa.string())
    order = pc.sort_indices(paths)
    return actions.set_column(0, "path", paths).take(order)


def _files(
    url: str, actions: list[dict[str, Any]], keys: Sequence[str], crc32s: Mapping[str, int]
) -> Iterator[DataFile]:
    urls = [
        action["path"] if "://" in action["path"] else join(url, action["path"])
        for action in actions
    ]
    unknown = [
        file for file, action in zip(urls, actions, strict=True) if action["num_records"] is None
    ]
    rows = {
        file: footer.num_rows for file, footer in zip(unknown, read_footers(unknown), strict=True)
    }
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
    """A partition's value as text that casts back to its type."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
