"""featstore under torch's DataLoader with worker processes that persist, against the floor on as
many cores.

Floor and DataLoader run in turn in one process tree, on the same warm files; each ratio is of two
neighbouring runs. An epoch before the clock starts warms the workers up, and is what checksums are
taken of.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from loader_parts.reading import Columns, checksum, columns_of, floor, from_arrow

REQUIRED, NUM_WORKERS = 1.1, 2


def compare(
    paths: Sequence[str], columns: Sequence[str], batch_size: int, *, repeats: int
) -> dict[str, Any]:
    """The DataLoader's speed as a share of the floor's; `columns` are slots and, last, the
    label.
    """
    expected = checksum(from_arrow(floor(paths, columns, 0)))
    floors, seconds = [], []
    with batches_of(paths, columns, batch_size) as batches:
        is_equal = checksum(map(columns_of, batches)) == expected
        for _ in range(repeats):
            floors.append(_seconds(floor(paths, columns, 0)))
            seconds.append(_seconds(map(columns_of, batches)))
    ratios = [bare / own for bare, own in zip(floors, seconds, strict=True)]
    ratio = statistics.median(ratios)
    return {
        "median": round(ratio, 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "median_s": round(statistics.median(seconds), 4),
        "required": REQUIRED,
        "equal_checksums": is_equal,
        "ok": is_equal and ratio >= REQUIRED,
    }


@contextmanager
def batches_of(
    paths: Sequence[str], columns: Sequence[str], batch_size: int
) -> Iterator["DataLoader[Batch]"]:
    """Each iteration is an epoch."""
    table = str(Path(paths[0]).parent)
    with FeatureLoader(
        table, slots=columns[:-1], labels=columns[-1:], batch_size=batch_size
    ) as loader:
        batches = DataLoader(
            loader, batch_size=None, num_workers=NUM_WORKERS, persistent_workers=True
        )
        yield batches
        del batches


def _seconds(items: Iterator[Columns] | Iterator[Any]) -> float:
    started = time.perf_counter()
    for _ in items:
        pass
    return time.perf_counter() - started
