"""Hugging Face datasets: a stream in the arrow format, in the workers of torchdata's stateful
DataLoader.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


def _collated(batch: pa.Table) -> dict[str, Any]:
    """Of one row, whose columns are lists of a batch's values."""
    columns = {name: batch[name].combine_chunks().flatten() for name in batch.column_names}
    return to_tensors(pa.table(columns))


class Reader:
    def __init__(self, job: Job) -> None:
        rows = load_dataset(
            "parquet", data_files=job.files, split="train", streaming=True, columns=job.columns
        )
        if job.shuffle:
            rows = rows.shuffle(seed=0, buffer_size=16_384)
        own = split_dataset_by_node(rows, rank=job.rank, world_size=job.num_ranks)
        self._rank = job.rank
        self._loader = StatefulDataLoader(
            own.with_format("arrow").batch(job.batch_size),
            batch_size=None,
            num_workers=job.num_cores if job.num_cores > 1 else 0,
            persistent_workers=job.num_cores > 1,
            collate_fn=_collated,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._loader)

    def state_dict(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: list[Any]) -> None:
        self._loader.load_state_dict(states[self._rank])
