"""Rows of TFRecord files whose records are `tf.train.Example` or `SequenceExample`.

A feature becomes a column: a scalar if no row of the sample has several values, otherwise a list. A
feature that a row lacks is null; so is a scalar without a value, while a list without one is empty.
A list of features (of a SequenceExample) is a list with an element for each step, or a list of
lists. A feature of the context that has the name of such a list is the column `context.` with this
name. Numbers of both kinds are doubles. Sparse features are two or more lists, and ragged ones a
list and its row lengths, as tensorflow writes them.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa

from featstore.base.errors import InputError, import_extra
from featstore.base.libraries import LazyModule
from featstore.formats.parsed import (
    MAX_EXAMPLES,
    BadRow,
    ParsedRows,
    RowFormat,
    feature_of,
    inferred,
    is_inferred,
    name_of,
)
from featstore.formats.tfrecord import example_class, is_record_head, read_records
from featstore.ops.columns import invalid_utf8

message_errors: Any = LazyModule("google.protobuf.message")

# Records that become one batch: this many, or fewer if they reach this size together.
_BATCH_ROWS, _BATCH_BYTES = 8_192, 16 << 20
_IS = pa.types
_TYPES = {"float_list": pa.float32(), "int64_list": pa.int64()}
# Up to here a type holds every whole number.
_MAX_WHOLE = {pa.float32(): 2**24, pa.float64(): 2**53}
# The kinds whose values a column of each type takes.
_KINDS = {
    pa.int64(): ("int64_list",),
    pa.float32(): ("float_list", "int64_list"),
    pa.float64(): ("float_list", "int64_list"),
    pa.string(): ("bytes_list",),
    pa.binary(): ("bytes_list",),
}


_CONVERT: Mapping[pa.DataType, Callable[[Any], Any]] = {
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): bytes.decode,
}


@dataclass(frozen=True, kw_only=True)
class TfrecordFormat(RowFormat):
    """TFRecord, plain or compressed with gzip, of messages that the protobuf package parses.

    Raises:
        MissingDependencyError: The extra `tfrecord` is not installed.
    """

    name: str = "tfrecord"

    def __post_init__(self) -> None:
        import_extra("google_crc32c", "reading TFRecord")
        example_class()

    def is_plain(self, head: bytes) -> bool:
        return is_record_head(head)

    def check(self, schema: pa.Schema) -> None:
        for column in schema:
            if _innermost(column.type) not in _KINDS:
                raise InputError(
                    f"column {column.name!r}: a feature of TFRecord cannot be "
                    f"{name_of(column.type)}: expected one of long, float, double, string, "
                    f"binary, or a list of these"
                )

    def sample(self, source: IO[bytes], most: int) -> list[bytes]:
        records = (record for record in read_records(source) if record is not None)
        return [record for record in itertools.islice(records, most) if _parse(record) is not None]

    def infer(self, rows: Sequence[bytes]) -> pa.Schema:
        features: dict[str, _Shape] = {}
        lists: dict[str, _Shape] = {}
        for record in rows:
            message = example_class().FromString(record)
            for name, feature in message.features.feature.items():
                features.setdefault(name, _Shape()).see(feature)
            for name, steps in message.feature_lists.feature_list.items():
                shape = lists.setdefault(name, _Shape(has_steps=True))
                for feature in steps.feature:
                    shape.see(feature)
        return _schema(features, lists)

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        reader = _ExampleReader(schema)
        yield from map(reader.parsed, _batches(read_records(source)))


def _batches(records: Iterator[bytes | None]) -> Iterator[list[tuple[int, bytes | None]]]:
    """Records that become one batch, with their numbers from 1. The last batch may be empty."""
    batch: list[tuple[int, bytes | None]] = []
    num_bytes = 0
    for number, record in enumerate(records, 1):
        batch.append((number, record))
        num_bytes += len(record or b"")
        if len(batch) >= _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    yield batch


@dataclass(kw_only=True)
class _Shape:
    """What the sample shows of one feature.

    Attributes:
        has_steps: Whether it is a list of features.
        kinds: How often it has values of each kind.
        most_values: The most values of one row, or of one step.
        is_text: Whether its bytes, where it has any, are UTF-8.
        is_double: Whether a double holds its whole numbers, where it has any.
    """

    has_steps: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    most_values: int = 0
    is_text: bool = True
    is_double: bool = True

    def see(self, feature: Any) -> None:
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        if len(values):
            self.kinds[kind] += 1
            self.most_values = max(self.most_values, len(values))
            if kind == "bytes_list":
                self.is_text &= not invalid_utf8(pa.array(values, pa.binary())).any()
            self.is_double &= kind != "int64_list" or _most(values) <= _MAX_WHOLE[pa.float64()]

    def type(self) -> pa.DataType:
        kinds, types = Counter(self.kinds), dict(_TYPES)
        if {"float_list", "int64_list"} <= kinds.keys() and self.is_double:
            kinds["float_list"] += kinds.pop("int64_list")
            types["float_list"] = pa.float64()
        kind = kinds.most_common(1)[0][0] if kinds else "bytes_list"
        value = types.get(kind, pa.string() if self.is_text else pa.binary())
        inner = pa.list_(value) if self.most_values > 1 else value
        return pa.list_(inner) if self.has_steps else inner


def _schema(features: Mapping[str, _Shape], lists: Mapping[str, _Shape]) -> pa.Schema:
    """The columns of features, of a context or an Example, and of lists of features."""
    fields = {
        name: inferred(name, of.type(), has_value=bool(of.kinds)) for name, of in lists.items()
    }
    for name, of in features.items():
        column = f"context.{name}" if name in lists else name
        if column in fields or (column != name and column in features):
            raise InputError(
                f"expected a context without a feature {column!r}, since {name!r}, which is in the "
                f"context and in the lists, gets this name; rename one of them"
            )
        fields[column] = inferred(column, of.type(), has_value=bool(of.kinds), feature=name)
    return pa.schema([fields[column] for column in sorted(fields)])


class _BadValueError(Exception):
    """A feature is not of its column's type; the message says how."""


class _ExampleReader:
    """Makes rows of records."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = {column.name: _FeatureColumn(column) for column in schema}
        # The columns of features of the context that have another name there.
        self._renamed = {feature_of(c): c.name for c in schema if feature_of(c) != c.name}

    def parsed(self, records: Sequence[tuple[int, bytes | None]]) -> ParsedRows:
        """The rows of records, given with their numbers. None is one with a wrong checksum."""
        rows, bad = [], []
        unknown: Counter[str] = Counter()
        for number, record in records:
            try:
                row, others = self._row(record)
            except _BadValueError as error:
                bad.append(BadRow(place=f"record {number}", reason=str(error)))
            else:
                rows.append(row)
                unknown.update(others)
        values = zip(*rows, strict=True) if rows else ((),) * len(self._schema)
        arrays = [
            pa.array(column, kind) for column, kind in zip(values, self._schema.types, strict=True)
        ]
        return ParsedRows(
            batch=pa.record_batch(arrays, self._schema),
            num_bad=len(bad),
            examples=tuple(bad[:MAX_EXAMPLES]),
            unknown=unknown,
        )

    def _row(self, record: bytes | None) -> tuple[list[Any], list[str]]:
        """The value of each column, and the names of features that are no column."""
        if record is None:
            raise _BadValueError("its bytes do not match their checksum (CRC-32C)")
        message = _parse(record)
        if message is None:
            raise _BadValueError("expected a tf.train.Example, found bytes that are none")
        row: dict[str, Any] = dict.fromkeys(self._columns)
        unknown = []
        for name, feature in message.features.feature.items():
            column = self._renamed.get(name, name)
            if column in row:
                row[column] = self._columns[column].of_feature(name, feature)
            else:
                unknown.append(name)
        for name, steps in message.feature_lists.feature_list.items():
            if row.get(name) is not None and name not in self._renamed:
                raise _BadValueError(
                    f"feature {name!r}: expected it in the context or in the lists, as in sampled "
                    f"rows, found it in both"
                )
            if name in row:
                row[name] = self._columns[name].of_steps(name, steps.feature)
            else:
                unknown.append(name)
        return list(row.values()), unknown


class _FeatureColumn:
    """Takes the values of one column out of features.

    Both functions raise `_BadValueError` if a feature is not of the column's type.
    """

    def __init__(self, column: pa.Field) -> None:
        self._name = name_of(column.type)
        innermost = _innermost(column.type)
        self._depth = _depth(column.type)
        self._max_whole = _MAX_WHOLE.get(innermost) if is_inferred(column) else None
        self._kinds = _KINDS[innermost]
        self._convert = _CONVERT.get(innermost)

    def of_feature(self, name: str, feature: Any) -> Any:
        """The value of a feature: a scalar, or a list."""
        if self._depth > 1:
            raise _BadValueError(
                f"feature {name!r}: expected a list of features, found a single one"
            )
        values = self._values(name, feature)
        return values if self._depth else self._scalar(name, values)

    def of_steps(self, name: str, steps: Sequence[Any]) -> list[Any]:
        """The values of a list of features: a value or a list of them for each step."""
        if not self._depth:
            raise _BadValueError(
                f"feature {name!r}: expected {self._name}, found a list of features"
            )
        found = [self._values(name, step) or [] for step in steps]
        return found if self._depth > 1 else [self._scalar(name, values) for values in found]

    def _values(self, name: str, feature: Any) -> list[Any] | None:
        kind = feature.WhichOneof("kind")
        if kind is None:
            return None
        values = getattr(feature, kind).value
        if kind not in self._kinds and len(values):
            raise _BadValueError(f"feature {name!r}: expected {self._name}, found a {kind}")
        if self._max_whole and kind == "int64_list" and _most(values) > self._max_whole:
            raise _BadValueError(
                f"feature {name!r}: expected {self._name}, found an int64_list of numbers that it "
                f"does not hold, up to {_most(values)}"
            )
        if self._convert is None:
            return list(values)
        try:
            return list(map(self._convert, values))
        except UnicodeDecodeError as error:
            raise _BadValueError(
                f"feature {name!r}: expected text in UTF-8, found other bytes ({error.reason}); "
                f"as binary they would be kept as they are"
            ) from None

    def _scalar(self, name: str, values: list[Any] | None) -> Any:
        if not values:
            return None
        if len(values) > 1:
            raise _BadValueError(
                f"feature {name!r}: expected {self._name}, found {len(values)} values; as a list "
                f"of it they would be kept"
            )
        return values[0]


def _parse(record: bytes) -> Any | None:
    """The message; None if the bytes are none.

    Bytes of another kind may pass for a message of unknown fields only, so one without features is
    none unless it is empty.
    """
    try:
        message = example_class().FromString(record)
    except message_errors.DecodeError:
        return None
    is_one = message.features.feature or message.feature_lists.feature_list or not record
    return message if is_one else None


def _most(values: Sequence[int]) -> int:
    """The largest of whole numbers without their signs."""
    return max(map(abs, values), default=0)


def _innermost(kind: pa.DataType) -> pa.DataType:
    return _innermost(kind.value_type) if _IS.is_list(kind) else kind


def _depth(kind: pa.DataType) -> int:
    """How many lists are around a value."""
    return 1 + _depth(kind.value_type) if _IS.is_list(kind) else 0
