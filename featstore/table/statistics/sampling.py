"""A sample of a file's rows, drawn by a hash of the row's number: equal input gives equal samples,
however it is cut.

Two samples that see the same rows, one of the raw columns and one of the slots, hold the same rows.
"""

import numpy as np
import pyarrow as pa

from featstore.table.statistics.sketches import Integers, mix

SAMPLE_ROWS = 2_048
_ALL = 1 << 63


class RowSample:
    """All rows up to twice `SAMPLE_ROWS`; of more rows those whose hash is below a bound that is
    halved again and again.
    """

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.num_rows_seen = 0
        self._hashes: list[Integers] = []
        self._bound = _ALL

    @property
    def weight(self) -> float:
        """How many rows each row of the sample stands for."""
        return _ALL / self._bound

    def update(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows."""
        first = self.num_rows_seen + 1
        self.num_rows_seen += batch.num_rows
        hashes = mix(np.arange(first, self.num_rows_seen + 1, dtype=np.int64))
        everything = [*self._hashes, hashes]
        before = self._bound
        while sum(int(np.count_nonzero(one < self._bound)) for one in everything) > 2 * SAMPLE_ROWS:
            self._bound //= 2
        known = (
            zip([*self.batches, batch], everything, strict=True)
            if self._bound < before
            else [(batch, hashes)]
        )
        drawn = [_below(one, its, self._bound) for one, its in known]
        kept = [] if self._bound < before else list(zip(self.batches, self._hashes, strict=True))
        self.batches, self._hashes = map(list, zip(*kept, *drawn, strict=True))


def _below(batch: pa.RecordBatch, hashes: Integers, bound: int) -> tuple[pa.RecordBatch, Integers]:
    """The rows whose hashes are below the bound."""
    if bound >= _ALL:
        return batch, hashes
    kept = np.flatnonzero(hashes < bound)
    # `pa.array` of a numpy array would import pandas.
    return batch.take(
        pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)])
    ), hashes[kept]
