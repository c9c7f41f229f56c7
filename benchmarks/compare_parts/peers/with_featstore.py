"""featstore: one loader, whose threads decode. Ranks share an epoch through a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import featstore
from compare_parts.job import Job


class Reader:
    def __init__(self, job: Job) -> None:
        shared = {"store": f"sqlite://{job.scratch}/epoch.sqlite", "run_id": "run"}
        self._loader = featstore.FeatureLoader(
            str(Path(job.files[0]).parent),
            slots=job.columns[:-1],
            labels=job.columns[-1:],
            batch_size=job.batch_size,
            shuffle=job.shuffle,
            dispatch=shared | {"in_step": False} if job.num_ranks > 1 else "auto",
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._loader:
            columns = {name: batch[name] for name in batch.slots} | dict(batch.labels)
            yield {
                name: (one.values, one.offsets) if isinstance(one, featstore.Jagged) else one
                for name, one in columns.items()
            }

    def state_dict(self) -> Any:
        self._loader.ack()
        return self._loader.state_dict()

    def load(self, states: list[Any]) -> None:
        self._loader.load_state_dict(featstore.FeatureLoader.merge_states(states))
