"""What is found once for all processes of a host, as entries of the cache: which rows pass the
filters of a request, and where samples are by their ids, the hashes of all ids in order. And the
ids that a user asks for, in the type of their column.
"""

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import DataFileError
from featstore.decoded.decoded_cache import EntryRequest
from featstore.decoded.entry_file import EntryWriter, MappedEntry
from featstore.loader.request.decode import null_error, passing
from featstore.loader.request.matching import Listed
from featstore.loader.request.request import DROP, RAISE, Request
from featstore.ops.arrays import values_of
from featstore.ops.hashing import value_hash
from featstore.reading.buffers import Array, rows_left
from featstore.samples.decoded_rows import DecodedRows
from featstore.staging.cache import entry_name

ROWS_FORMAT = 2
_ROWS_SCHEMA = pa.schema([pa.field("row", pa.int64(), nullable=False)])


def filters_rows(request: Request, files: Sequence[Listed]) -> bool:
    """Whether rows of these files have to be looked at to know whether they are delivered."""
    is_decided = request.where is None or all(partition.is_decided for _, partition in files)
    drops = any(label.null == DROP for label in request.labels)
    return not is_decided or drops or any(file.mask is not None for file, _ in files)


def index_entry(
    request: Request, rows: DecodedRows, listed: Sequence[Listed], files: Sequence[str]
) -> EntryRequest:
    """The entry of the numbers of rows that are not deleted and pass.

    Args:
        request: What is delivered.
        rows: The decoded rows.
        listed: The files, each with its partition.
        files: The names of the entries of their decoded columns, which tell of row masks.
    """
    where = None if request.where is None else request.where.text
    dropped = sorted(label.name for label in request.labels if label.null == DROP)
    which = where or ("labels are not null" if dropped else "rows are not deleted")
    identity = {
        "rows": ROWS_FORMAT,
        "files": list(files),
        "partitions": [[dict(p.values), p.is_decided] for _, p in listed],
        "where": where,
        "dropped": dropped,
    }
    return EntryRequest(
        name=entry_name("rows", rows.num_rows, json.dumps(identity, sort_keys=True)),
        title=f"row numbers of {len(files)} files where {which}",
        first_bytes=8 * rows.num_rows + 4096,
        build=partial(_build_rows, request, rows, listed),
    )


def index_of(entry: MappedEntry) -> Array:
    """The numbers of rows that pass, ascending: int64 (num_rows,), a view of the entry."""
    return values_of(entry.batches[0].column(0))


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


def _build_rows(
    request: Request, rows: DecodedRows, listed: Sequence[Listed], writer: EntryWriter
) -> None:
    found = [np.empty(0, np.int64)]
    of_files = [rows_left(file.deleted_rows(), 0, file.num_rows) for file, _ in listed]
    left = np.concatenate([np.empty(0, bool), *of_files])
    for first, (piece, partition) in zip(rows.firsts.tolist(), rows.pieces, strict=False):
        is_left = left[first : first + piece.num_rows]
        # The first row, 0, would choose negatives by position, which samples cannot be asked for.
        mask = passing(piece.rows, 0, request, partition, Counter(), is_left)
        found.append(first + np.flatnonzero(mask))
    batch = pa.record_batch([pa.array(np.concatenate(found))], schema=_ROWS_SCHEMA)
    writer.write(_ROWS_SCHEMA, [batch])


IDS_FORMAT = 2
_IDS_SCHEMA = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("hash", "position")]
)
# The ids at some positions: int64 (num_ids,) to an Arrow array.
IdsAt = Callable[[Array], pa.Array]


def id_entry(samples: str, column: str, num_rows: int, ids: Callable[[], pa.Array]) -> EntryRequest:
    """The entry of an index of ids.

    Args:
        samples: What identifies the samples and their order.
        column: The name of the id column.
        num_rows: How many samples there are.
        ids: Gives the ids of all of them, in order.
    """
    identity = json.dumps({"ids": IDS_FORMAT, "samples": samples, "column": column}, sort_keys=True)
    return EntryRequest(
        name=entry_name("ids", num_rows, identity),
        title=f"index of {num_rows} ids in {column!r}",
        first_bytes=16 * num_rows + 4096,
        build=partial(_build_ids, column, ids),
    )


def places_of_ids(entry: MappedEntry, wanted: pa.Array, ids_at: IdsAt) -> Array:
    """The positions of samples.

    Args:
        entry: The index.
        wanted: Ids, in the type of the column.
        ids_at: Gives the ids at positions.

    Returns:
        int64 (num_ids,), -1 for ids that no sample has.
    """
    hashes, places = map(values_of, entry.batches[0].columns)
    found = np.full(len(wanted), -1)
    hashed = _hashes(wanted)
    of_wanted = values_of(hashed.fill_null(0))
    at = np.searchsorted(hashes, of_wanted)
    left = _valid(hashed)
    # Ids with equal hashes lie side by side: each is compared until it is the wanted one.
    while len(left := left[at[left] < len(hashes)]):
        left = left[hashes[at[left]] == of_wanted[left]]
        candidates = places[at[left]]
        is_same = pc.equal(ids_at(candidates), wanted.take(pa.array(left))).to_pylist()
        chosen = np.array(is_same, bool)
        found[left[chosen]] = candidates[chosen]
        left = left[~chosen]
        at[left] += 1
    return found


def _hashes(ids: pa.Array) -> pa.Array:
    """The hash of each id, int64 (num_ids,), null for null. Equal ids have equal hashes."""
    if pa.types.is_large_string(ids.type):
        return value_hash(ids.cast(pa.string()))
    # Their 64 bits: not all unsigned integers are int64, nor all seconds microseconds.
    if pa.types.is_timestamp(ids.type) or pa.types.is_uint64(ids.type):
        return value_hash(ids.view(pa.int64()))
    return value_hash(ids)


def _valid(array: pa.Array) -> Array:
    """The places that are not null: int64."""
    return np.flatnonzero(np.array(array.is_valid().to_pylist(), bool))


def _build_ids(column: str, ids: Callable[[], pa.Array], writer: EntryWriter) -> None:
    values = ids()
    hashed = _hashes(values)
    positions = _valid(hashed)
    hashes = values_of(hashed.drop_null())
    order = np.argsort(hashes, kind="stable")
    hashes, positions = hashes[order], positions[order]
    _require_distinct(column, values, hashes, positions)
    arrays = [pa.array(hashes), pa.array(positions)]
    writer.write(_IDS_SCHEMA, [pa.record_batch(arrays, schema=_IDS_SCHEMA)])


def _require_distinct(column: str, ids: pa.Array, hashes: Array, positions: Array) -> None:
    """DataFileError if two samples have one id."""
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    for first in same.tolist():
        run = np.flatnonzero(hashes == hashes[first])
        seen = dict[object, int]()
        for position in positions[run].tolist():
            value = ids[position].as_py()
            if value in seen:
                raise DataFileError(
                    f"id_column {column!r}: expected each id once, found {value!r} in samples "
                    f"{seen[value]} and {position}; name a column that identifies rows"
                )
            seen[value] = position


def can_be_ids(column: pa.DataType) -> bool:
    """Whether samples can be found by a column of this type.

    Python has no nanoseconds, so an id that a user writes may not be the one of the column.
    """
    if pa.types.is_timestamp(column):
        return bool(column.unit != "ns")
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    return any(is_kind(column) for is_kind in kinds)


def ids_of_type(wanted: Iterable[Any], column: pa.DataType) -> pa.Array:
    """The ids as an array of a type that `can_be_ids`, (num_ids,). None becomes null.

    Raises:
        TypeError: One of them is of another type, or would have to be rounded or cut to fit.
    """
    ids = list(wanted)
    try:
        if pa.types.is_integer(column):
            return pa.array([_integer(each) for each in ids], column)
        if pa.types.is_timestamp(column):
            return _timestamps(ids, column)
        return pa.array(ids, column)
    # ArrowTypeError is a TypeError, ArrowInvalid and a text that is not UTF-8 are ValueErrors.
    except (TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"by_id(): expected ids of type {column}: {error}") from None


def _integer(value: Any) -> int | None:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return None
    if isinstance(value, bool):
        raise TypeError(f"found {value}")
    # Arrow cuts what is after the point of a float.
    return operator.index(value)


def _timestamps(ids: Sequence[Any], column: pa.DataType) -> pa.Array:
    if wrong := [each for each in ids if isinstance(each, int | float)]:
        raise TypeError(f"found {wrong[0]!r}")
    if all(each is None or isinstance(each, datetime) for each in ids):
        # Arrow cuts a datetime to whole seconds, but refuses to cast it.
        return pa.array(ids, pa.timestamp("us", column.tz)).cast(column)
    return pa.array(ids, column)
