"""The request of a loader, checked against the table's schema before any file is opened; and how
negatives are downsampled: a hash chooses which rows with label 0 are kept.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import (
    ConfigError,
    DataFileError,
    SelectionError,
    nearest,
    require_integer,
    require_text,
)
from featstore.base.processes import cached_property
from featstore.base.schema import Slot, SlotSchema
from featstore.base.text_table import short_names
from featstore.histories.file_format import StoredHistory, histories_of
from featstore.loader.request.options import (
    SlotRequest,
    as_list,
    as_options,
    requested_slots,
    require_keys,
    require_known,
)
from featstore.ops import hashing
from featstore.ops.timestamps import duration_text, parse_duration
from featstore.reading.buffers import Array
from featstore.reading.file_columns import Selection
from featstore.reading.histories import SelectedHistory, joined
from featstore.selection.where import Where, parse_where

RAISE, DROP = "raise", "drop"
LABEL_KEYS = ("name", "null")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Which rows with label 0 are kept.

    A row is kept if the hash of its key is below `rate`, so the rows of a lower rate are among
    those of a higher one. Kept rows have their weight multiplied by 1 / rate.

    Attributes:
        label: The label whose value 0 marks a negative.
        rate: Share of the negatives that are kept, above 0 and at most 1.
        seed: Seed of the hash, an int32.
        column: The row's key, as in the operator `sample(column, rate, seed)`. None: the path of
            its data file and its position in it.

    Raises:
        ConfigError: `rate` or `seed` is out of range.
    """

    label: str
    rate: float
    seed: int = 0
    column: str | None = None

    def __post_init__(self) -> None:
        is_rate = (
            isinstance(self.rate, int | float)
            and not isinstance(self.rate, bool)
            and 0 < self.rate <= 1
        )
        if not is_rate:
            raise ConfigError(
                f"negatives.rate: expected a number above 0 and up to 1, found {self.rate!r}"
            )
        is_seed = (
            isinstance(self.seed, int)
            and not isinstance(self.seed, bool)
            and -(2**31) <= self.seed < 2**31
        )
        if not is_seed:
            raise ConfigError(f"negatives.seed: expected an int32, found {self.seed!r}")

    @property
    def columns(self) -> set[str]:
        """The columns that are read to choose rows."""
        return {self.label} if self.column is None else {self.label, self.column}

    def keeps(self, *hashes: pa.Array) -> Array:
        """Which rows would be kept as negatives: bool (num_rows,).

        Args:
            hashes: Value hashes of the rows' keys, int64 (num_rows,) each.
        """
        if self.rate >= 1:
            return np.ones(len(hashes[0]), bool)
        return np.asarray(hashing.sign(self.seed, *hashes)) < int(self.rate * 2**63)

    def weighted(self, labels: Array, weights: Array | None) -> Array:
        """The weights of delivered rows: float32 (num_rows,).

        Args:
            labels: (num_rows,).
            weights: Weights as read, (num_rows,); None stands for ones.
        """
        factors = np.where(labels == 0, np.float32(1 / self.rate), np.float32(1))
        return factors if weights is None else weights * factors


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """How a history is delivered.

    Attributes:
        max_len: The most events of a row, the newest ones.
        window: No event is longer before its row: text such as `12h` or `30d`.
        unique: Whether a batch has each event once, however many of its rows see it.

    Raises:
        ConfigError: `max_len` is not an integer of 1 or more, `window` is no time, or `unique` is
            no boolean.
    """

    max_len: int | None = None
    window: str | None = None
    unique: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.unique, bool):
            raise ConfigError(f"histories: unique: expected true or false, found {self.unique!r}")
        if self.max_len is not None:
            require_integer("histories: max_len", self.max_len)
        _ = self.window_us

    @property
    def window_us(self) -> int | None:
        """In microseconds."""
        try:
            return None if self.window is None else parse_duration(self.window)
        except ValueError:
            raise ConfigError(
                f"histories: window: expected a time above 0, such as 12h or 30d, found "
                f"{self.window!r}"
            ) from None


HistoriesOption = Mapping[str, HistoryOptions | Mapping[str, Any]]


def position_hashes(path: str, first_row: int, num_rows: int) -> tuple[pa.Array, pa.Array]:
    """Value hashes of rows that have no key: of their file's path, and of their numbers in it."""
    path_hash = hashing.value_hash(pa.array([path]))[0].as_py()
    rows = pa.array(np.arange(first_row, first_row + num_rows))
    return pa.array(np.full(num_rows, path_hash, np.int64)), hashing.value_hash(rows)


@dataclass(frozen=True, kw_only=True)
class LabelRequest:
    """A numeric column that is delivered as float32.

    Attributes:
        field: The column.
        null: What a null does: `raise`, `drop` the row, or become this number.
    """

    field: pa.Field
    null: str | float = RAISE

    @property
    def name(self) -> str:
        return str(self.field.name)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which columns are delivered, and which rows.

    Attributes:
        slots: The selected slots with their options.
        labels: The labels.
        weight: The column of the rows' weights.
        extras: Columns that are delivered as Arrow.
        where: The condition on rows.
        negatives: How negatives are downsampled.
        histories: The histories that selected slots are of.
        own_item: The id slot of the rows' own items, if candidates are drawn for them.
        candidates: What is drawn, for the digest.
        schema: The table's schema.
    """

    slots: tuple[SlotRequest, ...]
    labels: tuple[LabelRequest, ...] = ()
    weight: LabelRequest | None = None
    extras: tuple[pa.Field, ...] = ()
    where: Where | None = None
    negatives: Negatives | None = None
    histories: tuple[SelectedHistory, ...] = ()
    own_item: Slot | None = None
    candidates: Mapping[str, Any] | None = None
    schema: SlotSchema

    @property
    def is_gathered(self) -> bool:
        """Whether rows are gathered even in the file's order, since they share what they have."""
        return bool(self.histories)

    @cached_property
    def unique_slots(self) -> tuple[str, ...]:
        """The slots of histories of which a batch has each event once: ages differ by row."""
        own = [slot.name for each in self.histories if each.unique for slot in each.history.lists]
        return tuple(item.slot.name for item in self.slots if item.slot.name in own)

    @property
    def numbers(self) -> tuple[LabelRequest, ...]:
        """The labels, and the weight if there is one."""
        return self.labels if self.weight is None else (*self.labels, self.weight)

    def require_no_histories(self, what: str) -> None:
        """ConfigError if slots of histories are selected, which `what` does not have."""
        if self.histories:
            name = next(item.slot.name for item in self.slots if item.history)
            raise ConfigError(
                f"{what}: expected no slots of histories, which only a loader that decodes files "
                f"gives, found {name!r}: leave it out of `slots`"
            )

    def list_slot(self, what: str, name: str) -> SlotRequest:
        """The slot of this name, which is delivered as lists.

        Args:
            what: What names it, for the error.
            name: The name.

        Raises:
            ConfigError: It is not selected, or not delivered as lists.
        """
        lists = {item.slot.name: item for item in self.slots if item.is_jagged}
        if name not in lists:
            raise ConfigError(
                f"{what}: expected a list slot that is selected without pad, found {name!r}"
                f"{nearest(str(name), lists)}: select it in `slots`, or choose another one"
            )
        return lists[name]

    @cached_property
    def sequences(self) -> tuple[tuple[Slot, ...], ...]:
        """The selected slots that have lists of the events of one sequence, several of each."""
        found = dict[str, list[Slot]]()
        for item in self.slots:
            if item.slot.sequence is not None:
                found.setdefault(item.slot.sequence, []).append(item.slot)
        return tuple(tuple(slots) for slots in found.values() if len(slots) > 1)

    @property
    def partition_keys(self) -> Mapping[str, pa.Field]:
        return {field.name: field for field in self.schema.partition_keys}

    @property
    def where_slots(self) -> tuple[Slot, ...]:
        """The slots with missing marks that `where` reads."""
        return self._slots_of(self.where.columns if self.where else ())

    @property
    def where_others(self) -> tuple[pa.Field, ...]:
        """The other columns that `where` reads, with the values of the files."""
        return self._others_of(self.where.columns if self.where else ())

    def reads(self, *, is_decided: bool) -> tuple[Selection | None, Selection]:
        """The columns that are read first, to decide which rows are delivered (None: all rows are),
        and the remaining columns, without those that histories need, `shared` ones too.

        Args:
            is_decided: Whether `where` is true for all rows of the file.
        """
        return self._reads[is_decided]

    @cached_property
    def _reads(self) -> tuple[tuple[Selection | None, Selection], ...]:
        """For `is_decided` false and true. Looked up for every file, so computed only once."""
        first = [self._filter_selection(is_decided=is_decided) for is_decided in (False, True)]
        rest = self._of_rows
        if self.shared:
            rest = rest.without(Selection(others=self.shared))
        return tuple((each, rest if each is None else rest.without(each)) for each in first)

    @cached_property
    def shared(self) -> tuple[pa.Field, ...]:
        """The columns of rows that histories need, too, such as the time of rows."""
        of_lists = {field.name for each in self.histories for field in each.selection.others}
        return tuple(field for field in self._of_rows.others if field.name in of_lists)

    def _filter_selection(self, *, is_decided: bool) -> Selection | None:
        names = set() if is_decided or self.where is None else set(self.where.columns)
        names |= {label.name for label in self.labels if label.null == DROP}
        names |= self.negatives.columns if self.negatives else set()
        # Also slots that are delivered: what the filters have read is not read again.
        slots = tuple(slot for slot in self._of_rows.slots if slot.name in names)
        return Selection(slots=slots, others=self._others_of(names)) if names else None

    def _slots_of(self, names: Collection[str]) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.schema.seen if slot.name in names)

    def _others_of(self, names: Collection[str]) -> tuple[pa.Field, ...]:
        """Columns of data files as others than slots. A label may be a slot in the schema."""
        fields = {field.name: field for field in self.schema.seen.others}
        fields |= {label.name: label.field for label in self.labels}
        return tuple(field for name, field in fields.items() if name in names)

    @cached_property
    def selection(self) -> Selection:
        """All columns to read from data files."""
        own = [each.selection for each in self.histories]
        return joined([self._of_rows, *own]) if own else self._of_rows

    @cached_property
    def _of_rows(self) -> Selection:
        """Without those of histories."""
        names = self.negatives.columns if self.negatives else ()
        own = (item.slot for item in self.slots if item.history is None)
        chosen = (*own, *self.where_slots, *self._slots_of(names))
        chosen += () if self.own_item is None else (self.own_item,)
        slots = {slot.name: slot for slot in chosen}
        fields = (
            *(item.field for item in self.numbers),
            *self.extras,
            *self.where_others,
            *self._others_of(names),
        )
        others = {field.name: field for field in fields if field.name not in self.partition_keys}
        return Selection(slots=tuple(slots.values()), others=tuple(others.values()))

    @property
    def digest(self) -> str:
        """A hash of what is delivered of a table: 32 hex digits (docs/contracts.md)."""
        parts: dict[str, Any] = {
            "where": self.where.text if self.where else None,
            "slots": [item.key for item in self.slots],
            "labels": [[label.name, label.null] for label in self.labels],
            "weight": self.weight.name if self.weight else None,
            "extras": [field.name for field in self.extras],
        }
        if self.negatives is not None:
            parts["negatives"] = vars(self.negatives)
        if shortened := {each.history.name: each.key for each in self.histories if any(each.key)}:
            parts["histories"] = shortened
        if self.candidates is not None:
            parts["candidates"] = self.candidates
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def resolve(
    schema: SlotSchema,
    *,
    slots: Iterable[str | Mapping[str, Any]],
    labels: Iterable[str | Mapping[str, Any]] = (),
    weight: str | None = None,
    extras: Iterable[str] = (),
    where: str | None = None,
    negatives: Negatives | Mapping[str, Any] | None = None,
    histories: HistoriesOption | None = None,
) -> Request:
    """The request for these arguments of `FeatureLoader`.

    Raises:
        ConfigError: An argument is malformed, or does not fit the column's type.
        SelectionError: The table has no such column, or `where` cannot be parsed.
    """
    stored = histories_of(schema)
    chosen = requested_slots(schema, as_list("slots", slots), stored)
    of_history = {
        each.name: [item.slot.name for item in chosen if item.history == each.name]
        for each in stored
    }
    options = _history_options(histories, of_history)
    numbers = tuple(_label(schema, item) for item in as_list("labels", labels))
    if not chosen:
        raise ConfigError(
            "slots: expected at least one slot, by name or glob, found none: a batch without "
            "features trains nothing; Table.to_arrow reads labels alone"
        )
    return Request(
        slots=chosen,
        labels=numbers,
        weight=None
        if weight is None
        else LabelRequest(field=number_field(schema, weight, "weight")),
        extras=tuple(_extra(schema, name) for name in as_list("extras", extras)),
        where=None if where is None else parse_where(where, _types(schema)),
        negatives=_checked_negatives(schema, negatives, [label.name for label in numbers]),
        histories=tuple(
            _selected_history(schema, each, of_history[each.name], options.get(each.name))
            for each in stored
            if of_history[each.name]
        ),
        schema=schema,
    )


def _history_options(
    option: HistoriesOption | None, known: Mapping[str, Sequence[str]]
) -> Mapping[str, HistoryOptions]:
    """The option `histories`. ConfigError if a history is not in the table, or not selected.

    Args:
        option: The option.
        known: The selected slots of each history.
    """
    if not isinstance(option or {}, Mapping):
        raise ConfigError(f"histories: expected {{name: {{max_len: ...}}}}, found {option!r}")
    found = {}
    for name, given in (option or {}).items():
        require_known("histories", [name], known)
        try:
            found[name] = as_options(HistoryOptions, given, "histories") or HistoryOptions()
        except ConfigError as error:
            said = str(error).removeprefix("histories")
            raise ConfigError(f"histories.{name}{said}") from None
        if not known[name]:
            raise ConfigError(
                f"histories.{name}: expected slots of it in `slots`, found none: name them there, "
                "or leave the history out"
            )
    return found


def _selected_history(
    schema: SlotSchema,
    history: StoredHistory,
    names: Sequence[str],
    options: HistoryOptions | None,
) -> SelectedHistory:
    fields = {field.name: field for field in schema.kept}
    for name in (history.as_of, *(field.name for field in history.row_fields)):
        if name not in fields:
            raise DataFileError(
                f"history {history.name!r}: expected a kept column {name!r} in the table, found "
                "none; extract the table again"
            )
    options = options or HistoryOptions()
    max_len, window_us = options.max_len, options.window_us
    if max_len is not None and max_len > history.max_len:
        raise _longer(history, "max_len", str(history.max_len), max_len)
    if window_us and history.window_us and window_us > history.window_us:
        raise _longer(history, "window", duration_text(history.window_us), options.window)
    return SelectedHistory(
        history=history,
        names=frozenset(names),
        fields=fields,
        max_len=max_len,
        window_us=window_us,
        unique=options.unique,
    )


def _longer(history: StoredHistory, what: str, most: str, found: object) -> ConfigError:
    return ConfigError(
        f"histories.{history.name}.{what}: expected at most {most}, as was extracted, found "
        f"{found}: extract the table again with more"
    )


def _label(schema: SlotSchema, item: Any) -> LabelRequest:
    if isinstance(item, str):
        return LabelRequest(field=number_field(schema, item, "labels"))
    if not isinstance(item, Mapping):
        raise ConfigError(f"labels: expected a name or {{name: ..., null: ...}}, found {item!r}")
    # YAML reads the key of `{name: click, null: drop}` as null, not as text.
    item = {"null" if key is None else key: value for key, value in item.items()}
    name = require_keys("labels", item, LABEL_KEYS)
    null = item.get("null", RAISE)
    is_number = isinstance(null, int | float) and not isinstance(null, bool)
    is_value = is_number and not abs(null) > _LARGEST  # NaN is one
    if not is_value and null not in (RAISE, DROP):
        raise ConfigError(
            f"labels: {name!r}: expected null: drop, raise or a number that float32 holds, "
            f"found {null!r}"
        )
    return LabelRequest(
        field=number_field(schema, name, "labels"), null=float(null) if is_value else null
    )


def _checked_negatives(
    schema: SlotSchema, option: Negatives | Mapping[str, Any] | None, labels: Sequence[str]
) -> Negatives | None:
    """The option `negatives`. ConfigError if its label is not requested, or its column has no
    value hash.
    """
    if (negatives := as_options(Negatives, option, "negatives")) is None:
        return None
    if negatives.label not in labels:
        raise ConfigError(
            f"negatives.label: expected one of labels, found "
            f"{negatives.label!r}{nearest(negatives.label, labels)}"
        )
    if negatives.column is not None:
        type_ = _field(schema, negatives.column, "negatives.column").type
        kinds = (
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_boolean,
            pa.types.is_timestamp,
        )
        if not any(is_kind(type_) for is_kind in kinds) or any(
            key.name == negatives.column for key in schema.partition_keys
        ):
            raise ConfigError(
                f"negatives.column: {negatives.column!r}: expected a scalar column of the data "
                f"files that has a text form, found {type_}"
            )
    return negatives


def _types(schema: SlotSchema) -> dict[str, pa.DataType]:
    seen = schema.seen.to_arrow(nullable=True, partition_keys=True)
    return {field.name: field.type for field in seen}


def _field(schema: SlotSchema, name: str, what: str) -> pa.Field:
    require_text(what, name)
    schema = schema.seen
    if name in schema:
        return schema[name].to_field(nullable=True)
    found = next(
        (field for field in (*schema.others, *schema.partition_keys) if field.name == name), None
    )
    if found is None:
        fields = (*schema.others, *schema.partition_keys)
        names = [*(field.name for field in fields), *(slot.name for slot in schema)]
        raise SelectionError(
            f"{what}: no column {name!r} in the table{nearest(name, names)}; there are "
            f"{short_names(names)}"
        )
    return found.with_nullable(True)


def _extra(schema: SlotSchema, name: str) -> pa.Field:
    field = _field(schema, name, "extras")
    if name in schema and schema[name].is_declared:
        raise ConfigError(
            f"extras: {name!r} is a slot: select it under slots, to get it as tensors"
        )
    return field


def number_field(schema: SlotSchema, name: str, what: str) -> pa.Field:
    """The scalar column of numbers of this name, which is no column of signs.

    Args:
        schema: The table's schema.
        name: The column.
        what: What names it, for the errors.

    Raises:
        ConfigError: The column is of another type.
        SelectionError: There is no such column.
    """
    field = _field(schema, name, what)
    is_number = (
        pa.types.is_integer(field.type)
        or pa.types.is_floating(field.type)
        or pa.types.is_boolean(field.type)
    )
    if not is_number or any(key.name == name for key in schema.partition_keys):
        raise ConfigError(
            f"{what}: {name!r}: expected a scalar numeric column of the data files, found "
            f"{field.type}"
        )
    if name in schema and schema[name].holds_signs:
        raise ConfigError(
            f"{what}: {name!r}: expected a number, found the signs of an id slot, hashes that "
            f"float32 cannot hold: name the raw column under `labels` or `weight` of the spec"
        )
    return field
