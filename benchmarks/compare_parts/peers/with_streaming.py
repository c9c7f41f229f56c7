"""Mosaic Streaming: samples in MDS shards, put together in a DataLoader's workers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch.distributed
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from compare_parts.job import Job
from compare_parts.peers.packed_rows import kinds, pack, unpack

_COLUMNS = {
    "ids": "ndarray:int64",
    "floats": "ndarray:float32",
    "values": "ndarray:int64",
    "lengths": "ndarray:int64",
}


def convert(files: list[str], folder: str) -> None:
    with MDSWriter(out=folder, columns=_COLUMNS) as writer:
        for path in files:
            for sample in pack(pq.read_table(path)):
                writer.write(sample)


class Reader:
    def __init__(self, job: Job) -> None:
        if job.num_ranks > 1:
            torch.distributed.init_process_group("gloo")
        clean_stale_shared_memory()
        of = kinds(pq.read_schema(job.files[0]))
        self._loader = StreamingDataLoader(
            StreamingDataset(local=job.folder, batch_size=job.batch_size, shuffle=job.shuffle),
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
