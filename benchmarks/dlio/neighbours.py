"""What featstore's loader stands beside in DLIO: its own readers, a reader of Parquet of the same
interface, and a loader that reads nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from dlio_benchmark.common.enumerations import DataLoaderType
from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader
from dlio_benchmark.reader.reader_handler import FormatReader

from dlio.loader import CONFIG, CountedDataLoader
from dlio.rows import records_of


class SampleIndex(Mapping[int, tuple[str, int]]):
    """The file, and the row in it, of each sample, computed when it is asked for.

    DLIO keeps a dict of them, and its readers make the text of the whole dict for every sample that
    they read, for a message of level debug: an epoch of n rows takes time in proportion to n * n.
    """

    def __init__(self, files: Sequence[str], rows_per_file: int) -> None:
        self._files, self._rows_per_file = files, rows_per_file

    def __getitem__(self, sample: int) -> tuple[str, int]:
        file, row = divmod(sample, self._rows_per_file)
        return self._files[file], row

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._files) * self._rows_per_file


class CountedTorchDataLoader(TorchDataLoader, CountedDataLoader):  # type: ignore[misc]
    """DLIO's own loader, a DataLoader of torch over one of its readers."""

    def read(self) -> None:
        TorchDataLoader.read(self)
        CountedDataLoader.read(self)

    def next(self) -> Iterator[Any]:
        for batch in super().next():
            self.num_rows += len(batch)
            yield batch

    def finalize(self) -> None:
        CountedDataLoader.finalize(self)


class IndexedDataLoader(CountedTorchDataLoader):
    """The same with a `SampleIndex` in place of DLIO's dict."""

    def read(self) -> None:
        args = self._args
        args.train_global_index_map = SampleIndex(args.file_list_train, args.num_samples_per_file)
        super().read()


class ParquetReader(FormatReader):  # type: ignore[misc]
    """The selected columns of a file as records, of which a sample is one."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch_number: int) -> None:
        super().__init__(dataset_type, thread_index)
        config = yaml.safe_load(Path(self._args.data_folder, CONFIG).read_text())
        self._columns = [*config["slots"], *config["labels"]]

    def open(self, filename: str) -> np.ndarray:
        return records_of(pq.read_table(filename, columns=self._columns))

    def close(self, filename: str) -> None:
        self.open_file_map.pop(filename)

    def get_sample(self, filename: str, sample_index: int) -> Any:
        return self.open_file_map[filename][sample_index]

    def next(self) -> Iterator[Any]:
        yield from super().next()

    def read_index(self, global_sample_idx: int, step: int) -> Any:
        return super().read_index(global_sample_idx, step)

    def finalize(self) -> None:
        self.open_file_map.clear()

    def is_index_based(self) -> bool:
        return True

    def is_iterator_based(self) -> bool:
        return True


class SameBatchDataLoader(CountedDataLoader):
    """One batch, again and again: what DLIO's own loop takes, since nothing is read."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.CUSTOM)

    def read(self) -> None:
        self._batch = torch.zeros(self.batch_size)
        super().read()

    def next(self) -> Iterator[torch.Tensor]:
        for _ in range(self._args.training_steps):
            self.num_rows += len(self._batch)
            yield self._batch
