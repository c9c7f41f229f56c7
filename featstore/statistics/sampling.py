"""A random sample of a file's rows, drawn by a hash of the row's number. It does not depend on how
the rows are divided into batches.

Hence two samples that see the same rows, one with raw columns and one with slots, select the same
rows.
"""

import numpy as np
import pyarrow as pa

from featstore.statistics.sketches import Integers, mix

# The least number of rows sampled from a larger file. More rows make quantiles and top values more
# precise, and gathering slower.
SAMPLE_ROWS = 2_048
_ALL = 1 << 63  # above every 63-bit hash


class RowSample:
    """A sample of between `SAMPLE_ROWS` and twice as many rows, or of all rows if there are fewer.

    It holds the rows whose hash is below a bound, which is halved whenever the sample is too large.

    Attributes:
        batches: The sampled rows.
        num_rows_seen: The number of rows passed to `update`.
    """

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.num_rows_seen = 0
        self._hashes: list[Integers] = []
        self._bound = _ALL

    def update(self, batch: pa.RecordBatch) -> None:
        """Samples the next rows."""
        first = self.num_rows_seen + 1
        self.num_rows_seen += batch.num_rows
        hashes = mix(np.arange(first, self.num_rows_seen + 1, dtype=np.int64))
        all_hashes = [*self._hashes, hashes]
        before = self._bound
        while sum(int(np.count_nonzero(h < self._bound)) for h in all_hashes) > 2 * SAMPLE_ROWS:
            self._bound //= 2
        pairs = list(zip([*self.batches, batch], all_hashes, strict=True))
        # Unless the bound has changed, the earlier batches are sampled already.
        num_done = len(pairs) - 1 if self._bound == before else 0
        drawn = [_below(rows, of_rows, self._bound) for rows, of_rows in pairs[num_done:]]
        self.batches, self._hashes = map(list, zip(*pairs[:num_done], *drawn, strict=True))


def _below(batch: pa.RecordBatch, hashes: Integers, bound: int) -> tuple[pa.RecordBatch, Integers]:
    """The rows whose hashes are below the bound, and these hashes."""
    if bound >= _ALL:
        return batch, hashes
    kept = np.flatnonzero(hashes < bound)
    # `pa.array` of a numpy array would import pandas.
    indices = pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)])
    return batch.take(indices), hashes[kept]
