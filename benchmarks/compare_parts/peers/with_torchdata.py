"""torchdata's nodes: row groups are read by a parallel mapper's threads. Only row groups are
shuffled.
"""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from torchdata import nodes

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


class Reader:
    def __init__(self, job: Job) -> None:
        self._job = job
        groups = [
            (path, number)
            for path in job.own_files
            for number in range(pq.read_metadata(path).num_row_groups)
        ]
        if job.shuffle:
            random.Random(0).shuffle(groups)
        source = nodes.IterableWrapper(groups)
        read = nodes.ParallelMapper(source, self._batches, num_workers=job.num_cores)
        self._loader = nodes.Loader(nodes.Prefetcher(nodes.Unbatcher(read), 4))

    def _batches(self, group: tuple[str, int]) -> list[dict[str, Any]]:
        path, number = group
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(number, columns=self._job.columns, use_threads=False)
        return [to_tensors(one) for one in table.to_batches(self._job.batch_size)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._loader)

    def state_dict(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: list[Any]) -> None:
        self._loader.load_state_dict(states[self._job.rank])
