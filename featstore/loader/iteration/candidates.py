"""The pool of items that candidates are drawn of, in memory, and the draws of a batch's rows."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import torch

from featstore.base.errors import BudgetError
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.slice_source import rows_in_place
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.request.candidates import Candidates, ItemSampler
from featstore.loader.request.train_config import naming
from featstore.reading.buffers import Array
from featstore.reading.gather import ColumnBuffers, buffers_of, places_of
from featstore.tensors.batch import Batch
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import (
    CANDIDATE,
    CANDIDATE_LENGTHS,
    LOG_Q,
    OWN_ITEM,
    ROW_KEY,
    SLOT,
    WEIGHT,
    Key,
)
from featstore.tensors.columns import Column, Jagged, tensors_of
from featstore.tensors.gathering import gather_batches, joined
from featstore.tensors.packed import TensorColumns, array_of, of_rows, values_of


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolItems:
    """The items of a pool.

    Attributes:
        sampler: Draws them.
        columns: Their slots, as they are delivered.
    """

    sampler: ItemSampler
    columns: ColumnBuffers

    def __len__(self) -> int:
        return self.columns.num_rows

    @property
    def num_bytes(self) -> int:
        """The memory that they take."""
        return self.sampler.num_bytes + sum(int(each.nbytes) for each in self.columns.buffers)


# Loaders of one process share what they draw of, such as those of several tables.
_LOADED = WeakValueDictionary[tuple[str, str, str, str], PoolItems]()


class CandidatePool:
    """The pool of a loader. Its items are read once in each process, in the order of the files, and
    are there as long as the loader. A copy for another process has none of them yet.

    Args:
        options: What is drawn.
        job: Reads the pool: the slots, the popularity as the weight, and the ids of the items.
        name: The pool, for errors.
    """

    def __init__(self, options: Candidates, job: Job, name: str) -> None:
        self.options, self.job, self.name = options, job, name
        self._items: PoolItems | None = None

    def __getstate__(self) -> Mapping[str, object]:
        return self.__dict__ | {"_items": None}

    def load(self) -> PoolItems:
        """The items.

        Raises:
            ConfigError: As of `ItemSampler.of`.
            BudgetError: They take more than the memory budget.
            DataFileError: A data file cannot be read.
            MissingValueError: A popularity is null.
        """
        if self._items is None:
            key = self.name, self.job.table, self.job.key, self.options.id
            if (found := _LOADED.get(key)) is None:
                with naming(self.name):
                    found = _LOADED[key] = self._read()
            self._items = found
        return self._items

    def _read(self) -> PoolItems:
        budget_bytes = self.job.share_of_host(LoaderWorker.here()).budget_bytes
        parts, num_bytes = dict[Key, list[Column]](), 0
        with closing(rows_in_place(self.job, self.job.splits)) as slices:
            for rows in slices:
                # A copy, which does not keep all columns of the window alive.
                for key, column in rows.batch().clone().made().items():
                    parts.setdefault(key, []).append(column)
                    num_bytes += _num_bytes(column)
                if num_bytes > budget_bytes:
                    raise BudgetError(
                        f"expected a pool of at most {budget_bytes:,} bytes, as much "
                        "as memory_budget, which it takes in each process besides, found more: "
                        "raise memory_budget, or select fewer slots or items in candidates"
                    )
        by = self.options.by
        sampler = ItemSampler.of(
            _array(parts.get(OWN_ITEM, [])),
            None if by is None else _array(parts.get((WEIGHT, by), [])),
            by,
        )
        slots = {
            (CANDIDATE, name): [of_rows(values_of(column)) for column in columns]
            for (role, name), columns in parts.items()
            if role == SLOT
        }
        made = joined(slots, BufferPool()).made()
        columns = {key: values_of(column) for key, column in made.items()}
        return PoolItems(sampler=sampler, columns=buffers_of(columns, len(sampler.rows)))

    def drawing(self, seed: int, epoch: int, num_threads: int) -> Callable[[Batch], Batch]:
        """What adds candidates to batches of an epoch, for one thread.

        Args:
            seed: The loader's seed.
            epoch: The epoch.
            num_threads: In how many threads their slots are gathered.
        """
        items, per_row = self.load(), self.options.per_row
        memory, scratch = BufferPool(), BufferPool()

        def with_candidates(batch: Batch) -> Batch:
            columns = dict(batch.made())
            row_keys, own_ids = (_array([columns.pop(key)]) for key in (ROW_KEY, OWN_ITEM))
            rows, log_q = items.sampler.draw(row_keys, own_ids, per_row, seed=seed, epoch=epoch)
            places = places_of(rows.ravel(), [len(items)], np.array([0, rows.size]))
            [packed] = gather_batches([items.columns], places, memory, scratch, num_threads)
            for key, column in packed.made().items():
                if isinstance(column, Jagged):
                    columns[key] = Jagged(column.values, column.offsets[::per_row].contiguous())
                    columns[CANDIDATE_LENGTHS, key[1]] = column.lengths().view(rows.shape)
                elif isinstance(column, torch.Tensor):  # No history, whose lists rows share.
                    columns[key] = column.view(*rows.shape, *column.shape[1:])
            columns[LOG_Q, "log_q"] = torch.from_numpy(log_q)
            return batch.with_columns(TensorColumns(columns))

        return with_candidates


def _array(columns: list[Column]) -> Array:
    """The values of columns that are no lists, in one array."""
    arrays = [array_of(column) for column in columns if isinstance(column, torch.Tensor)]
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, np.int64), *arrays])


def _num_bytes(column: Column) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(column))
