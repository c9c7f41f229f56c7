"""A user's function over each batch, in a thread of its own beside the one that decodes."""

import importlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from featstore.dispatch.terms import Claim
from featstore.errors import BatchError, ConfigError
from featstore.loader.batches.cutting import Cut
from featstore.loader.stats import Stats
from featstore.tensors.batch import Batch, Column, Jagged
from featstore.tensors.column_keys import SLOT, Key, Keys
from featstore.tensors.packed import Packed, pack

# Takes a batch, and returns it, another one, or slots to add to it (or to put in the place of its
# own) by name.
Transform = Callable[[Batch], Batch | Mapping[str, Column]]


def checked_transform(transform: Transform | str | None) -> Transform | None:
    """The function, or the one that a config names as `package.module:function`. ConfigError where
    there is none.
    """
    found: Any = transform
    if isinstance(transform, str):
        module, _, name = transform.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"transform: expected 'package.module:function', found {transform!r}: {error}"
            ) from error
    if found is not None and not callable(found):
        raise ConfigError(f"transform: expected a function, found {transform!r}")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Transformed(Cut):
    """A cut whose batch was made, and transformed."""

    made: Batch | None = None

    @property
    def size_bytes(self) -> int:
        """Its columns are views of blocks, which count elsewhere."""
        return 0

    def batch(self) -> Batch:
        return super(Transformed, self).batch() if self.made is None else self.made


def transformed(
    cuts: Iterator[Cut],
    transform: Transform,
    claim_of: Callable[[tuple[int, int, int]], Claim],
    stats: Stats,
) -> Generator[Transformed, None, None]:
    """The cuts with their batches transformed. BatchError, from what the function raised, with the
    rows it failed on.
    """
    for cut in cuts:
        batch = None
        if cut.spans:
            with stats.timed("transform_s"):
                batch = _applied(transform, cut, claim_of)
        yield Transformed(cut.spans, cut.segments, cut.num_dropped_rows, made=batch)
        del cut, batch


def _applied(
    transform: Transform, cut: Cut, claim_of: Callable[[tuple[int, int, int]], Claim]
) -> Batch:
    batch = cut.batch()
    try:
        return _result(batch, transform(batch))
    except Exception as error:  # a boundary: the function is the user's
        slot = f", after asking for {batch.last_asked!r}" if batch.last_asked is not None else ""
        name = getattr(transform, "__qualname__", repr(transform))
        raise BatchError(
            f"transform {name} failed on {_places(cut, claim_of)}{slot}: {type(error).__name__}: "
            f"{error}"
        ) from error


def _places(cut: Cut, claim_of: Callable[[tuple[int, int, int]], Claim]) -> str:
    """The rows of a batch as rows of their splits' streams, which without shuffle are those of the
    files.
    """
    found: list[tuple[str, int, int]] = []
    for span in cut.spans:
        origin, num_rows = span.block.origin, span.block.num_rows
        first, end = (origin.through(row, num_rows) for row in (span.begin, span.end))
        split = claim_of(origin.claim_key).split.id
        if found and (found[-1][0], found[-1][2]) == (split, first):
            first = found.pop()[1]
        found.append((split, first, end))
    return ", ".join(f"rows {first} to {end} of {split}" for split, first, end in found)


def _result(batch: Batch, result: Any) -> Batch:
    if isinstance(result, Batch):
        return result
    if not isinstance(result, Mapping):
        raise TypeError(
            f"expected a Batch or a mapping of slots to tensors, found {type(result).__name__}"
        )
    for name, column in result.items():
        _require_column(name, column, batch.num_rows)
    columns = dict(batch.items()) | {(SLOT, name): column for name, column in result.items()}
    slots_first = sorted(columns, key=lambda key: key[0] != SLOT)
    return Batch(
        Made({key: columns[key] for key in slots_first}),
        num_rows=batch.num_rows,
        extras=batch.extras,
    )


def _require_column(name: Any, column: Any, num_rows: int) -> None:
    """A column of the batch's rows, in memory: only such ones can be packed."""
    tensors = (column.values, column.offsets) if isinstance(column, Jagged) else (column,)
    for tensor in tensors:
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.device.type != "cpu"
            or tensor.requires_grad
        ):
            found = (
                f"{tensor.device} tensor"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise TypeError(
                f"slot {name!r}: expected a CPU tensor without gradient, or a Jagged of such, "
                f"found a {found}"
            )
    found_rows = len(column) if isinstance(column, Jagged) or column.dim() else None
    if found_rows != num_rows:
        raise ValueError(f"slot {name!r}: expected {num_rows} rows, found {found_rows}")


@dataclass(frozen=True)
class Made:
    """Columns as tensors of whatever memory."""

    columns: Mapping[Key, Column]

    @property
    def keys(self) -> Keys:
        return Keys(self.columns)

    def made(self) -> Mapping[Key, Column]:
        return self.columns

    def packed(self) -> Packed:
        return pack(self)

    def moved(self, **how: Any) -> Packed:
        return pack(self).moved(**how)
