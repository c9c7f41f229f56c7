"""`Batch`, which the training loop gets."""

import importlib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from featstore.base.errors import ConfigError, MissingDependencyError, nearest
from featstore.base.processes import cached_property
from featstore.base.text_table import short_names
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import (
    CANDIDATE,
    CANDIDATE_LENGTHS,
    LABEL,
    LOG_Q,
    SLOT,
    WEIGHT,
    Key,
)
from featstore.tensors.columns import (
    Column,
    Columns,
    Device,
    Jagged,
    SharedJagged,
    sliced,
    tensors_of,
    with_shared_offsets,
)
from featstore.tensors.gathering import joined
from featstore.tensors.packed import TensorColumns, of_rows, values_of

# The values of one slot, (num_values,), and the number of values of each row, int64 (num_rows,).
Bag = tuple[torch.Tensor, torch.Tensor]


class _Labels(dict[str, Any]):
    """Columns by name. KeyError names those that there are."""

    _what = "label"

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"no {self._what} {name!r} in the batch{nearest(str(name), self)}; there are "
            f"{short_names([*self])}"
        )


class _Candidates(_Labels):
    _what = "slot of candidates"


class Batch:
    """A batch of B rows: `batch["slot"]` is a tensor `(B,)` or `(B, width)`, or a `Jagged`, or,
    of a history with `unique`, a `SharedJagged`; ids as int64 and floats as float32, unless the
    slot was requested otherwise.

    It has the methods of a mapping from the slots' names to their columns: `keys`, `values`,
    `items`, `get`, iteration over names, `dict(batch)` and `**batch`. `len(batch)` is B, the number
    of rows, as of a tensor. It is no `collections.abc.Mapping`: torch's DataLoader makes a dict of
    such, without labels (docs/design/batches.md).

    Tensors that the loader delivers in the same process are views of decoded memory that other
    batches share. They are read-only by contract; `clone()` gives tensors that may be written. A
    batch that was moved, pinned or cloned is packed into one buffer, a shuffled one lies in one
    buffer per dtype, and one from another process in one shared-memory buffer.

    All tensors are made when the first column is asked for. Not thread-safe while that happens.

    Attributes:
        columns: The columns as one object, for code that moves a batch as a whole.
        num_rows: How many rows count: B, or 0 in a padding batch.
        extras: The extra columns, an Arrow table of B rows.
        is_padding: Whether the rows were delivered before, and are repeated so that all ranks make
            the same number of steps. They must not count.
    """

    def __init__(
        self, columns: Columns, *, num_rows: int, extras: pa.Table, is_padding: bool = False
    ) -> None:
        self._length = num_rows
        self.num_rows = 0 if is_padding else num_rows
        self.is_padding = is_padding
        self.extras = extras
        self.columns = columns
        self._made: Mapping[Key, Column] | None = None
        self.last_asked: str | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots, in the order of the selection."""
        return self._names(SLOT)

    def __getitem__(self, slot: str | slice) -> Any:
        """The slot's Tensor, Jagged or SharedJagged, or, of a slice such as `batch[:100]`, a batch
        of these rows: views, with new offsets only.

        Raises:
            KeyError: There is no such slot; with the nearest names.
            ValueError: A slice has a step.
        """
        if isinstance(slot, slice):
            return self._rows(slot)
        self.last_asked = slot
        columns = self._made or self.made()  # Called hundreds of times per batch.
        try:
            return columns[SLOT, slot]
        except KeyError:
            hint = nearest(slot, self.slots)
            for what, names in (
                ("labels", self._names(LABEL)),
                ("extras", self.extras.column_names),
            ):
                if slot in names:
                    hint = f": it is in batch.{what}[{slot!r}]"
            raise KeyError(
                f"no slot {slot!r} in the batch{hint}; there are {short_names(self.slots)}"
            ) from None

    def __contains__(self, slot: object) -> bool:
        return slot in self.slots

    def __iter__(self) -> Iterator[str]:
        return iter(self.slots)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return (
            f"Batch(num_rows={self.num_rows}, slots={short_names(self.slots)}, "
            f"labels={list(self._names(LABEL))})"
        )

    def keys(self) -> KeysView[str]:
        """Names of the slots, in the order of the selection."""
        return dict.fromkeys(self.slots).keys()

    def values(self) -> ValuesView[Any]:
        """The columns of the slots."""
        return self._of_slots().values()

    def items(self) -> ItemsView[str, Any]:
        """Each slot's name and column."""
        return self._of_slots().items()

    def get(self, slot: str, default: Any = None) -> Any:
        """The slot's column, or `default` if the batch does not have it."""
        return self._of_slots().get(slot, default)

    def made(self) -> Mapping[Key, Column]:
        """Every column by its role (`slot`, `label`, `weight`) and name."""
        made = self._made
        if made is None:
            made = self._made = with_shared_offsets(self.columns.made())
        return made

    @cached_property
    def labels(self) -> Mapping[str, torch.Tensor]:
        """Each label as float32 (B,)."""
        return _Labels({name: self._column((LABEL, name)) for name in self._names(LABEL)})

    @property
    def weight(self) -> torch.Tensor | None:
        """float32 (B,); None if the loader was given no weight."""
        names = self._names(WEIGHT)
        return self._column((WEIGHT, names[0])) if names else None

    @cached_property
    def candidates(self) -> Mapping[str, Any]:
        """The slots of the items that were drawn for each row: a tensor (B, per_row), or
        (B, per_row, width); of lists a `Jagged` of B * per_row of them, those of a row one after
        the other. Empty if none are drawn.
        """
        return _Candidates({name: self._of_candidates(name) for name in self._names(CANDIDATE)})

    @property
    def log_q(self) -> torch.Tensor | None:
        """The natural logarithm of the probability with which each candidate is drawn, in each of
        the row's draws: float32 (B, per_row). None if none are drawn.
        """
        names = self._names(LOG_Q)
        return self._column((LOG_Q, names[0])) if names else None

    def dense(self, slots: Sequence[str]) -> torch.Tensor:
        """Float slots side by side in one tensor.

        Args:
            slots: Names of float slots. A slot of fixed width, or a padded list, takes as many
                columns.

        Returns:
            float32 (B, k), in the order of `slots`, with NaN for missing values.

        Raises:
            TypeError: A slot holds ids, or lists that were not padded.
            KeyError: There is no such slot.
        """
        columns = [self._dense_column(name) for name in _names_of("dense()", slots)]
        if not columns:
            raise ValueError("dense(): expected at least one slot, found none")
        dense = columns[0].new_empty(
            (len(self), sum(column.shape[1] for column in columns)), dtype=torch.float32
        )
        # Copied slice by slice: `torch.cat` wakes torch's threads, which then spin on the cores
        # that decode.
        first = 0
        for column in columns:
            dense[:, first : first + column.shape[1]] = column
            first += column.shape[1]
        return dense

    def to_kjt(
        self, slots: Sequence[str] | None = None, *, weights: Mapping[str, str] | None = None
    ) -> Any:
        """Id slots as a TorchRec KeyedJaggedTensor, with the slots' names as keys.

        A scalar is a bag of one id, a slot of fixed width or a padded list a bag of that many, and
        a list a bag of its length; lists that rows share are expanded. A missing value is the id 0.

        Args:
            slots: Names of id slots; None is all of them.
            weights: The float slot with the weights of an id slot, by the name of the id slot:
                one weight for each id, a missing one NaN. Ids of other slots weigh 1. None or
                empty: the result has no weights.

        Returns:
            int64, or int32 if all slots are int32; its weights float32.

        Raises:
            TypeError: A slot holds floats, or one of the weights holds ids.
            ValueError: A slot is given weights and is not among those that are taken, or has
                another number of ids in a row than it has weights.
            MissingDependencyError: torchrec is not installed, or does not fit torch.
        """
        names = (
            [n for n in self.slots if _is_ids(self[n])]
            if slots is None
            else _names_of("to_kjt()", slots)
        )
        if not names:
            raise ValueError("to_kjt(): expected at least one id slot, found none")
        bags = [self._bag(name) for name in names]
        values, lengths = join_bags(bags)
        of_ids = self._weights_of(names, bags, weights) if weights else None
        return _torchrec().KeyedJaggedTensor(
            keys=names, values=values, weights=of_ids, lengths=lengths
        )

    def to(self, device: Device, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device; from the CPU it is packed and goes in one copy per buffer.
        `extras` are not moved. With `non_blocking`, a batch that goes to the CPU may be read once
        its device is synchronized.
        """
        columns = self.columns.moved(device=torch.device(device), non_blocking=non_blocking)
        moved = self.with_columns(columns)
        # Offsets that are on their way cannot be compared, and those of equal lists are shared.
        with torch.inference_mode(False):  # As those that are made later.
            moved._made = columns.made()
        return moved

    def pin_memory(self) -> "Batch":
        """The batch packed in page-locked memory, from which copies to a device need not block."""
        return self.with_columns(self.columns.moved(pin=True))

    def clone(self) -> "Batch":
        """A copy that shares no memory with anything and may be written."""
        return self.with_columns(self.columns.packed())

    @staticmethod
    def concat(batches: Sequence["Batch"]) -> "Batch":
        """One batch of the rows of all batches, in memory of its own.

        Args:
            batches: At least one, with the same columns, on the CPU.

        Raises:
            ValueError: There is no batch, columns or their types differ, only some are padding
                batches, or one is on a device.
        """
        if not batches:
            raise ValueError("concat(): expected at least one batch, found none")
        forms = [_form(batch) for batch in batches]
        for number, form in enumerate(forms):
            for name in dict.fromkeys((*forms[0], *form)):
                if form.get(name) != forms[0].get(name):
                    raise ValueError(
                        f"concat(): {name}: expected {forms[0].get(name, 'none')} in each batch, "
                        f"as in the first, found {form.get(name, 'none')} in batch {number}: "
                        "concatenate batches of one selection"
                    )
        columns = {
            key: [of_rows(values_of(batch.made()[key])) for batch in batches]
            for key in batches[0].columns.keys
        }
        return Batch(
            joined(columns, BufferPool()),
            num_rows=sum(map(len, batches)),
            extras=pa.concat_tables(
                [batch.extras for batch in batches], promote_options="permissive"
            ),
            is_padding=batches[0].is_padding,
        )

    def with_columns(self, columns: Columns, *, is_padding: bool | None = None) -> "Batch":
        """The batch with other columns of as many rows. For code that moves a batch as a whole.

        Args:
            columns: The columns.
            is_padding: None: as this batch.
        """
        padding = self.is_padding if is_padding is None else is_padding
        return Batch(columns, num_rows=len(self), extras=self.extras, is_padding=padding)

    def __reduce__(self) -> tuple[Any, ...]:
        extras = bytes(to_ipc(self.extras))
        return _received, (self.columns.packed(), len(self), extras, self.is_padding)

    def _rows(self, rows: slice) -> "Batch":
        if rows.step not in (None, 1):
            raise ValueError(
                f"batch[{rows.start}:{rows.stop}:{rows.step}]: expected a slice without a step, "
                f"found the step {rows.step}"
            )
        begin, end, _ = rows.indices(len(self))
        end = max(begin, end)
        return Batch(
            TensorColumns(sliced(self.made(), begin, end)),
            num_rows=end - begin,
            extras=self.extras.slice(begin, end - begin),
            is_padding=self.is_padding,
        )

    def _dense_column(self, name: str) -> torch.Tensor:
        """The slot's values: (B, width)."""
        column: Column = self[name]
        if not isinstance(column, torch.Tensor):
            raise TypeError(
                f"dense(): slot {name!r} is a list: select it with {{name: {name}, pad: 8}}, or "
                f"take batch[{name!r}]"
            )
        if not column.is_floating_point():
            raise TypeError(
                f"dense(): slot {name!r} holds ids, which float32 cannot represent: take them with "
                f"to_kjt() or batch[{name!r}]"
            )
        return column.flatten(1) if column.dim() > 1 else column[:, None]

    def _bag(self, name: str) -> Bag:
        column = self[name]
        if not _is_ids(column):
            raise TypeError(
                f"to_kjt(): slot {name!r} holds floats, expected ids: take floats by dense()"
            )
        return _bag_of(column)

    def _weights_of(
        self, names: Sequence[str], bags: Sequence[Bag], weights: Mapping[str, str]
    ) -> torch.Tensor:
        """The weights of all ids in all bags: float32 (num_ids,)."""
        if unknown := [name for name in weights if name not in names]:
            raise ValueError(
                f"to_kjt(): weights of {unknown[0]!r}: expected one of the id slots {list(names)}"
                f"{nearest(unknown[0], names)}"
            )
        return _joined(
            [
                self._weights(name, weights[name], lengths)
                if name in weights
                else torch.ones(len(values), device=values.device)
                for name, (values, lengths) in zip(names, bags, strict=True)
            ]
        )

    def _weights(self, name: str, weight: str, lengths: torch.Tensor) -> torch.Tensor:
        column = self[weight]
        if _is_ids(column):
            raise TypeError(
                f"to_kjt(): weights of {name!r}: expected a float slot, found ids in {weight!r}"
            )
        values, found = _bag_of(column)
        if not torch.equal(found, lengths):
            row = int((found != lengths).nonzero()[0])
            raise ValueError(
                f"to_kjt(): weights of {name!r}: expected as many values in {weight!r} as ids in "
                f"each row, found {int(found[row])} for {int(lengths[row])} ids in row {row} of "
                "the batch; a row without one of the lists has one missing mark there: leave such "
                "rows out by `where`, or select both slots with `pad`"
            )
        return values.float()

    def _of_candidates(self, name: str) -> Column:
        column: Column = self._column((CANDIDATE, name))
        if not isinstance(column, Jagged):
            return column
        lengths = self._column((CANDIDATE_LENGTHS, name)).flatten()
        offsets = lengths.new_zeros(len(lengths) + 1)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return Jagged(column.values, offsets)

    def _of_slots(self) -> dict[str, Any]:
        columns = self.made()
        return {name: columns[SLOT, name] for name in self.slots}

    def _names(self, role: str) -> tuple[str, ...]:
        return self.columns.keys.names[role]

    def _column(self, key: Key) -> Any:
        self.last_asked = key[1]
        return self.made()[key]


def _form(batch: Batch) -> dict[str, str]:
    """What must be the same in batches that are concatenated, by what an error calls it."""
    found = {"padding": "rows of a padding batch" if batch.is_padding else "rows that count"}
    for (role, name), column in batch.made().items():
        values, *of_lists = tensors_of(column)
        shape = f"rows of shape {(*values.shape[1:],)}"
        if of_lists:
            shape = f"lists of {shape}" if values.dim() > 1 else "lists"
        if isinstance(column, SharedJagged):
            shape = f"shared {shape}"
        if values.device.type != "cpu":
            raise ValueError(
                f"concat(): expected batches on the CPU, found one on {values.device}: concatenate "
                "them before they are moved"
            )
        found[f"{role} {name!r}"] = f"{shape}, {values.dtype}"
    return found | {f"extra {field.name!r}": str(field.type) for field in batch.extras.schema}


def _is_ids(column: Column) -> bool:
    return not tensors_of(column)[0].is_floating_point()


def _bag_of(column: Column) -> Bag:
    if isinstance(column, SharedJagged):
        column = column.expand()
    if isinstance(column, Jagged):
        values = column.values
        if values.device.type == "cpu":  # Elsewhere are those of the rows alone: they came packed.
            values = values[int(column.offsets[0]) : int(column.offsets[-1])]
        return values, column.lengths()
    width = column.shape[1] if column.dim() > 1 else 1
    return column.reshape(-1), torch.full((len(column),), width, device=column.device)


def _names_of(what: str, slots: Sequence[str]) -> list[str]:
    if isinstance(slots, str):
        raise TypeError(f"{what}: expected a list of slots, found {slots!r}")
    return list(slots)


def to_ipc(table: pa.Table) -> pa.Buffer:
    """The table in Arrow's stream format; empty if it has no columns. Pickle would store the whole
    memory beneath a slice; the stream format stores only the slice.
    """
    sink = pa.BufferOutputStream()
    if table.num_columns:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def of_ipc(data: Any) -> pa.Table:
    """The table of `to_ipc`, whose columns are views of the data."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all() if len(data) else pa.table({})


def _received(columns: Columns, num_rows: int, extras: bytes, is_padding: bool) -> Batch:
    return Batch(columns, num_rows=num_rows, extras=of_ipc(extras), is_padding=is_padding)


def join_bags(bags: Sequence[Bag]) -> Bag:
    """The concatenated values of all slots, int64 unless all are int32, and their concatenated
    lengths, (num_slots * num_rows,).
    """
    return _joined([values for values, _ in bags]), _joined([lengths for _, lengths in bags])


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates with numpy on the CPU: `torch.cat` wakes torch's threads, which then spin on the
    cores that decode.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return torch.cat(tuple(tensors))
    return torch.from_numpy(np.concatenate([tensor.numpy() for tensor in tensors]))


def _torchrec() -> Any:
    try:
        return importlib.import_module("torchrec.sparse.jagged_tensor")
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            "to_kjt() needs torchrec, and with it the release of fbgemm-gpu (or fbgemm-gpu-cpu) "
            f"that is made for torch {torch.__version__}; it cannot be loaded: {error}; the extra "
            "featstore-pipeline[torchrec] has those for torch 2.13"
        ) from error


def _refuse_to_collate(batches: Any, **options: Any) -> Any:
    """What torch's default collate function of a DataLoader does to batches."""
    raise ConfigError(
        "a DataLoader over a featstore loader: expected batch_size=None, since batches are whole, "
        f"found one that collates {len(batches)} of them: DataLoader(loader, batch_size=None)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate
