"""What numpy and Python make of a slot's values: counts, marks and sketches."""

from typing import Any

import numpy as np

from featstore.extraction.units.encoding import MARK_BITS
from featstore.statistics.sketches import NUM_BITS, Distinct, Integers, mix
from tests.native.oracles.xxh64 import mark_of


def count_marks(values: Any) -> int:
    """As `featstore.native.kernels.count_marks`, of int64 or float32."""
    words = values.view(f"u{values.itemsize}").tolist()
    return len({mark_of(word, MARK_BITS) for word in words})


def take(sketch: Distinct, values: Any) -> int:
    """As `Distinct.update`."""
    is_sign = values.dtype == np.int64
    missing = values == 0 if is_sign else np.isnan(values)
    known = values[~missing]
    hashes = known if is_sign else mix(known.view(np.int32).astype(np.int64))
    sketch.bits[hashes & (NUM_BITS - 1)] = True
    sketch._keep(hashes[hashes < sketch._bound()])
    return int(np.count_nonzero(missing))


def count_ids(
    values: Integers, weights: Integers, table: Integers, num_known: int, firsts: Integers
) -> tuple[int, int, int]:
    """As `featstore.native.kernels.count_ids`."""
    ids, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    known = np.isin(ids, table[:, 0]) | (ids == 0)
    new = np.sort(first[~known])
    room = max(0, len(table) // 2 - num_known)
    num_read = int(new[room]) if len(new) > room else len(values)
    totals = np.zeros(len(ids), np.int64)
    np.add.at(totals, inverse[:num_read], weights[:num_read] if len(weights) else 1)
    for index in np.unique(inverse[:num_read]):
        if ids[index]:
            at = _place(table, int(ids[index]))
            table[at] = ids[index], table[at, 1] + totals[index]
    num_new = min(room, len(new))
    firsts[:num_new] = new[:num_new]
    return num_known + num_new, num_read, num_new


def _place(table: Integers, value: int) -> int:
    """Where an id is in the table, or belongs."""
    at = value % len(table)
    while table[at, 0] not in (0, value):
        at = (at + 1) % len(table)
    return at
