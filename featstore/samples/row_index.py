"""Which rows pass the filters of a request, found once for all processes of a host."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from featstore.decoded.decoded_cache import EntryRequest
from featstore.decoded.entry_file import EntryWriter, MappedEntry
from featstore.loader.request.decode import null_error, passing
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import DROP, RAISE, Request
from featstore.reading.buffers import Array
from featstore.samples.decoded_rows import DecodedRows
from featstore.staging.cache import entry_name

FORMAT = 1
_SCHEMA = pa.schema([pa.field("row", pa.int64(), nullable=False)])


def filters_rows(request: Request, partitions: Sequence[Partition]) -> bool:
    """Whether rows of these partitions have to be looked at to know whether they are delivered."""
    is_decided = request.where is None or all(partition.is_decided for partition in partitions)
    return not is_decided or any(label.null == DROP for label in request.labels)


def index_entry(
    request: Request, rows: DecodedRows, partitions: Sequence[Partition], files: Sequence[str]
) -> EntryRequest:
    """The entry of the numbers of rows that pass.

    Args:
        request: What is delivered.
        rows: The decoded rows.
        partitions: The partition of each file.
        files: The names of the entries of the files' decoded columns.
    """
    where = None if request.where is None else request.where.text
    identity = {
        "rows": FORMAT,
        "files": list(files),
        "partitions": [[dict(p.values), p.is_decided] for p in partitions],
        "where": where,
        "dropped": sorted(label.name for label in request.labels if label.null == DROP),
    }
    return EntryRequest(
        name=entry_name("rows", rows.num_rows, json.dumps(identity, sort_keys=True)),
        title=f"row numbers of {len(files)} files where {where or 'labels are not null'}",
        first_bytes=8 * rows.num_rows + 4096,
        build=partial(_build, request, rows),
    )


def index_of(entry: MappedEntry) -> Array:
    """The numbers of rows that pass, ascending: int64 (num_rows,), a view of the entry."""
    column = entry.batches[0].column(0)
    return np.frombuffer(column.buffers()[1] or b"", np.int64, len(column))


def require_no_nulls(request: Request, rows: DecodedRows, index: Array | None) -> None:
    """Checks labels and the weight of all rows that are delivered, before the first is.

    Args:
        request: What is delivered.
        rows: The decoded rows.
        index: The numbers of those that are delivered; None: all.

    Raises:
        MissingValueError: One of them is null, and the request does not say what to do.
    """
    for label in request.numbers:
        if label.null not in (RAISE, DROP):
            continue
        what = "weight" if label is request.weight else "label"
        for number, (piece, _) in enumerate(rows.pieces):
            is_null = np.isnan(piece.numbers[label.name])
            if not is_null.any():
                continue
            if index is not None:
                first, end = rows.firsts[number : number + 2]
                cut = np.searchsorted(index, [first, end])
                is_null = is_null[index[cut[0] : cut[1]] - first]
            if num_nulls := int(np.count_nonzero(is_null)):
                raise null_error(label, what, piece.rows.file_name, num_nulls, len(is_null))


def _build(request: Request, rows: DecodedRows, writer: EntryWriter) -> None:
    found = [np.empty(0, np.int64)]
    for first, (piece, partition) in zip(rows.firsts.tolist(), rows.pieces, strict=False):
        # The first row, 0, would choose negatives by position, which samples cannot be asked for.
        mask = passing(piece.rows, 0, request, partition, Counter())
        found.append(first + np.flatnonzero(mask))
    batch = pa.record_batch([pa.array(np.concatenate(found))], schema=_SCHEMA)
    writer.write(_SCHEMA, [batch])
