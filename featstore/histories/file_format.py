"""The columns of a history in data files, and the metadata that describe them; see
`docs/contracts.md`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.processes import cached_property
from featstore.base.schema import HISTORY, ROLE, Role, Slot, SlotKind, SlotSchema
from featstore.histories.trimming import seen_only, trim
from featstore.ops.arrays import Integers, array_of
from featstore.ops.lists import positions_of
from featstore.ops.timestamps import UNITS

VERSION = 1
# A slot's metadata begin so.
_PREFIX = "featstore."
_COMMON = ("role", "shape")  # All are slots, and lists.
_SIZE_MAX = 2**63 - 1
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class StoredHistory:
    """A history as data files of a table hold it.

    Attributes:
        name: Its name, with which the names of its columns begin.
        key: The row's input that chooses the events.
        as_of: The kept column with the row's time.
        at: The event's input with its time.
        logged_at: The event's input with the time at which it was known; None: `at` is that.
        max_len: The most events of a row.
        window_us: No event is longer before the row's time, in microseconds; None: there is no such
            limit.
        lists: The slots whose values are stored, lists all of them.
        ages: The slots that are made while reading: the time from the event to the row, by their
            unit.

    Raises:
        ValueError: Something of it cannot be so.
    """

    name: str
    key: str
    as_of: str
    at: str
    logged_at: str | None = None
    max_len: int
    window_us: int | None = None
    lists: tuple[Slot, ...] = ()
    ages: tuple[tuple[Slot, str], ...] = ()

    def __post_init__(self) -> None:
        for what in ("max_len", "window_us"):
            number = getattr(self, what)
            if number is not None and not 1 <= number <= _SIZE_MAX:
                raise ValueError(f"{what}: expected 1 to 2^63 - 1, found {number}")
        for slot, unit in self.ages:
            if unit not in UNITS or slot.kind is not SlotKind.FLOAT:
                raise ValueError(f"{slot.name}: expected a float in {', '.join(UNITS)}")
        names = [slot.name for slot in self.slots]
        if not all(slot.is_list for slot in self.slots) or len(set(names)) < len(names):
            raise ValueError(f"slots: expected lists with names of their own, found {names}")

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that a batch may have."""
        return (*self.lists, *(slot for slot, _ in self.ages))

    @property
    def end(self) -> str:
        """The column with the ends of rows' ranges in their holders' lists."""
        return f"{self.name}_end"

    @property
    def length(self) -> str:
        """The column with how many events a row has."""
        return f"{self.name}_length"

    @property
    def back(self) -> str:
        """The column with how many rows before each row its holder is."""
        return f"{self.name}_back"

    @property
    def key_column(self) -> str:
        """The column with the sign of a row's key; 0: the row has no history."""
        return f"{self.name}_key"

    @property
    def times(self) -> Slot:
        """The list of the events' times, in microseconds."""
        return Slot(name=f"{self.name}_at", kind=SlotKind.ID, shape=(None,))

    @cached_property
    def row_fields(self) -> tuple[pa.Field, ...]:
        """The kept columns of the table's schema: int32 each."""
        described = {HISTORY: self.to_metadata().encode()}
        return (
            pa.field(self.end, pa.int32(), metadata=described),
            pa.field(self.length, pa.int32()),
            pa.field(self.back, pa.int32()),
        )

    @cached_property
    def hidden_fields(self) -> tuple[pa.Field, ...]:
        """The columns of data files that the table's schema lacks: the key, the lists, the times.

        No other reader shall take lists of all events of a key for those of one row.
        """
        role = {ROLE: Role.HISTORY.encode()}
        lists = [
            slot.to_field().with_metadata({**slot.to_field().metadata, **role})
            for slot in (*self.lists, self.times)
        ]
        return (pa.field(self.key_column, pa.int64(), nullable=False, metadata=role), *lists)

    @property
    def encodings(self) -> Mapping[str, str]:
        """The encodings of leaf columns that are not to be chosen by their values."""
        return {_leaf(self.times): "DELTA_BINARY_PACKED"}

    @property
    def list_paths(self) -> list[str]:
        """The leaf columns of the slots that are stored."""
        return [*map(_leaf, self.lists)]

    def to_metadata(self) -> str:
        """The JSON text of the metadata, with sorted keys: equal histories have equal texts."""
        described = {
            "version": VERSION,
            "name": self.name,
            "key": self.key,
            "as_of": self.as_of,
            "at": self.at,
            "logged_at": self.logged_at,
            "unit": "us",
            "max_len": self.max_len,
            "window_us": self.window_us,
            "segments": [],
            "slots": [_described(slot) for slot in self.lists],
            "derived": [{**_described(slot), "unit": unit} for slot, unit in self.ages],
        }
        return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_metadata(cls, text: str | bytes, where: str) -> "StoredHistory":
        """The history that the text describes.

        Args:
            text: The metadata.
            where: The column, for errors.

        Raises:
            DataFileError: The text is of a later version, or not what `to_metadata` writes.
        """
        try:
            found = json.loads(text)
            version = found["version"]
            if type(version) is int and version > VERSION:
                raise DataFileError(
                    f"{where}: expected a history of format {VERSION} or earlier, found format "
                    f"{version}; read it with a later featstore"
                )
            if version != VERSION or found["unit"] != "us" or found["segments"] != []:
                raise ValueError(f"format {version!r}, unit {found['unit']!r}, or segments")
            return cls(
                **{name: _of_type(found[name], str) for name in ("name", "key", "as_of", "at")},
                logged_at=_of_type(found["logged_at"], str, type(None)),
                max_len=_of_type(found["max_len"], int),
                window_us=_of_type(found["window_us"], int, type(None)),
                lists=tuple(map(_slot, found["slots"])),
                ages=tuple((_slot(one), _of_type(one["unit"], str)) for one in found["derived"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataFileError(
                f"{where}: expected what describes a history, found {error!r} in {text!r:.200}; "
                "extract the table again"
            ) from None


def histories_of(schema: SlotSchema) -> tuple[StoredHistory, ...]:
    """The histories of a table.

    Raises:
        DataFileError: The metadata of a column are not those of a history.
    """
    found = [
        (column.name, column.metadata[HISTORY])
        for column in schema.kept
        if HISTORY in (column.metadata or {})
    ]
    return tuple(
        StoredHistory.from_metadata(text, f"the table's column {name!r}") for name, text in found
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class HistoryRanges:
    """What rows see of a history.

    Attributes:
        history: The history.
        keys: The signs of the rows' keys, int64 (num_rows,); 0 where a row sees nothing for lack of
            a key or a time.
        sharing: Tells the rows that share a list, int64 (num_rows,): the keys or, of rows that had
            lists, their holders + 1.
        begin: Where each row's range begins in the events, int64 (num_rows,).
        end: Where it ends, int64 (num_rows,).
        values: The events, of which those of rows that share stand side by side, of each list and
            the times, by the names of the columns, in pieces: int64 or float32 (num_events,).
    """

    history: StoredHistory
    keys: Integers
    sharing: Integers
    begin: Integers
    end: Integers
    values: Mapping[str, Sequence[Array]]

    def columns(self, rows: Array | slice = slice(None)) -> dict[str, pa.Array]:
        """The columns of a row group of these rows, by name. Events that none sees are in no list.

        Args:
            rows: Which rows, as numpy indexes arrays.
        """
        history, keys = self.history, self.keys[rows]
        num_events = sum(map(len, self.values[history.times.name]))
        seen, begin, end = seen_only(self.begin[rows], self.end[rows], num_events)
        trimmed = trim(self.sharing[rows], begin, end)
        places = seen[positions_of(trimmed.starts, trimmed.counts)]
        values = {name: _joined(pieces)[places] for name, pieces in self.values.items()}
        holders = np.flatnonzero(trimmed.counts)
        return {
            history.end: array_of(trimmed.end),
            history.length: array_of(trimmed.length),
            history.back: array_of(trimmed.back),
            history.key_column: array_of(keys),
            **list_columns(history, holders, trimmed.counts[holders], values, len(keys)),
        }


def list_columns(
    history: StoredHistory, holders: Array, lengths: Array, values: Mapping[str, Array], rows: int
) -> dict[str, pa.Array]:
    """The lists of a row group, as data files hold them.

    Args:
        history: The history.
        holders: The rows that hold a list, ascending: int64 (num_holders,).
        lengths: How many events each has: int64 (num_holders,).
        values: The events of all holders, one after the other, of each slot and of the times, by
            the names of the columns: int64 or float32 (num_events,).
        rows: How many rows the row group has.

    Raises:
        ValueError: A column has more or fewer events, or there are more than 2^31 - 1.
    """
    of_rows = np.zeros(rows, np.int64)
    of_rows[holders] = lengths
    ends = np.cumsum(of_rows)
    num_events = int(ends[-1]) if rows else 0
    if num_events >= 2**31:
        raise ValueError(f"expected fewer than 2^31 events in a row group, found {num_events}")
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    found = {}
    for slot in (*history.lists, history.times):
        if len(values[slot.name]) != num_events:
            raise ValueError(
                f"{slot.name}: expected {num_events} values, found {len(values[slot.name])}"
            )
        elements = pa.array(values[slot.name], slot.arrow_type().value_type)
        found[slot.name] = pa.ListArray.from_arrays(offsets, elements, type=slot.arrow_type())
    return found


def _leaf(slot: Slot) -> str:
    """The leaf column of a list, as Parquet names it."""
    return f"{slot.name}.list.element"


def _joined(pieces: Sequence[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _described(slot: Slot) -> dict[str, Any]:
    """The slot's metadata, without what all slots of histories have in common."""
    metadata = slot.to_field().metadata
    texts = {key.decode().removeprefix(_PREFIX): text.decode() for key, text in metadata.items()}
    return {"name": slot.name, **{key: text for key, text in texts.items() if key not in _COMMON}}


def _slot(described: Mapping[str, Any]) -> Slot:
    texts = {
        f"{_PREFIX}{key}": _of_type(text, str)
        for key, text in described.items()
        if key not in ("name", "unit")
    }
    kind = pa.float32() if texts[f"{_PREFIX}kind"] == SlotKind.FLOAT else pa.int64()
    field = pa.field(_of_type(described["name"], str), pa.list_(kind), metadata=texts)
    slot = Slot.from_field(field)
    if slot is None or not slot.is_list:
        raise ValueError(f"{described}: expected the metadata of a list slot")
    return slot


def _of_type(value: Any, *types: type) -> Any:
    if type(value) not in types:
        expected = " or ".join(each.__name__ for each in types)
        raise TypeError(f"expected {expected}, found {value!r}")
    return value
