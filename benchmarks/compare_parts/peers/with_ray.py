"""Ray Data: blocks are read by tasks, and batches are cut of them in this process."""

from collections.abc import Iterator
from typing import Any

import ray

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


def _rows(job: Job) -> Any:
    # Listing and reading are tasks of their own, so one CPU would let them wait for each other.
    ray.init(num_cpus=max(2, job.num_cores), include_dashboard=False, log_to_driver=False)
    return ray.data.read_parquet(
        job.files, columns=job.columns, shuffle="files" if job.shuffle else None
    )


class Reader:
    def __init__(self, job: Job, rows: Any = None) -> None:
        self._job, self._rows = job, rows or _rows(job)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._rows.iter_batches(
            batch_size=self._job.batch_size,
            batch_format="pyarrow",
            prefetch_batches=4,
            local_shuffle_buffer_size=16_384 if self._job.shuffle else None,
        )
        return map(to_tensors, batches)


def readers(job: Job) -> list[Reader]:
    """Those of all ranks, which take blocks when they need them."""
    return [Reader(job, rows) for rows in _rows(job).streaming_split(job.num_ranks)]
