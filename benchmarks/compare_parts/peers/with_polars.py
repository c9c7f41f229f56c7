"""polars: batches of a streaming query. To shuffle, the table is sampled in memory."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


class Reader:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[dict[str, Any]]:
        job = self._job
        rows = pl.scan_parquet(job.own_files).select(job.columns)
        if job.shuffle:
            mixed = rows.collect().sample(fraction=1.0, shuffle=True)
            frames = mixed.iter_slices(job.batch_size)
        else:
            frames = rows.collect_batches(chunk_size=job.batch_size)
        for frame in frames:
            yield to_tensors(frame.to_arrow())
