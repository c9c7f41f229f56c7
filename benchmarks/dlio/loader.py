"""A data loader of DLIO whose batches are featstore's.

    reader:
      data_loader_classname: dlio.loader.FeatstoreDataLoader
      data_loader_sampler: none

It reads the files that DLIO lists, which are Parquet whatever DLIO's `format` is. What is read of
them is said in `featstore.yaml` in the data folder, a training config without a table: its `slots`,
`labels` and other options. DLIO's own settings replace those of the same meaning: `batch_size`,
`seed`, `sample_shuffle` (anything but `off` shuffles), and `read_threads`, the threads that decode.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

from dlio.shares import share_of
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList, Snapshot
from shared_parts.process_tree import spent_s, tree_cpu_s

CONFIG = "featstore.yaml"


class CountedDataLoader(BaseDataLoader):  # type: ignore[misc]  # DLIO has no types.
    """A data loader that says in a file of DLIO's output folder how many rows its batches had so
    far, and the CPU seconds since `read`, of this process and its workers: "num_rows", "cpu_s".
    """

    def read(self) -> None:
        """Called by DLIO once, before the first epoch."""
        self.num_rows, self._cpu_at_begin = 0, tree_cpu_s()

    def finalize(self) -> None:
        """Called by DLIO at the end of each epoch."""
        counted = {"num_rows": self.num_rows, "cpu_s": spent_s(self._cpu_at_begin, tree_cpu_s())}
        name = f"{self._args.my_rank}_{self.dataset_type}_counted.json"
        Path(self._args.output_folder, name).write_text(json.dumps(counted))


class FeatstoreDataLoader(CountedDataLoader):
    """Batches as dicts of tensors, by name: (batch_size,), int64 of ids and float32 of others.

    Each rank of DLIO reads files of its own, as many as the others.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.CUSTOM)

    def read(self) -> None:
        """Makes the loader.

        Raises:
            ConfigError: The ranks cannot read the same number of files each, or `featstore.yaml` is
                not a training config.
        """
        args = self._args
        is_train = self.dataset_type is DatasetType.TRAIN
        files = args.file_list_train if is_train else args.file_list_eval
        self._loader = FeatureLoader.from_config(
            Path(args.data_folder, CONFIG),
            table=_table_of(share_of(files, args.my_rank, args.comm_size)),
            batch_size=self.batch_size,
            seed=args.seed,
            shuffle=args.sample_shuffle is not Shuffle.OFF,
            decode_threads=args.read_threads or "auto",
        )
        self._epochs = iter(range(args.epochs))
        super().read()

    def next(self) -> Iterator[dict[str, Any]]:
        """The batches of one epoch. DLIO may leave the last one's successor unasked for."""
        self._loader.set_epoch(next(self._epochs))
        for batch in self._loader:
            self.num_rows += batch.num_rows
            yield {name: batch[name] for name in batch.slots} | dict(batch.labels)

    def finalize(self) -> None:
        """Ends the epoch."""
        self._loader.close()
        super().finalize()


def _table_of(files: Sequence[str]) -> Snapshot:
    """The table of these local files alone. Those of one folder are listed together."""
    wanted = {Path(file).resolve() for file in files}
    folders = sorted({Path(file).parent for file in files})
    listed = [open_snapshot(f"{folder}/*{Path(files[0]).suffix}") for folder in folders]
    kept = (file for of in listed for file in of.data_files if Path(file.url).resolve() in wanted)
    return replace(listed[0], data_files=FileList.of(kept))
