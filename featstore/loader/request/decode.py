"""From rows as read to the columns of a block: first the filters, then each slot's options, which
cut lists, hash ids into buckets, pad, and convert the dtype.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from featstore.base.errors import MissingValueError
from featstore.base.schema import without_places
from featstore.loader.request.candidates import row_keys
from featstore.loader.request.matching import Partition, partition_value
from featstore.loader.request.options import FIRST, RIGHT, SlotRequest
from featstore.loader.request.request import (
    DROP,
    RAISE,
    LabelRequest,
    Negatives,
    Request,
    position_hashes,
)
from featstore.loader.request.sequences import aligned
from featstore.native import kernels
from featstore.ops import hashing
from featstore.reading.buffers import (
    Array,
    BatchValues,
    Ragged,
    SharedLists,
    Values,
    scalar_floats,
    truncate,
)
from featstore.reading.gather import ColumnBuffers, ColumnKind, add_column, kind_of
from featstore.reading.pages import DecodedColumns
from featstore.reading.reader import Rows
from featstore.reading.tables import marks_to_nulls, nan_to_null
from featstore.tensors.column_arrays import (
    LABEL,
    OWN_ITEM,
    ROW_KEY,
    SLOT,
    WEIGHT,
    Key,
    bfloat16_bits,
    writable,
)

NO_EXTRAS = pa.table({})


def passing(
    rows: Rows,
    first_row: int,
    request: Request,
    partition: Partition,
    counts: Counter[str],
    left: Array | None = None,
) -> Array:
    """Which rows get into batches: bool (num_rows,). The others are counted in `counts`.

    Args:
        rows: Rows of one data file, with the columns that the filters read.
        first_row: The number of the first of them in the file.
        request: What is delivered.
        partition: The file's partition.
        counts: Counts by name, as of `Stats`.
        left: Which of the rows are not deleted: bool (num_rows,). Others do not pass, and are not
            counted. None: all.
    """
    mask = np.ones(rows.num_rows, bool) if left is None else left
    if request.where is not None and not partition.is_decided:
        found = request.where.mask(_where_table(rows, request, partition)).combine_chunks()
        is_match = np.asarray(found.cast(pa.uint8())).astype(bool)
        counts["rows_filtered"] += int(np.count_nonzero(mask & ~is_match))
        mask = mask & is_match
    for label in request.labels:
        if label.null == DROP:
            _, valid = scalar_floats(rows.other(label.field))
            if valid is not None:
                counts["null_labels_dropped"] += int(np.count_nonzero(mask & ~valid))
                mask = mask & valid
    if request.negatives is not None:
        is_kept = _without_dropped_negatives(rows, first_row, request, request.negatives)
        counts["negatives_dropped"] += int(np.count_nonzero(mask & ~is_kept))
        mask = mask & is_kept
    return mask


class _Delivery(NamedTuple):
    """Which columns are delivered as they are decoded.

    Attributes:
        request: What is delivered.
        columns: All columns, in their order: the name in the file of each of these, None otherwise.
        places: Their places in the plan of decoding, int64.
        at: Their places in the order of all columns, int64.
        kinds: All columns: the kinds of these.
        converted: The slots that are not among them.
    """

    request: Request
    columns: Mapping[Key, str | None]
    places: Array
    at: Array
    kinds: Sequence[ColumnKind | None]
    converted: tuple[SlotRequest, ...]


class WindowColumns(Mapping[Key, BatchValues]):
    """The columns of a window's rows as they are delivered. Those that are delivered as they were
    decoded are views, made when they are asked for.

    Args:
        decoded: The columns as they were decoded.
        delivery: Which of them are delivered so.
        made: The others.
        num_rows: How many rows there are.
    """

    def __init__(
        self,
        decoded: DecodedColumns,
        delivery: _Delivery,
        made: Mapping[Key, Any],
        num_rows: int,
    ) -> None:
        self._decoded, self._delivery, self._made = decoded, delivery, made
        self._num_rows = num_rows

    def __getitem__(self, key: Key) -> BatchValues:
        name = self._delivery.columns[key]
        return self._made[key] if name is None else self._decoded[name].values

    def __iter__(self) -> Iterator[Key]:
        return iter(self._delivery.columns)

    def __len__(self) -> int:
        return len(self._delivery.columns)

    def lengths(self, key: Key) -> Array:
        """The lengths of a column's lists: int64 (num_rows,)."""
        found = self[key]
        assert isinstance(found, SharedLists | Ragged)
        lengths: Array = found.lengths if isinstance(found, SharedLists) else np.diff(found.offsets)
        return lengths

    @property
    def size_bytes(self) -> int:
        """The memory that the columns take."""
        made = sum(map(size_bytes_of, self._made.values()))
        return made + self._decoded.size_bytes(self._delivery.places)

    @property
    def num_lists(self) -> int:
        """How many columns are lists."""
        made = sum(isinstance(values, Ragged) for values in self._made.values())
        return made + sum(kind is not None and kind.is_list for kind in self._delivery.kinds)

    def in_buffers(self) -> ColumnBuffers:
        """The columns as they are gathered."""
        delivery, buffers = self._delivery, list(self._decoded.buffers)
        kinds, more = list[ColumnKind](), list[tuple[int, ...]]()
        numbers = np.empty((len(delivery.kinds), 7), np.int64)
        numbers[delivery.at] = self._decoded.in_buffers(delivery.places)
        for kind, key in zip(delivery.kinds, delivery.columns, strict=True):
            if kind is None:
                add_column(self._made[key], self._num_rows, buffers, more)
                kind = kind_of(key, self._made[key])
            kinds.append(kind)
        if more:
            numbers[[number for number, kind in enumerate(delivery.kinds) if kind is None]] = more
        return ColumnBuffers(tuple(kinds), tuple(buffers), numbers, self._num_rows)


def size_bytes_of(values: BatchValues) -> int:
    """The memory of a column."""
    if isinstance(values, SharedLists):
        return values.values.nbytes + values.ranges.nbytes
    if isinstance(values, Ragged):
        return values.values.nbytes + values.offsets.nbytes
    return values.nbytes


def block_columns(
    rows: Rows, request: Request, counts: Counter[str], seconds: MutableMapping[str, float]
) -> WindowColumns:
    """The slots, labels and weight of rows that passed the filters, as arrays from which tensors
    can be made without a copy.

    Args:
        rows: The rows.
        request: What is delivered.
        counts: Where they are counted, as of `Stats`.
        seconds: Where the time that each slot's conversion takes is counted.

    Raises:
        MissingValueError: A label or the weight is null, and the request does not say what to do.
    """
    filled_lists = aligned(request.sequences, rows.slot)
    delivery = _delivery(rows, request, filled_lists)
    columns, now = dict[Key, Any](), time.perf_counter()
    filled = Counter[str](rows_decoded=rows.num_rows)
    for item in delivery.converted:
        name = item.slot.name
        if item.history:
            columns[SLOT, name] = _shaped_shared(rows.histories[name], item)
        else:
            values: Values = filled_lists[name] if name in filled_lists else rows.slot(item.slot)
            columns[SLOT, name] = writable(shaped(values, item))
        before, now = now, time.perf_counter()
        seconds[name] += now - before
    for label in request.labels:
        columns[LABEL, label.name] = writable(_number(rows, label, "label", filled))
    if request.weight is not None:
        columns[WEIGHT, request.weight.name] = writable(
            _number(rows, request.weight, "weight", filled)
        )
    if request.negatives is not None:
        key = WEIGHT, _name_of_weight(request)
        columns[key] = request.negatives.weighted(
            columns[LABEL, request.negatives.label], columns.get(key)
        )
    if request.own_item is not None:
        assert rows.positions is not None
        columns[ROW_KEY] = row_keys(rows.file_name, rows.positions)
        columns[OWN_ITEM] = writable(rows.slot(request.own_item))
    counts.update(filled)  # Nothing of rows that cannot be converted.
    return WindowColumns(rows.decoded, delivery, columns, rows.num_rows)


def _name_of_weight(request: Request) -> str:
    return "negatives" if request.weight is None else request.weight.name


def _delivery(rows: Rows, request: Request, changed: Collection[str]) -> _Delivery:
    """Which columns are delivered as they are decoded: none of those that were changed. It is the
    same for all windows of files with one schema, in which everything was decoded.
    """
    decoded = rows.decoded
    known: _Delivery | None = None if changed else decoded.plan.delivery
    if known is not None and known.request is request and decoded.is_whole:
        return known
    found, converted = dict[Key, str | None](), list[SlotRequest]()
    for item in request.slots:
        name = None if item.history else rows.columns.slots[item.slot.name]
        is_decoded = name is not None and item.is_as_stored and name in decoded
        is_decoded = is_decoded and item.slot.name not in changed
        found[SLOT, item.slot.name] = name if is_decoded else None
        converted += [] if is_decoded else [item]
    found |= {(LABEL, label.name): None for label in request.labels}
    if request.weight is not None or request.negatives is not None:
        found[WEIGHT, _name_of_weight(request)] = None
    found |= {} if request.own_item is None else {ROW_KEY: None, OWN_ITEM: None}
    names = [name for name in found.values() if name is not None]
    delivery = _Delivery(
        request=request,
        columns=found,
        places=np.array([decoded.plan.places[name] for name in names], np.int64),
        at=np.array([at for at, name in enumerate(found.values()) if name is not None], np.int64),
        kinds=[
            None if name is None else kind_of(key, decoded[name].values)
            for key, name in found.items()
        ],
        converted=tuple(converted),
    )
    if decoded and decoded.is_whole and not changed:
        decoded.plan.delivery = delivery
    return delivery


def block_extras(rows: Rows, request: Request, partition: Partition) -> pa.Table:
    """The extra columns, null where `where` sees null: at NaN, too. A partition key becomes a
    constant column.
    """
    if not request.extras:
        return NO_EXTRAS
    columns = [
        _constant(field, partition, rows.num_rows)
        if field.name in request.partition_keys
        else rows.other(field)
        for field in request.extras
    ]
    schema = without_places(pa.schema([field.remove_metadata() for field in request.extras]))
    table = pa.table([nan_to_null(column) for column in columns], schema=schema)
    return pa.table(marks_to_nulls(table, request.schema.seen).columns, schema=schema)


def null_error(
    label: LabelRequest, what: str, file_name: str, num_nulls: int, num_rows: int
) -> MissingValueError:
    """The error for nulls in a label or weight of rows that are delivered.

    Args:
        label: The label or weight.
        what: `label` or `weight`.
        file_name: The data file.
        num_nulls: In how many rows it is null.
        num_rows: How many rows.
    """
    fix = (
        f"; `{{name: {label.name}, null: drop}}` leaves such rows out, `null: 0` gives a value"
        if what == "label"
        else ""
    )
    return MissingValueError(
        f"{file_name}: {what} {label.name!r} is null in {num_nulls} of {num_rows} rows{fix}"
    )


def _without_dropped_negatives(
    rows: Rows, first_row: int, request: Request, negatives: Negatives
) -> Array:
    """Which rows are not negatives, or are kept ones: bool (num_rows,)."""
    label = next(label for label in request.labels if label.name == negatives.label)
    values, valid = scalar_floats(rows.other(label.field))
    fill = np.float32(np.nan if label.null in (RAISE, DROP) else label.null)
    is_negative = (values if valid is None else np.where(valid, values, fill)) == 0
    if negatives.column is None:
        is_kept = negatives.keeps(*position_hashes(rows.file_name, first_row, rows.num_rows))
    else:
        is_kept = negatives.keeps(hashing.value_hash(_row_ids(rows, request, negatives.column)))
    return np.where(is_negative, is_kept, True)


def _row_ids(rows: Rows, request: Request, name: str) -> pa.Array:
    """The column whose hash chooses the negatives. MissingValueError if a value is missing: all
    rows without a value have one hash, so either all of them or none would be kept.
    """
    seen = request.schema.seen
    if name in seen:
        slot = seen[name]
        column = marks_to_nulls(pa.table({name: rows.slot_column(slot)}), [slot]).column(0)
    else:
        column = rows.other(seen.to_arrow(nullable=True).field(name))
    if column.null_count:
        raise MissingValueError(
            f"{rows.file_name}: negatives.column {name!r} is missing in {column.null_count} of "
            f"{rows.num_rows} rows: leave the option out to choose rows by their positions"
        )
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _number(rows: Rows, label: LabelRequest, what: str, counts: Counter[str]) -> Array:
    values, valid = scalar_floats(rows.other(label.field))
    if valid is None:
        return values
    num_nulls = int(np.count_nonzero(~valid))
    if label.null in (RAISE, DROP):
        raise null_error(label, what, rows.file_name, num_nulls, rows.num_rows)
    counts["null_labels_filled"] += num_nulls
    return np.where(valid, values, np.float32(label.null))


def _where_table(rows: Rows, request: Request, partition: Partition) -> pa.Table:
    """The columns that `where` reads, with nulls for missing values."""
    assert request.where is not None
    columns = {slot.name: rows.slot_column(slot) for slot in request.where_slots}
    columns |= {field.name: rows.other(field) for field in request.where_others}
    for name, field in request.partition_keys.items():
        if name in request.where.columns:
            columns[name] = _constant(field, partition, rows.num_rows)
    return marks_to_nulls(pa.table(columns), request.where_slots)


def _constant(field: pa.Field, partition: Partition, num_rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(partition_value(field, partition), num_rows)])


def _shaped_shared(ranges: SharedLists, item: SlotRequest) -> SharedLists:
    """With the options of the request applied, once to each value that rows share."""
    if item.is_as_stored:
        return ranges
    values = ranges.values if item.buckets is None else bucketed(ranges.values, item.buckets)
    return SharedLists(_converted(values, item.dtype), ranges.ranges)


def shaped(values: Values, item: SlotRequest) -> Values:
    """The slot's values with the options of its request applied."""
    if isinstance(values, Ragged):
        return _shaped_lists(values, item)
    return _converted(
        values if item.buckets is None else bucketed(values, item.buckets), item.dtype
    )


def bucketed(values: Array, buckets: int) -> Array:
    """`1 + sign % (buckets - 1)`; 0 where the sign is 0, which is missing."""
    found = np.empty(values.shape, np.int64)
    kernels.bucket_ids(np.ascontiguousarray(values), buckets - 1, found)
    return found


def cut(ragged: Ragged, max_len: int, keep: str) -> Ragged:
    """The first or the last `max_len` elements of each list."""
    if keep == FIRST:
        return truncate(ragged, max_len)
    lengths = np.diff(ragged.offsets)
    kept = np.minimum(lengths, max_len)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    places = np.arange(offsets[-1]) + np.repeat(ragged.offsets[1:] - offsets[1:], kept)
    return Ragged(ragged.values[places], offsets)


def padded(
    ragged: Ragged, width: int, missing: float, keep: str = FIRST, pad_side: str = RIGHT
) -> Array:
    """Lists as a matrix (num_rows, width): the first or the last `width` elements of each, filled
    up with the missing mark on one side.
    """
    ragged = cut(ragged, width, keep)
    matrix = np.full((len(ragged), width), missing, dtype=ragged.values.dtype)
    lengths = np.diff(ragged.offsets)[:, None]
    columns = np.arange(width)
    is_value = columns < lengths if pad_side == RIGHT else columns >= width - lengths
    matrix[is_value] = ragged.values[int(ragged.offsets[0]) : int(ragged.offsets[-1])]
    return matrix


def _shaped_lists(values: Ragged, item: SlotRequest) -> Values:
    if item.max_len is not None:
        values = cut(values, item.max_len, item.keep)
    if item.buckets is not None:
        values = Ragged(bucketed(values.values, item.buckets), values.offsets)
    if item.pad is not None:
        matrix = padded(values, item.pad, item.slot.missing, item.keep, item.pad_side)
        return _converted(matrix, item.dtype)
    return Ragged(_converted(values.values, item.dtype), values.offsets)


def _converted(values: Array, dtype: str | None) -> Array:
    """The values in another dtype. The request has ensured that ids fit into int32. A float that is
    too large for float16 becomes an infinity.
    """
    if dtype is None:
        return values
    if dtype == "bfloat16":
        return bfloat16_bits(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
