"""Stretches of blocks as the tensors of batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from featstore.loader.batches.blocks import Block
from featstore.loader.batches.joining import joined
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import rebased
from featstore.tensors.batch import Column, Jagged
from featstore.tensors.column_keys import Key, Keys
from featstore.tensors.dtypes import array_of, tensor_of
from featstore.tensors.packed import Packed, pack
from featstore.tensors.pool import Pool

Made = Mapping[Key, Column]


class Unpacked(Mapping[Key, Values]):
    """Packed columns as arrays, made when one is first asked for: most are delivered as they
    are.
    """

    def __init__(self, packed: Packed) -> None:
        self._packed = packed

    @cached_property
    def _made(self) -> Made:
        return self._packed.made()

    def __getitem__(self, key: Key) -> Values:
        column = self._made[key]
        return (
            Ragged(array_of(column.values), array_of(column.offsets))
            if isinstance(column, Jagged)
            else array_of(column)
        )

    def __iter__(self) -> Iterator[Key]:
        return iter(self._packed.keys)

    def __len__(self) -> int:
        return len(self._packed.keys)


class Slices:
    """Consecutive stretches of a block's rows, `num_rows` each from `first` on. The tensors of all
    of them are made when those of one are asked for: one call for each column instead of one for
    each view."""

    __slots__ = ("_block", "_cuts", "_made", "_num_rows", "_pool")

    def __init__(self, block: Block, first: int, num_rows: int, count: int, pool: Pool) -> None:
        self._block, self._num_rows, self._pool = block, num_rows, pool
        self._cuts = np.arange(first, first + num_rows * count + 1, num_rows or 1)
        self._made: list[Made] | None = None

    def made(self, number: int) -> Made:
        """The columns of the stretch of this number."""
        if self._made is None:
            with torch.inference_mode(
                False
            ):  # whoever asks for the first, others of them may be trained on
                self._made = self._make()
        return self._made[number]

    def _make(self) -> list[Made]:
        columns, count = self._block.columns, len(self._cuts) - 1
        first, end, sizes = int(self._cuts[0]), int(self._cuts[-1]), [self._num_rows] * count
        lists = {key: values for key, values in columns.items() if isinstance(values, Ragged)}
        offsets = self._offsets([values.offsets for values in lists.values()]) if lists else ()
        made: dict[Key, Sequence[Column]] = {
            key: torch.unsafe_split_with_sizes(tensor_of(values[first:end]), sizes)
            for key, values in columns.items()
            if not isinstance(values, Ragged)
        }
        for at, (key, values) in enumerate(lists.items()):
            made[key] = list(
                map(Jagged, self._values(values), offsets[at * count : (at + 1) * count])
            )
        parts = zip(*[made[key] for key in columns], strict=True)
        return [dict(zip(columns, part, strict=True)) for part in parts]

    def _values(self, lists: Ragged) -> Sequence[torch.Tensor]:
        ends = lists.offsets[self._cuts]
        sizes = (ends[1:] - ends[:-1]).tolist()
        return torch.unsafe_split_with_sizes(tensor_of(lists.values[ends[0] : ends[-1]]), sizes)

    def _offsets(self, columns: Sequence[Array]) -> Sequence[torch.Tensor]:
        """The offsets of each column's stretches, each from 0."""
        count = len(self._cuts) - 1
        size = count * (self._num_rows + 1)
        memory = self._pool.take(8 * size * len(columns))[: 8 * size * len(columns)].view(np.int64)
        for at, offsets in enumerate(columns):
            rebased(offsets, self._cuts, memory[at * size : (at + 1) * size])
        return torch.unsafe_split_with_sizes(
            torch.from_numpy(memory), [self._num_rows + 1] * (count * len(columns))
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `begin` to `end` of a block, the stretch `number` of its `slices` where it is one of
    them.
    """

    block: Block
    begin: int
    end: int
    slices: Slices | None = field(default=None, compare=False)
    number: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def packed(self) -> Packed | None:
        """The block's columns in their buffers, where the span is all of it."""
        return self.block.packed if self.begin == 0 and self.end == self.block.num_rows else None

    def get(self, key: Key) -> Values:
        """The column's part; offsets as they are in the block, which may begin above 0."""
        values = self.block.columns[key]
        if not isinstance(values, Ragged):
            return values[self.begin : self.end]
        offsets = values.offsets[self.begin : self.end + 1]
        return Ragged(values.values[offsets[0] : offsets[-1]], offsets)

    def made(self, pool: Pool) -> Made:
        """The columns as tensors."""
        if self.packed is not None:
            return self.packed.made()
        if self.slices is None:
            return Slices(self.block, self.begin, len(self), 1, pool).made(0)
        return self.slices.made(self.number)


@dataclass(frozen=True, slots=True)
class Spans:
    """The columns of a batch: views of a block, or, where it straddles blocks, put together in
    memory of the pool.
    """

    spans: Sequence[Span]
    pool: Pool

    @property
    def keys(self) -> Keys:
        return self.spans[0].block.keys

    def made(self) -> Made:
        if len(self.spans) == 1:
            return self.spans[0].made(self.pool)
        return joined({key: [span.get(key) for span in self.spans] for key in self.keys}, self.pool)

    def packed(self) -> Packed:
        packed = self.spans[0].packed if len(self.spans) == 1 else None
        return pack(self) if packed is None else packed.packed()

    def moved(self, **how: Any) -> Packed:
        packed = self.spans[0].packed if len(self.spans) == 1 else None
        return (pack(self) if packed is None else packed).moved(**how)
