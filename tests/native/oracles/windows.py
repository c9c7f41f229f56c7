"""Windows planned by numpy: as by `kernels.plan_columns`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from featstore.base.intervals import aligned
from featstore.native.footers import Chunks
from featstore.native.format import Numbers

_LEVEL_BYTES, _INDEX_BYTES = 4, 5
_MIN_PAGE_BYTES, _MAX_RATIO = 2 << 20, 24
_CODECS = [0, 1, 6]  # none, snappy, Zstandard
_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 8 | 1 << 5 | 1 << 3 | 1 << 4
_MOST_VALUES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is planned.

    Attributes:
        num_values: The number of values of each column; -1 if it is left out.
        places: The buffer and the byte of each column's offsets, and those of its values.
        chunks: The numbers of its chunks.
        room_bytes: The working memory of a thread.
        memory_bytes: The memory of all columns.
    """

    num_values: list[int]
    places: list[tuple[int, int, int, int]]
    chunks: Numbers
    room_bytes: int
    memory_bytes: int


def planned(
    chunks: Chunks,
    widths: Numbers,
    are_lists: Sequence[bool],
    num_rows: int,
    *,
    together: bool,
    ordered: bool,
) -> Plan:
    """Plans columns, of whose chunks each attribute is (num_row_groups, num_columns)."""
    max_bytes = _max_page_bytes(chunks, widths)
    num_values, is_known = chunks.num_values.sum(axis=0), _is_known(chunks)
    sizes = [
        (4 * (num_rows + 1) * is_list * known, count * width * known)
        for is_list, known, count, width in zip(
            are_lists, is_known.tolist(), num_values.tolist(), widths.tolist(), strict=True
        )
    ]
    blocks = [aligned(offsets) + aligned(values) for offsets, values in sizes]
    firsts = np.cumsum([0, *blocks]).tolist() if together else [0] * len(blocks)
    room = _room_bytes(chunks, widths, max_bytes)
    if ordered:
        room += np.array(blocks, np.int64) + aligned(1)
    return Plan(
        num_values=np.where(is_known, num_values, -1).tolist(),
        places=[
            (0 if together else number, first, 0 if together else number, first + aligned(offsets))
            for number, (first, (offsets, _)) in enumerate(zip(firsts, sizes, strict=False))
        ],
        chunks=_numbers(chunks, max_bytes),
        room_bytes=int(room[is_known].max(initial=0)),
        memory_bytes=sum(blocks),
    )


def _max_page_bytes(chunks: Chunks, widths: Numbers) -> Numbers:
    """The most bytes that a page of each chunk may claim to decompress to."""
    text_bytes = np.maximum(chunks.raw_bytes, chunks.stored_bytes)
    needed = chunks.num_values * (widths.clip(min=_INDEX_BYTES) + _LEVEL_BYTES)
    decompressed = np.minimum(chunks.raw_bytes, _MAX_RATIO * chunks.stored_bytes)
    found: Numbers = np.where(widths == 0, text_bytes, np.maximum(needed, decompressed))
    return found.clip(min=_MIN_PAGE_BYTES)


def _is_known(chunks: Chunks) -> Numbers:
    is_known = np.isin(chunks.codec, _CODECS) & (chunks.encodings & ~_ENCODINGS == 0)
    found: Numbers = is_known.all(axis=0) & (chunks.num_values.sum(axis=0) <= _MOST_VALUES)
    return found


def _room_bytes(chunks: Chunks, widths: Numbers, max_bytes: Numbers) -> Numbers:
    """The bytes of each column's largest chunk as stored, then its decompressed dictionary and one
    decompressed page at a time.
    """
    decompressed = np.minimum(chunks.raw_bytes, chunks.num_values * widths + max_bytes)
    found: Numbers = (chunks.stored_bytes + decompressed).max(axis=0, initial=0)
    return found


def _numbers(chunks: Chunks, max_bytes: Numbers) -> Numbers:
    numbers = (chunks.first, chunks.stored_bytes, chunks.codec, chunks.num_values, max_bytes)
    return np.stack(numbers, axis=-1).swapaxes(0, 1)
