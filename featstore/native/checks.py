"""Checks of a footer's row groups and column chunks, before anything relies on them.

The kernels check all chunks in one pass; what is wrong gets its words here. Arrow never sees a
footer that fails a check: it would abort the process for some, and take long or allocate much
memory for others.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from featstore.native import kernels
from featstore.native.file_schema import FileSchema
from featstore.native.format import ABSENT, CHUNKS, FILE, ROW_GROUPS, SLOTS, FooterError, Numbers

CHUNK, ROW_GROUP, _FILE = SLOTS[CHUNKS], SLOTS[ROW_GROUPS], SLOTS[FILE]
# The bytes of a value in statistics, by physical type; 0 for any length.
_WIDTHS = np.array([1, 4, 8, 0, 4, 8, 0, 0], np.int64)
# The numbers that are taken of each chunk beside its first byte and end; then others that checks
# need. In the order of `chunk_checks.h`.
TAKEN = ("codec", "encodings", "num_values", "stored_bytes", "raw_bytes")
_OTHERS = (
    *("data_page", "dictionary_page", "num_nulls"),
    *("num_repetition_counts", "num_definition_counts"),
)
_IN_GROUP = [ROW_GROUP["num_rows"], ROW_GROUP["columns.count"]]
LAYOUT = np.array([*_IN_GROUP, *(CHUNK[name] for name in (*TAKEN, *_OTHERS))], np.int64)
# What `kernels.check_chunks` finds wrong with the row groups; what is wrong with a chunk follows.
_FEWER_THAN_NO_ROWS, _OTHER_ROWS, _OTHER_CHUNKS, _OF_CHUNK = 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _SlotRange:
    """The allowed values of a slot of a column chunk: from `low` to `high`, or absent if
    `may_lack`.
    """

    expected: str
    low: int = ABSENT
    high: int = 2**63 - 1
    may_lack: bool = False


_NO_ENCRYPTION = _SlotRange(expected="no encryption, which is not read here", high=ABSENT)
_INSIDE = "pages that lie before the footer"
# Ranges that depend on the column or the file have only their text here; `bounds` fills them in.
_RANGES = {
    "file_path": _SlotRange(expected="no path of another file", high=ABSENT),
    "encryption": _NO_ENCRYPTION,
    "encrypted_bytes": _NO_ENCRYPTION,
    "column_end": _SlotRange(expected="metadata of the column chunk", low=0),
    "type": _SlotRange(expected="the schema's physical type"),
    "codec": _SlotRange(expected="a codec of 0 to 7", low=0, high=7),
    "encodings": _SlotRange(expected="encodings of 0 to 9", low=0, high=(2 << 9) - 1),
    "num_values": _SlotRange(expected="0 values or more", low=0),
    "raw_bytes": _SlotRange(expected="0 uncompressed bytes or more", low=0),
    "stored_bytes": _SlotRange(expected="0 compressed bytes or more", low=0),
    "data_page": _SlotRange(expected=_INSIDE, low=0),
    "dictionary_page": _SlotRange(expected=_INSIDE, low=0, may_lack=True),
    "old_max": _SlotRange(expected="a bound as long as a value", may_lack=True),
    "old_min": _SlotRange(expected="a bound as long as a value", may_lack=True),
    "max": _SlotRange(expected="a bound as long as a value", may_lack=True),
    "min": _SlotRange(expected="a bound as long as a value", may_lack=True),
}
OF_RANGES = np.array([(CHUNK[name], of.may_lack) for name, of in _RANGES.items()], np.int64)
_PLACES, _COUNTS = _OTHERS[:2], _OTHERS[3:]
# The checks of a chunk that come after the ranges: what was expected, and the slots in which it is
# found, of which the largest is told.
_FURTHER = (
    ("pages in the {end} bytes before the footer", (*_PLACES, "stored_bytes")),
    ("pages that end by byte {end}, where the footer begins", ()),
    ("a value for each row, and more only in lists", ("num_values",)),
    ("no more nulls than values", ("num_nulls",)),
    ("a count for each level, or none", _COUNTS),
)


def checked_chunks(tables: tuple[Numbers, ...], schema: FileSchema, end: int) -> Numbers:
    """The numbers of the column chunks of each row group, after all checks.

    Args:
        tables: The tables of `walk`.
        schema: The schema of the file.
        end: The byte of the file at which the footer begins.

    Returns:
        int64 (num_row_groups, num_leaves, 7): those of `TAKEN`, the first byte and the end. A
        number of values or bytes is at most 2^48.

    Raises:
        FooterError: A number is impossible. The message names column, row group, what was expected
            and what was found.
    """
    groups, chunks, num_leaves = tables[ROW_GROUPS], tables[CHUNKS], len(schema.leaves)
    taken = np.empty((len(groups), num_leaves, len(TAKEN) + 2), np.int64)
    low, high = bounds(schema)
    num_rows, of = int(tables[FILE][0, _FILE["num_rows"]]), (len(ROW_GROUP), len(CHUNK))
    wrong, group, leaf = kernels.check_chunks(
        groups, chunks, *of, LAYOUT, OF_RANGES, low, high, schema.levels, num_rows, end, taken
    )
    if not wrong:
        return taken
    rows = groups[:, ROW_GROUP["num_rows"]].tolist()
    if wrong == _FEWER_THAN_NO_ROWS:
        raise FooterError(f"row group {group}: expected 0 rows or more, found {rows[group]}")
    if wrong == _OTHER_ROWS:
        # Python's sum, since the sum of damaged numbers may not fit 64 bits.
        raise FooterError(f"expected {num_rows} rows in all row groups, found {sum(rows)}")
    if wrong == _OTHER_CHUNKS:
        found = groups[group, ROW_GROUP["columns.count"]]
        raise FooterError(f"row group {group}: expected {num_leaves} column chunks, found {found}")
    expected, found = _told(wrong - _OF_CHUNK, chunks[group * num_leaves + leaf], end)
    raise FooterError(
        f"column {schema.leaves[leaf].path!r}: row group {group}: expected {expected}, "
        f"found {'none' if found == ABSENT else found}"
    )


def _told(check: int, chunk: Numbers, end: int) -> tuple[str, int]:
    """What a check of a chunk expected, and what it found."""
    if check < len(_RANGES):
        name, of = list(_RANGES.items())[check]
        return of.expected, int(chunk[CHUNK[name]])
    expected, names = _FURTHER[check - len(_RANGES)]
    if names:
        return expected.format(end=end), max(int(chunk[CHUNK[name]]) for name in names)
    data, dictionary, stored = (int(chunk[CHUNK[name]]) for name in (*_PLACES, "stored_bytes"))
    first = min(data, dictionary) if dictionary > 0 else data
    return expected.format(end=end), first + stored


@lru_cache(maxsize=8)
def bounds(schema: FileSchema) -> tuple[Numbers, Numbers]:
    """The least and the greatest value of each range, int64 (num_leaves, num_ranges) each."""
    physical = schema.levels[0]
    widths = _WIDTHS[physical]
    low, high = (
        np.tile(
            np.array([getattr(of, name) for of in _RANGES.values()], np.int64), (len(widths), 1)
        )
        for name in ("low", "high")
    )
    for range_, name in enumerate(_RANGES):
        if name == "type":
            low[:, range_] = high[:, range_] = physical
        elif name in ("old_max", "old_min", "max", "min"):
            low[:, range_] = widths
            high[:, range_] = np.where(widths > 0, widths, 2**63 - 1)
    return low, high
