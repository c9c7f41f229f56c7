"""A batch that is delivered again, so that a rank without rows takes part in a step: with weights
of zero.
"""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from featstore.dispatch.terms import Claim
from featstore.errors import StateError
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.cutting import Cut, cut
from featstore.loader.rows.sources import parts_in_place
from featstore.loader.rows.split_reader import Order, SplitReader, Work, read_windows
from featstore.loader.run.job import Job
from featstore.loader.stats import Stats
from featstore.tensors.batch import Batch, Column, Columns
from featstore.tensors.column_keys import WEIGHT, Key, Keys


@dataclass(frozen=True)
class Weightless:
    """The same columns, but every weight is zero."""

    columns: Columns

    @property
    def keys(self) -> Keys:
        return self.columns.keys

    def made(self) -> dict[Key, Column]:
        return {key: _weightless(key, column) for key, column in self.columns.made().items()}

    def packed(self) -> "Weightless":
        return Weightless(self.columns.packed())

    def moved(self, **how: Any) -> "Weightless":
        return Weightless(self.columns.moved(**how))


def _weightless(key: Key, column: Column) -> Column:
    return (
        torch.zeros_like(column)
        if key[0] == WEIGHT and isinstance(column, torch.Tensor)
        else column
    )


def padding_of(batch: Batch) -> Batch:
    """The batch's rows again, `is_padding`, its weights zero where there are weights."""
    return Batch(
        Weightless(batch.columns), num_rows=batch.num_rows, extras=batch.extras, is_padding=True
    )


def some_rows(jobs: Iterable[Job]) -> Cut:
    """Rows of the first split that has some, read where its file is, for a rank that has none to
    repeat.

    StateError where there are none at all.
    """
    for job in jobs:
        order = Order(seed=job.seed, epoch=0, shuffle=None)
        open_split = partial(SplitReader, request=job.request, order=order, stats=Stats())
        for index, split in enumerate(job.splits):
            file, partition = job.files[split.path]
            claim = Claim(index=index, split=split, fence=0, start_row=0)
            work = Work(claim=claim, partition=partition, **vars(parts_in_place(file)))
            assembler = Assembler(job.request, job.batch_size, Stats())
            with closing(read_windows(iter([work]), open_split, 1)) as windows:
                blocks = (block for window in windows for block in assembler.blocks(window))
                for some in cut(blocks, job.batch_size, drop_last=False):
                    if some.spans:
                        return some
    raise StateError(
        "tail pad: this rank has no rows to pad with, and no split has any: choose tail join, or "
        "another `where`"
    )
