"""pyarrow: the scanner of a dataset, which reads ahead in its threads. Only files are shuffled."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow.dataset

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


class Reader:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[dict[str, Any]]:
        files, job = list(self._job.own_files), self._job
        if job.shuffle:
            random.shuffle(files)
        scanned = pyarrow.dataset.dataset(files)
        for batch in scanned.to_batches(columns=job.columns, batch_size=job.batch_size):
            yield to_tensors(batch)
