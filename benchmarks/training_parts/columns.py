"""Batches of Parquet files: by pyarrow, straight from a remote store, and by featstore."""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import obstore.fsspec
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from featstore.files.random_reader import RandomReader
from featstore.files.storage import connect, size_bytes
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.open import open_snapshot
from staging_parts.table import at
from training_parts.dlrm import BUCKETS, Inputs
from training_parts.rows import LABEL, AdsRows

_FILES_AHEAD = 4


class ArrowReader:
    """Reads the selected columns of each file by pyarrow, four files at a time, in order.

    Arrow asks for what it needs of a row group before it decodes it (`pre_buffer`), joins ranges
    that lie close to each other, and decodes in all its threads. Of one file in Python it reads one
    range after the other, so several files are read at once, as `S3FileSystem` reads ranges.

    Args:
        of: The rows.
        urls: The files, in order.
        batch_size: Rows of a batch, which must divide those of a file.
    """

    def __init__(self, of: AdsRows, urls: Sequence[str], batch_size: int) -> None:
        self._of, self._urls, self._batch_size = of, urls, batch_size
        self._columns = [*(name for kind in "ilf" for name in of.selected(kind)), LABEL]

    def __call__(self) -> Iterator[Inputs]:
        with ThreadPoolExecutor(_FILES_AHEAD) as threads:
            files = (threads.submit(self._read, url) for url in self._urls)
            ahead = deque(itertools.islice(files, _FILES_AHEAD))
            while ahead:
                table = ahead.popleft().result()
                ahead.extend(itertools.islice(files, 1))
                for first in range(0, len(table), self._batch_size):
                    yield self._inputs(table.slice(first, self._batch_size))

    def _read(self, url: str) -> pa.Table:
        with _RemoteFile(url) as file:
            return pq.ParquetFile(file, pre_buffer=True).read(self._columns)

    def _inputs(self, rows: pa.Table) -> Inputs:
        arrays = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        floats = [arrays[name].to_numpy() for name in self._of.selected("f")]
        return Inputs(
            ids=[_buckets(arrays[name]) for name in self._of.selected("i")],
            lists=[_jagged(arrays[name]) for name in self._of.selected("l")],
            floats=torch.from_numpy(np.stack(floats, 1)),
            label=torch.from_numpy(arrays[LABEL].to_numpy(zero_copy_only=False).copy()),
        )


def _buckets(signs: pa.Array) -> torch.Tensor:
    """As featstore's loader makes them: missing 0."""
    values = signs.to_numpy()
    return torch.from_numpy(np.where(values == 0, 0, 1 + values % (BUCKETS - 1)))


def _jagged(lists: pa.ListArray) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return _buckets(lists.flatten()), torch.from_numpy(offsets - offsets[0])


class _RemoteFile(RandomReader):
    """A file of the store: each read is a range request for what is asked, no more."""

    def __init__(self, url: str) -> None:
        super().__init__(size_bytes(url))
        self._store, self._key = connect(url)

    def fetch(self, first: int, num_bytes: int) -> Any:
        return obstore.get_range(self._store, self._key, start=first, length=num_bytes)


class FeatstoreReader:
    """Reads the same by featstore, with the loader's defaults, in the files' order.

    Args:
        of: The rows.
        local: The table, a folder.
        urls: The files at a server, in order, to be staged; none: those of the folder are read.
        batch_size: Rows of a batch.
        directory: Where to stage.
        share: The "store" through which several processes share the epoch, if they do.
    """

    def __init__(
        self,
        of: AdsRows,
        local: str,
        urls: Sequence[str],
        batch_size: int,
        directory: Path,
        share: Mapping[str, Any] | None = None,
    ) -> None:
        self._of, self._batch_size = of, batch_size
        # A server over HTTP has no listing, so the snapshot comes from the folder.
        snapshot = open_snapshot(local)
        self._snapshot = at(snapshot, urls[0].rpartition("/")[0]) if urls else snapshot
        self._staging = {"directory": str(directory)} if urls else None
        self._order: dict[str, Any] = {"order": "static"}
        if share:
            dispatch = {"store": share["store"], "run_id": "run", "in_step": False}
            self._order = {"order": "dynamic", "dispatch": dispatch}

    def __call__(self) -> Iterator[Inputs]:
        ids, lists, floats = (self._of.selected(kind) for kind in "ilf")
        requests = [{"name": name, "buckets": BUCKETS} for name in (*ids, *lists)]
        with FeatureLoader(
            self._snapshot,
            slots=[*requests, *floats],
            labels=[LABEL],
            batch_size=self._batch_size,
            staging=self._staging,
            **self._order,
        ) as loader:
            for batch in loader:
                jagged: list[Any] = [batch[name] for name in lists]
                yield Inputs(
                    ids=[batch[name] for name in ids],
                    lists=[(of.values, of.offsets) for of in jagged],
                    floats=batch.dense(floats),
                    label=batch.labels[LABEL],
                )
