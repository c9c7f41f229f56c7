"""Checks of a footer's column chunks by numpy, each over all chunks: what the kernel does in one pass."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from featstore.native.checks import _RANGES, _WIDTHS, CHUNK, ROW_GROUP, TAKEN
from featstore.native.file_schema import FileSchema
from featstore.native.format import ABSENT, CHUNKS, FILE, ROW_GROUPS, SLOTS, FooterError, Numbers

_FILE, _MOST = SLOTS[FILE], 1 << 48
_COUNTS = [TAKEN.index(name) for name in ("num_values", "stored_bytes", "raw_bytes")]
_MAY_LACK = np.array([_RANGES[n].may_lack if n in _RANGES else True for n in CHUNK], bool)
_LOW = np.array([_RANGES[n].low if n in _RANGES else ABSENT for n in CHUNK], np.int64)
_HIGH = np.array([_RANGES[n].high if n in _RANGES else 2**63 - 1 for n in CHUNK], np.int64)


Flags = npt.NDArray[np.bool_]


def checked_chunks(tables: tuple[Numbers, ...], schema: FileSchema, end: int) -> Numbers:
    """As of `featstore.native.checks`."""
    groups, num_leaves = tables[ROW_GROUPS], len(schema.leaves)
    _check_rows(tables[FILE][0], groups)
    counts = groups[:, ROW_GROUP["columns.count"]]
    if (counts != num_leaves).any():
        index = int(np.argmax(counts != num_leaves))
        expected = f"expected {num_leaves} column chunks"
        raise FooterError(f"row group {index}: {expected}, found {counts[index]}")
    chunks = tables[CHUNKS].reshape(len(groups), num_leaves, len(CHUNK))
    _check_ranges(chunks, schema)
    _check_places(chunks, schema, end)
    _check_counts(chunks, schema, groups[:, ROW_GROUP["num_rows"], None])
    taken = chunks[..., [CHUNK[name] for name in TAKEN]]
    taken[..., _COUNTS] = taken[..., _COUNTS].clip(max=_MOST)
    return np.concatenate([taken, spans(chunks)], axis=-1)


def spans(chunks: Numbers) -> Numbers:
    """The first byte and the end of each chunk, int64 (..., 2). A dictionary page comes first."""
    data, dictionary = chunks[..., CHUNK["data_page"]], chunks[..., CHUNK["dictionary_page"]]
    first = np.where(dictionary > 0, np.minimum(data, dictionary), data)
    return np.stack([first, first + chunks[..., CHUNK["stored_bytes"]]], axis=-1)


def _check_rows(file: Numbers, groups: Numbers) -> None:
    rows, expected = groups[:, ROW_GROUP["num_rows"]].tolist(), int(file[_FILE["num_rows"]])
    index = next((index for index, num_rows in enumerate(rows) if num_rows < 0), None)
    if index is not None:
        raise FooterError(f"row group {index}: expected 0 rows or more, found {rows[index]}")
    # Python's sum, since the sum of damaged numbers may not fit 64 bits.
    if sum(rows) != expected:
        raise FooterError(f"expected {expected} rows in all row groups, found {sum(rows)}")


def _require(is_met: Flags, schema: FileSchema, expected: str, found: Numbers) -> None:
    """FooterError for the first row group and leaf column for which the condition is not met."""
    if is_met.all():
        return
    group, leaf = (int(index) for index in np.argwhere(~is_met)[0])
    number = int(np.broadcast_to(found, is_met.shape)[group, leaf])
    raise FooterError(
        f"column {schema.leaves[leaf].path!r}: row group {group}: expected {expected}, "
        f"found {'none' if number == ABSENT else number}"
    )


@lru_cache(maxsize=8)
def _ranges(schema: FileSchema) -> tuple[Numbers, Numbers]:
    """The least and the greatest value of each slot, int64 (num_leaves, num_slots) each."""
    low, high = (np.tile(of, (len(schema.leaves), 1)) for of in (_LOW, _HIGH))
    physical = schema.levels[0]
    low[:, CHUNK["type"]] = high[:, CHUNK["type"]] = physical
    widths = _WIDTHS[physical]
    for name in ("old_max", "old_min", "max", "min"):
        low[:, CHUNK[name]] = widths
        high[:, CHUNK[name]] = np.where(widths > 0, widths, 2**63 - 1)
    return low, high


def _check_ranges(chunks: Numbers, schema: FileSchema) -> None:
    low, high = _ranges(schema)
    # One comparison of all slots. They are looked at one by one only to name the first that fails.
    is_met = ((chunks >= low) & (chunks <= high)) | ((chunks == ABSENT) & _MAY_LACK)
    if is_met.all():
        return
    for name, range_ in _RANGES.items():
        slot = CHUNK[name]
        _require(is_met[..., slot], schema, range_.expected, chunks[..., slot])


def _check_places(chunks: Numbers, schema: FileSchema, end: int) -> None:
    """Checks that each chunk lies before the footer, which begins at byte `end`.

    Each number alone is checked first, so that their sums cannot overflow.
    """
    where = [CHUNK[name] for name in ("data_page", "dictionary_page", "stored_bytes")]
    numbers = chunks[..., where]
    largest = numbers.max(axis=-1)
    _require(largest <= end, schema, f"pages in the {end} bytes before the footer", largest)
    last = spans(chunks)[..., 1]
    _require(last <= end, schema, f"pages that end by byte {end}, where the footer begins", last)


def _check_counts(chunks: Numbers, schema: FileSchema, rows: Numbers) -> None:
    """Checks the numbers of values against those of rows, nulls against values, and counts of
    levels against levels.
    """
    values, nulls = chunks[..., CHUNK["num_values"]], chunks[..., CHUNK["num_nulls"]]
    # A column with a repetition level is a list, which has at least one level per row.
    is_met = (values == rows) | ((schema.levels[1] > 0) & (values > rows))
    _require(is_met, schema, "a value for each row, and more only in lists", values)
    _require(nulls <= values, schema, "no more nulls than values", nulls)
    counts = chunks[..., [CHUNK["num_repetition_counts"], CHUNK["num_definition_counts"]]]
    is_met = (counts <= 0) | (counts == schema.levels[1:].T + 1)
    _require(is_met.all(axis=-1), schema, "a count for each level, or none", counts.max(axis=-1))
