"""Columns of a batch in few buffers, so that it moves as one copy, or as one shared-memory buffer,
instead of hundreds of tensors; and tensors as views of memory.

numpy has no bfloat16, so an array of uint16 holds its bits; no column has uint16 values.

The garbage collector need not look at most views. Hundreds of tensors a batch, alive while their
batches wait, made it run for a quarter of the CPU time of wide tables: it looks at each of them
several times, and as they outlive its young generations, at every object of the process. A view of
ids or offsets refers to no Python object, so it is part of no cycle, and reference counts alone
free it. Views of floats stay tracked: whoever asks for their gradients may attach functions to them
that refer to the batch, and thereby to the view itself.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from featstore.base.intervals import aligned
from featstore.base.processes import cached_property
from featstore.native import kernels
from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists
from featstore.tensors.column_arrays import Key, Keys, writable
from featstore.tensors.columns import (
    Column,
    Columns,
    Jagged,
    SharedJagged,
    column_of,
    each_tensor,
    first_equal,
    shaped,
    tensors_of,
)

Allocate = Callable[[int], torch.Tensor]


def _leave_tracked(objects: tuple[object, ...]) -> None:
    """In place of `untrack`."""


# Ends the collector's tracking of the objects in a tuple, which refer to none that it tracks. How
# the collector may be told so is CPython's own affair: only where it has been tried.
untrack = kernels.untrack if sys.version_info < (3, 14) else _leave_tracked


def tensor_of(array: Array) -> torch.Tensor:
    """The array's memory as a tensor; uint16 becomes bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def array_of(tensor: torch.Tensor) -> Array:
    """The memory of a CPU tensor as an array; bfloat16 becomes uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The dtype of `tensor_of` an array of this dtype."""
    return tensor_of(np.empty(0, dtype)).dtype


def split(tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Consecutive views of a tensor in one call, a tenth of the time that slicing each takes. The
    collector tracks only those of floats.

    Args:
        tensor: (num_elements,) or more dimensions.
        sizes: Length of each view in the first dimension; all of them together are its length.
    """
    parts: tuple[torch.Tensor, ...] = tuple(torch.unsafe_split_with_sizes(tensor, list(sizes)))
    if not tensor.is_floating_point():
        untrack(parts)
    return parts


class TensorPlace(NamedTuple):
    """Where a tensor lies in the buffers.

    Attributes:
        buffer: The number of the buffer.
        dtype: The tensor's dtype.
        first: Its first element, counted in elements of its dtype from the start of the buffer.
        shape: Its shape.
    """

    buffer: int
    dtype: torch.dtype
    first: int
    shape: tuple[int, ...]

    def after(self, first_byte: int) -> "TensorPlace":
        """The place, once its buffer begins at this byte of the first one."""
        first = self.first + first_byte // self.dtype.itemsize
        return TensorPlace(0, self.dtype, first, self.shape)


def _num_rows(places: Sequence[TensorPlace]) -> int:
    """The rows of a column that lies there."""
    last = places[-1].shape
    return last[0] - (len(places) == 2 and len(last) == 1)  # Offsets are one more.


class _Cuts(NamedTuple):
    """How all tensors are made with one split for each buffer and dtype.

    Attributes:
        buffers: For each split the number of its buffer, the dtype, the end of the last tensor in
            elements of the dtype, and the number of elements of each part: of each tensor, and of
            each gap before one.
        columns: For each column the split, the part of it and the shape of each of its tensors.
    """

    buffers: list[tuple[int, torch.dtype, int, list[int]]]
    columns: list[tuple[Key, list[tuple[int, int, tuple[int, ...]]]]]


def _position(place: TensorPlace) -> tuple[int, int, int]:
    """By which places follow each other: an empty one before another that begins there."""
    return place.buffer, place.first, prod(place.shape)


class TensorPlaces(dict[Key, tuple[TensorPlace, ...]]):
    """For each column, the places of its values and, if it is jagged, its offsets, or its ranges
    (num_rows, 3). Batches that are laid out alike share one object.
    """

    _in_one: "tuple[Sequence[int], _Layout] | None" = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorPlaces, (dict(self),)  # Without what is cached.

    @cached_property
    def columns(self) -> Keys:
        """The keys, as one object for all batches."""
        return Keys(self)

    @cached_property
    def numbers(self) -> Array:
        """Where the columns lie, as of `ColumnBuffers`."""
        found = []
        for places in self.values():
            values, *others = places
            first = values.first * values.dtype.itemsize
            at = [(of.buffer, of.first * 8, 8 * prod(of.shape[1:])) for of in others]
            rows = _num_rows(places)
            found.append((values.buffer, first, prod(values.shape), *(at or [(0, 0, 0)])[0], rows))
        return np.array(found, np.int64).reshape(-1, 7)

    @cached_property
    def cuts(self) -> _Cuts:
        """How `PackedColumns.made` splits the buffers."""
        numbers, parts, ends = dict[tuple[int, torch.dtype], int](), list[list[int]](), list[int]()
        known = dict[TensorPlace, tuple[int, int, tuple[int, ...]]]()
        for place in sorted(chain.from_iterable(self.values()), key=_position):
            if place in known:  # offsets or ranges that columns share
                continue
            buffer, dtype, first, shape = place
            number = numbers.setdefault((buffer, dtype), len(numbers))
            if number == len(parts):
                parts.append([])
                ends.append(0)
            if first > ends[number]:
                parts[number].append(first - ends[number])
            known[place] = number, len(parts[number]), shape
            parts[number].append(count := prod(shape))
            ends[number] = first + count
        columns = [(key, [known[place] for place in places]) for key, places in self.items()]
        buffers = [(*of, ends[number], parts[number]) for of, number in numbers.items()]
        return _Cuts(buffers, columns)

    def in_one(self, sizes: Sequence[int]) -> "_Layout":
        """How buffers of these sizes, in bytes, come to lie in one, each aligned to 64 bytes."""
        if self._in_one is None or self._in_one[0] != sizes:
            ends = list(accumulate(sizes, lambda end, size: aligned(end) + size))
            firsts = [end - size for end, size in zip(ends, sizes, strict=True)]
            places = TensorPlaces(
                (key, tuple(place.after(firsts[place.buffer]) for place in of_column))
                for key, of_column in self.items()
            )
            parts = np.array([(first, 0) for first in firsts], np.int64).reshape(-1, 2)
            self._in_one = sizes, _Layout(places, parts, ends[-1] if ends else 0)
        return self._in_one[1]


@dataclass(frozen=True, kw_only=True)
class PackedColumns:
    """Columns as views of buffers.

    Attributes:
        buffers: One-dimensional, on any device; each is uint8, or has the dtype of all tensors in
            it.
        places: Where the tensors lie in the buffers.
    """

    buffers: tuple[torch.Tensor, ...]
    places: TensorPlaces

    @property
    def keys(self) -> Keys:
        return self.places.columns

    @property
    def num_rows(self) -> int:
        """Rows of each column; 0 if there are no columns."""
        for places in self.places.values():
            return _num_rows(places)
        return 0

    def made(self) -> dict[Key, Column]:
        """The columns as views of the buffers. All tensors of a dtype are made by one split."""
        cuts = self.places.cuts
        parts = [
            split(self._flat(buffer, dtype, end), sizes)
            for buffer, dtype, end, sizes in cuts.buffers
        ]
        return {
            key: column_of([shaped(parts[number][part], shape) for number, part, shape in tensors])
            for key, tensors in cuts.columns
        }

    @property
    def whole(self) -> "PackedColumns":
        return self

    def arrays(self) -> Mapping[Key, BatchValues]:
        return {key: values_of(column) for key, column in self.made().items()}

    def _flat(self, buffer: int, dtype: torch.dtype, end: int) -> torch.Tensor:
        """The first `end` elements of a buffer as this dtype."""
        flat = self.buffers[buffer]
        return flat[: end * dtype.itemsize // flat.itemsize].view(dtype)

    def packed(self) -> "PackedColumns":
        """A copy that shares no memory with anything."""
        buffers = tuple(buffer.clone() for buffer in self.buffers)
        return PackedColumns(buffers=buffers, places=self.places)

    def moved(self, *, pin: bool = False, **how: Any) -> "PackedColumns":
        """A copy whose buffers are moved by `Tensor.to(**how)`, or pinned. Lists of the same
        lengths share their offsets there, where comparing them would wait for the device.
        """
        moved = (buffer.pin_memory() if pin else buffer.to(**how) for buffer in self.buffers)
        return PackedColumns(buffers=tuple(moved), places=self._with_shared_offsets())

    def _with_shared_offsets(self) -> TensorPlaces:
        """The places; columns on the CPU whose lists have the same lengths have one of offsets."""
        lists = {
            key: places
            for key, places in self.places.items()
            if len(places) == 2 and len(places[1].shape) == 1
        }
        if len(lists) < 2 or self.buffers[0].device.type != "cpu":
            return self.places
        firsts = first_equal([(of[0].shape[0], self._offsets(of[1])) for of in lists.values()])
        offsets = [of[1] for of in lists.values()]
        shared = {
            key: (of[0], offsets[first])
            for (key, of), first in zip(lists.items(), firsts, strict=True)
        }
        return TensorPlaces({**self.places, **shared})

    def _offsets(self, place: TensorPlace) -> Array:
        end = place.first + place.shape[0]
        return self._flat(place.buffer, place.dtype, end)[place.first :].numpy()

    @property
    def is_pinned(self) -> bool:
        """Whether all buffers are pinned, so that copies to a device need not block."""
        return all(buffer.is_pinned() for buffer in self.buffers)


class _Layout(NamedTuple):
    """The layout of columns in one buffer, computed before the buffer is allocated.

    Attributes:
        places: Where the tensors lie.
        parts: As of `kernels.pack_parts`: int64 (num_parts, 2).
        num_bytes: The length of the buffer.
    """

    places: TensorPlaces
    parts: Array
    num_bytes: int


# Of a tensor: its column, its dtype and shape as an array, and the width of offsets that become
# int64; otherwise 0.
Form = tuple[Key, np.dtype[Any], tuple[int, ...], int]


def layout_of(forms: Iterable[Form]) -> _Layout:
    """How these tensors, those of a column one after the other, lie in one buffer."""
    places, parts, first, end = TensorPlaces(), list[int](), 0, 0
    for key, dtype, shape, offset_width in forms:
        of, width = (torch.int64, 8) if offset_width else (torch_dtype(dtype), dtype.itemsize)
        places[key] = (*places.get(key, ()), TensorPlace(0, of, first // width, shape))
        parts += (first, offset_width)
        end = first + prod(shape) * width
        first = aligned(end)
    return _Layout(places, np.array(parts, np.int64).reshape(-1, 2), end)


# Of batches without lists: those of a loader are laid out alike.
_shared_layout = lru_cache(maxsize=64)(layout_of)


def pack(
    columns: Columns, allocate: Allocate = lambda size: torch.empty(size, dtype=torch.uint8)
) -> PackedColumns:
    """Copies columns into one buffer, each tensor aligned to 64 bytes, or, if they lie in few
    buffers, these. One call does it, without the interpreter's lock, and wakes no threads, which
    would then spin on the cores that decode.

    Args:
        columns: Columns on the CPU.
        allocate: Gives the buffer: uint8 (num_bytes,), or longer.
    """
    whole: PackedColumns | None = columns.whole
    if whole is not None:
        parts = [array_of(buffer) for buffer in whole.buffers]
        return _packed(parts, whole.places.in_one([part.nbytes for part in parts]), allocate)
    parts, forms, has_lists = list[Array](), list[Form](), False
    for key, values in columns.arrays().items():
        if isinstance(values, Ragged):
            has_lists, offsets = True, values.offsets
            parts += (values.values, offsets)
            forms.append((key, values.values.dtype, values.values.shape, 0))
            forms.append((key, offsets.dtype, offsets.shape, offsets.itemsize))
        elif isinstance(values, SharedLists):
            has_lists = True
            for array in (values.values, values.ranges):
                parts.append(array)
                forms.append((key, array.dtype, array.shape, 0))
        else:
            parts.append(values)
            forms.append((key, values.dtype, values.shape, 0))
    layout = layout_of(forms) if has_lists else _shared_layout(tuple(forms))
    return _packed(parts, layout, allocate)


def _packed(parts: Sequence[Array], layout: _Layout, allocate: Allocate) -> PackedColumns:
    memory = allocate(layout.num_bytes)[: layout.num_bytes]
    kernels.pack_parts(tuple(parts), layout.parts, memory.numpy())
    return PackedColumns(buffers=(memory,), places=layout.places)


@dataclass(frozen=True)
class TensorColumns:
    """Columns in any memory."""

    columns: Mapping[Key, Column]

    @property
    def keys(self) -> Keys:
        return Keys(self.columns)

    def made(self) -> Mapping[Key, Column]:
        return self.columns

    @property
    def whole(self) -> None:
        return None

    def arrays(self) -> Mapping[Key, BatchValues]:
        return {key: _contiguous(values_of(column)) for key, column in self.columns.items()}

    def packed(self) -> Columns:
        if self._is_on_cpu:
            return pack(self)
        return TensorColumns(each_tensor(self.columns, torch.Tensor.clone))

    def moved(self, *, pin: bool = False, **how: Any) -> Columns:
        if self._is_on_cpu:
            return pack(self).moved(pin=pin, **how)
        return TensorColumns(
            each_tensor(self.columns, lambda of: of.pin_memory() if pin else of.to(**how))
        )

    @property
    def _is_on_cpu(self) -> bool:
        return all(tensors_of(column)[0].device.type == "cpu" for column in self.columns.values())


class UnpackedColumns(Mapping[Key, BatchValues]):
    """Packed columns as arrays, which are made when the first is asked for. Batches that are moved
    whole never need them.
    """

    def __init__(self, packed: PackedColumns) -> None:
        self.packed = packed

    def made(self) -> Mapping[Key, Column]:
        """The columns as tensors, made once."""
        return self._made

    @cached_property
    def _made(self) -> Mapping[Key, Column]:
        # The first to ask may be in inference mode, while others need gradients.
        with torch.inference_mode(False):
            return self.packed.made()

    def __getitem__(self, key: Key) -> BatchValues:
        return values_of(self._made[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.packed.keys)

    def __len__(self) -> int:
        return len(self.packed.keys)


def values_of(column: Column) -> BatchValues:
    """The memory of a column as arrays."""
    if isinstance(column, Jagged):
        return Ragged(array_of(column.values), array_of(column.offsets))
    if isinstance(column, SharedJagged):
        return SharedLists(array_of(column.values), array_of(column.ranges))
    return array_of(column)


def of_rows(values: BatchValues) -> BatchValues:
    """The values of the rows alone: lists of which a transform has cut off rows have others before
    or after them.
    """
    if isinstance(values, Ragged):
        offsets = values.offsets
        return Ragged(values.values[offsets[0] : offsets[-1]], offsets)
    return values


def _contiguous(values: BatchValues) -> BatchValues:
    values = of_rows(values)
    if isinstance(values, Ragged):
        return Ragged(np.ascontiguousarray(values.values), np.ascontiguousarray(values.offsets))
    if isinstance(values, SharedLists):
        return SharedLists(np.ascontiguousarray(values.values), np.ascontiguousarray(values.ranges))
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


def column_from(values: BatchValues) -> Column:
    """Arrays as a column that shares their memory."""
    values = writable(values)
    if isinstance(values, Ragged):
        return Jagged(tensor_of(values.values), tensor_of(values.offsets))
    if isinstance(values, SharedLists):
        return SharedJagged(tensor_of(values.values), tensor_of(values.ranges))
    return tensor_of(values)
