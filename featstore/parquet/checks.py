"""What must hold of a footer's row groups and column chunks, before anybody relies on it.

Each check is over all chunks at once. Arrow is never shown what breaks one of them: it ends the
process for some, and reads on for a long time, or asks for much memory, for others.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from featstore.parquet.file_schema import Layout
from featstore.parquet.format import ABSENT, CHUNKS, FILE, ROW_GROUPS, SLOTS, Numbers
from featstore.parquet.walk import FooterError

CHUNK, ROW_GROUP, _FILE = SLOTS[CHUNKS], SLOTS[ROW_GROUPS], SLOTS[FILE]
# Bytes of a value in statistics, by physical type; 0 where they may be of any length.
_WIDTHS = np.array([1, 4, 8, 0, 4, 8, 0, 0], np.int64)

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Range:
    """What a number of a column chunk may be: from `low` to `high`, or absent where it
    `may_lack`."""

    expected: str
    low: int = ABSENT
    high: int = 2**63 - 1
    may_lack: bool = False


_NO_ENCRYPTION = _Range(expected="no encryption, which is not read here", high=ABSENT)
_INSIDE = "pages that lie before the footer"
# Of what depends on the column or the file only the text is told here.
_RANGES = {
    "file_path": _Range(expected="no path of another file", high=ABSENT),
    "encryption": _NO_ENCRYPTION,
    "encrypted_bytes": _NO_ENCRYPTION,
    "column_end": _Range(expected="metadata of the column chunk", low=0),
    "type": _Range(expected="the schema's physical type"),
    "codec": _Range(expected="a codec of 0 to 7", low=0, high=7),
    "encodings": _Range(expected="encodings of 0 to 9", low=0, high=(2 << 9) - 1),
    "num_values": _Range(expected="0 values or more", low=0),
    "raw_bytes": _Range(expected="0 uncompressed bytes or more", low=0),
    "stored_bytes": _Range(expected="0 compressed bytes or more", low=0),
    "data_page": _Range(expected=_INSIDE, low=0),
    "dictionary_page": _Range(expected=_INSIDE, low=0, may_lack=True),
    "old_max": _Range(expected="a bound as long as a value", may_lack=True),
    "old_min": _Range(expected="a bound as long as a value", may_lack=True),
    "max": _Range(expected="a bound as long as a value", may_lack=True),
    "min": _Range(expected="a bound as long as a value", may_lack=True),
}
_MAY_LACK = np.array([_RANGES[n].may_lack if n in _RANGES else True for n in CHUNK], bool)
_LOW = np.array([_RANGES[n].low if n in _RANGES else ABSENT for n in CHUNK], np.int64)
_HIGH = np.array([_RANGES[n].high if n in _RANGES else 2**63 - 1 for n in CHUNK], np.int64)


def checked_chunks(tables: tuple[Numbers, ...], layout: Layout, end: int) -> Numbers:
    """The column chunks of each row group, int64 (num_row_groups, num_leaves, num_slots).

    Args:
        tables: as `walk` finds them.
        end: the file's bytes before the footer, where all chunks are.

    Raises:
        FooterError: for numbers that cannot be; it names column, row group, expected and found.
    """
    groups, num_leaves = tables[ROW_GROUPS], len(layout.leaves)
    _check_rows(tables[FILE][0], groups)
    counts = groups[:, ROW_GROUP["columns.count"]]
    if (counts != num_leaves).any():
        index = int(np.argmax(counts != num_leaves))
        expected = f"expected {num_leaves} column chunks"
        raise FooterError(f"row group {index}: {expected}, found {counts[index]}")
    chunks = tables[CHUNKS].reshape(len(groups), num_leaves, len(CHUNK))
    _check_ranges(chunks, layout)
    _check_places(chunks, layout, end)
    _check_counts(chunks, layout, groups[:, ROW_GROUP["num_rows"], None])
    return chunks


def spans(chunks: Numbers) -> Numbers:
    """First byte and end of each chunk, its dictionary page, where it has one, first: (..., 2)."""
    data, dictionary = chunks[..., CHUNK["data_page"]], chunks[..., CHUNK["dictionary_page"]]
    first = np.where(dictionary > 0, np.minimum(data, dictionary), data)
    return np.stack([first, first + chunks[..., CHUNK["stored_bytes"]]], axis=-1)


def _check_rows(file: Numbers, groups: Numbers) -> None:
    rows, said = groups[:, ROW_GROUP["num_rows"]].tolist(), int(file[_FILE["num_rows"]])
    index = next((index for index, num_rows in enumerate(rows) if num_rows < 0), None)
    if index is not None:
        raise FooterError(f"row group {index}: expected 0 rows or more, found {rows[index]}")
    if sum(rows) != said:  # Python's sum: the damaged numbers need not fit 64 bits together
        raise FooterError(f"expected {said} rows in all row groups, found {sum(rows)}")


def _require(is_met: Flags, layout: Layout, expected: str, found: Numbers) -> None:
    """FooterError for the first row group and leaf column of which it is not met."""
    if is_met.all():
        return
    group, place = (int(index) for index in np.argwhere(~is_met)[0])
    number = int(np.broadcast_to(found, is_met.shape)[group, place])
    raise FooterError(
        f"column {layout.leaves[place].path!r}: row group {group}: expected {expected}, "
        f"found {'none' if number == ABSENT else number}"
    )


@lru_cache(maxsize=8)
def _ranges(layout: Layout) -> tuple[Numbers, Numbers]:
    """The least and the largest number of each slot, int64 (num_leaves, num_slots) each."""
    low, high = (np.tile(of, (len(layout.leaves), 1)) for of in (_LOW, _HIGH))
    physical = layout.levels[0]
    low[:, CHUNK["type"]] = high[:, CHUNK["type"]] = physical
    widths = _WIDTHS[physical]
    for name in ("old_max", "old_min", "max", "min"):
        low[:, CHUNK[name]] = widths
        high[:, CHUNK[name]] = np.where(widths > 0, widths, 2**63 - 1)
    return low, high


def _check_ranges(chunks: Numbers, layout: Layout) -> None:
    low, high = _ranges(layout)
    is_met = ((chunks >= low) & (chunks <= high)) | ((chunks == ABSENT) & _MAY_LACK)
    if is_met.all():
        return
    for name, range_ in _RANGES.items():
        slot = CHUNK[name]
        _require(is_met[..., slot], layout, range_.expected, chunks[..., slot])


def _check_places(chunks: Numbers, layout: Layout, end: int) -> None:
    """Whether each chunk lies before the footer, which begins at byte `end`."""
    where = [CHUNK[name] for name in ("data_page", "dictionary_page", "stored_bytes")]
    numbers = chunks[..., where]
    largest = numbers.max(axis=-1)
    _require(largest <= end, layout, f"pages in the {end} bytes before the footer", largest)
    last = spans(chunks)[..., 1]
    _require(last <= end, layout, f"pages that end by byte {end}, where the footer begins", last)


def _check_counts(chunks: Numbers, layout: Layout, rows: Numbers) -> None:
    """Values for the rows, nulls among the values, and counts of levels for the levels there
    are."""
    values, nulls = chunks[..., CHUNK["num_values"]], chunks[..., CHUNK["num_nulls"]]
    is_met = (values == rows) | ((layout.levels[1] > 0) & (values > rows))
    _require(is_met, layout, "a value for each row, and more only in lists", values)
    _require(nulls <= values, layout, "no more nulls than values", nulls)
    counts = chunks[..., [CHUNK["num_repetition_counts"], CHUNK["num_definition_counts"]]]
    is_met = (counts <= 0) | (counts == layout.levels[1:].T + 1)
    _require(is_met.all(axis=-1), layout, "a count for each level, or none", counts.max(axis=-1))
