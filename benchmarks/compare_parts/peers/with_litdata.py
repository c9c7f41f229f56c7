"""LitData: samples in optimized chunks, put together in a DataLoader's workers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch.distributed
from litdata import StreamingDataLoader, StreamingDataset, optimize

from compare_parts.job import Job
from compare_parts.peers.packed_rows import Sample, kinds, pack, unpack


def _samples(path: str) -> Iterator[Sample]:
    yield from pack(pq.read_table(path))


def convert(files: list[str], folder: str) -> None:
    optimize(fn=_samples, inputs=files, output_dir=folder, chunk_bytes="64MB", num_workers=1)


class Reader:
    def __init__(self, job: Job) -> None:
        if job.num_ranks > 1:
            torch.distributed.init_process_group("gloo")
        of = kinds(pq.read_schema(job.files[0]))
        self._loader = StreamingDataLoader(
            StreamingDataset(job.folder, shuffle=job.shuffle, drop_last=False),
            batch_size=job.batch_size,
            num_workers=job.num_cores if job.num_cores > 1 else 0,
            persistent_workers=job.num_cores > 1,
            collate_fn=partial(unpack, of=of, columns=job.columns),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._loader)

    def state_dict(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: list[Any]) -> None:
        self._loader.load_state_dict(states[0])
