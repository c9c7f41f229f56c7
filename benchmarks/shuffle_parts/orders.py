"""The orders in which peers would deliver the rows of the same files, simulated from what they
document. Rows are numbered in the order in which they are stored.

- Buffer: `tf.data.Dataset.shuffle` (its API documentation: a buffer is filled, a random element of
  it is taken and replaced by the next one) and `IterableDataset.shuffle` of Hugging Face datasets
  (its documentation says the same). The order of files is shuffled before.
- `tf.data.Dataset.interleave(cycle_length, block_length)`: so many files are open, which give a
  block of rows in turn; one that ends is replaced by the next.
- Several inputs of Hugging Face datasets 5 (`max_buffer_input_shards`, pull request 8194 of
  huggingface/datasets): files are dealt out to so many sources, which give a row in turn.
- `py1e` of MosaicML Streaming (docs.mosaicml.com, "Shuffling"): shards are shuffled, and each row of
  a shard is moved by a uniform distance, so that the rows of a shard lie in a range of
  `shuffle_block_size` rows, give or take a quarter; one canonical node.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Random = np.random.Generator


def stored(sizes: Sequence[int]) -> list[Rows]:
    """The rows of each file."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(ends[number], ends[number + 1]) for number in range(len(sizes))]


def shuffled(items: Sequence[Rows], random: Random) -> list[Rows]:
    """The items in another order."""
    return [items[number] for number in random.permutation(len(items))]


def one_after_the_other(items: Sequence[Rows]) -> Rows:
    return np.concatenate(list(items))


def buffered(rows: Rows, buffer_rows: int, random: Random) -> Rows:
    """What comes out of a shuffle buffer into which the rows go."""
    order, buffer = np.empty_like(rows), rows[:buffer_rows].copy()
    places = random.integers(0, len(buffer), len(rows)).tolist()
    held: list[Any] = buffer.tolist()
    for number, row in enumerate(rows[buffer_rows:].tolist()):
        place = places[number]
        order[number] = held[place]
        held[place] = row
    order[len(rows) - len(held) :] = random.permutation(np.array(held, np.int64))
    return order


def interleaved(files: Sequence[Rows], cycle_length: int, block_length: int = 1) -> Rows:
    """Blocks of the open files in turn."""
    waiting, found = deque(files), list[Rows]()
    open_files = [(waiting.popleft(), 0) for _ in range(min(cycle_length, len(files)))]
    while open_files:
        # As many whole turns as all open files have, at once; then the one that ends is replaced.
        turns = max(1, min((len(rows) - at) // block_length for rows, at in open_files))
        blocks = [rows[at : at + turns * block_length] for rows, at in open_files]
        if all(len(block) == turns * block_length for block in blocks):
            stacked = [block.reshape(turns, block_length) for block in blocks]
            found.append(np.concatenate(stacked, axis=1).reshape(-1))
        else:
            found += blocks
        open_files = [(rows, at + turns * block_length) for rows, at in open_files]
        open_files = [
            (rows, at) if at < len(rows) else (waiting.popleft(), 0)
            for rows, at in open_files
            if at < len(rows) or waiting
        ]
    return np.concatenate(found)


def dealt(files: Sequence[Rows], num_sources: int) -> Rows:
    """A row of each source in turn, of sources to which the files are dealt out."""
    count = min(num_sources, len(files))
    sources = [one_after_the_other(files[number::count]) for number in range(count)]
    return interleaved(sources, count)


def spread(shards: Sequence[Rows], block_rows: int, random: Random) -> Rows:
    """`py1e`: each row of a shard is moved within a range of about `block_rows` rows."""
    num_rows = sum(map(len, shards))
    places, rows, first = np.arange(num_rows, dtype=np.float64), list[Rows](), 0
    for shard in shards:
        block = random.uniform(0.75, 1.25) * block_rows
        most = max(0.0, (block - len(shard)) / 2)
        low, high = max(-most, -first), min(most, num_rows - first - len(shard))
        places[first : first + len(shard)] += random.uniform(low, high, len(shard))
        rows.append(random.permutation(shard))
        first += len(shard)
    return one_after_the_other(rows)[np.argsort(places, kind="stable")]
