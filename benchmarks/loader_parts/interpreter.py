"""The share of an epoch's CPU time that the interpreter and numpy take, in all threads.

Epochs give batches whose columns nobody asks for. What it takes to make the tensors of all columns
is told apart, as the training loop asks for them.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from loader_parts.profile import library_of, part_of, reported, shares_of
from loader_parts.reading import columns_of


def interpreter_share(
    table: Snapshot,
    columns: Sequence[str],
    *,
    batch_size: int,
    shuffle_rows: int | None,
    most: float,
    cpu_s: float,
) -> dict[str, Any]:
    """The share, and the CPU time by library and by part.

    Args:
        table: What is read.
        columns: Slots and, last, the label.
        batch_size: Rows of a batch.
        shuffle_rows: Rows of a window, or None for the order of the files.
        most: What the share may be.
        cpu_s: CPU seconds that the profile looks at. Of 4, with 1,000 samples each, a
            share of 10 % has a standard deviation of half a percent.
    """
    shuffle = None if shuffle_rows is None else {"window_rows": shuffle_rows}
    made = partial(
        FeatureLoader,
        table,
        slots=columns[:-1],
        labels=columns[-1:],
        batch_size=batch_size,
        shuffle=shuffle,
    )
    with made() as loader:
        tensors = [tensors_share(loader) for _ in range(2)][-1]  # The first epoch warms up.
    # Another one: where a loop has asked for tensors, they are made ahead of it from then on.
    with made() as loader:
        return {
            **judged(reported(lambda: iter(loader), cpu_s), most),
            "tensors": tensors,
        }


def judged(report: Sequence[str] | str, most: float) -> dict[str, Any]:
    """The share of a report of perf, and by library and part. What was not measured is not met."""
    libraries = report if isinstance(report, str) else shares_of(report, library_of)
    if isinstance(libraries, str):
        return {"share": None, "not_measured": libraries, "most": most, "ok": False}
    share = round(libraries.get("interpreter", 0.0) + libraries.get("numpy", 0.0), 3)
    parts = shares_of(report, part_of)
    return {
        "share": share,
        "most": most,
        "libraries": libraries,
        "parts": parts,
        "ok": share <= most,
    }


def tensors_share(loader: FeatureLoader) -> float:
    """What making all tensors takes of the CPU time of an epoch that makes them."""
    spent_s, started = 0.0, time.process_time()
    for batch in loader:
        asked = time.thread_time()
        columns_of(batch)
        spent_s += time.thread_time() - asked
    return round(spent_s / (time.process_time() - started), 3)
