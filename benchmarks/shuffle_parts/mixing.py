"""How well an order mixes rows that are stored side by side, and rows of different files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shuffle_parts.orders import Rows


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How well an order mixes.

    Attributes:
        files_in_a_batch: Of how many files a batch has rows, on average of all whole batches.
        travel_rows: How far a row is delivered from where it would be if files were read one after
            the other, in the order of their middles: the median.
        apart_rows: How far apart two rows are delivered that are stored side by side: the median.
    """

    files_in_a_batch: float
    travel_rows: int
    apart_rows: int


def mixing_of(order: Rows, sizes: Sequence[int], batch_rows: int) -> Mixing:
    """Measures an order of all rows of files of these sizes."""
    file_of_row = np.repeat(np.arange(len(sizes)), sizes)
    num_batches = len(order) // batch_rows
    batches = file_of_row[order[: num_batches * batch_rows]].reshape(num_batches, batch_rows)
    seen = np.zeros((num_batches, len(sizes)), bool)
    seen[np.arange(num_batches)[:, None], batches] = True
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ends = np.cumsum([0, *sizes])
    files = range(len(sizes))
    middles = [np.median(place[ends[file] : ends[file + 1]]) for file in files]
    in_order = np.empty(len(order), np.int64)
    first = 0
    for file in np.argsort(middles, kind="stable").tolist():
        in_order[ends[file] : ends[file + 1]] = np.arange(first, first + sizes[file])
        first += sizes[file]
    aside = np.abs(np.diff(place))[file_of_row[1:] == file_of_row[:-1]]
    return Mixing(
        files_in_a_batch=round(float(seen.sum(axis=1).mean()), 2),
        travel_rows=int(np.median(np.abs(place - in_order))),
        apart_rows=int(np.median(aside)),
    )
