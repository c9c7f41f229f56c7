"""Rows as TFRecord: `tf.train.Example` messages by the protobuf package, in the record framing,
without tensorflow.

A record is its length (uint64, little endian), the masked crc32c of the length, the message, the
masked crc32c of the message. The masking and the message are those of tensorflow's
`record_writer.h` and `example.proto`.
"""

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import google_crc32c
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

BATCH_ROWS = 8_192
RECORD_OF_FOO = bytes.fromhex(
    "0300000000000000b099490e666f6f618abefe"
)  # as tensorflow writes b"foo"; Apache Beam tests with it
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_LISTS = {
    "bytes_list": ("BytesList", "TYPE_BYTES"),
    "float_list": ("FloatList", "TYPE_FLOAT"),
    "int64_list": ("Int64List", "TYPE_INT64"),
}


def write_records(sink: IO[bytes], messages: Iterable[bytes]) -> int:
    """Frames the messages one after the other; returns the bytes written."""
    num_bytes = 0
    for message in messages:
        length = _LENGTH.pack(len(message))
        num_bytes += sink.write(
            b"".join((length, _masked_crc(length), message, _masked_crc(message)))
        )
    return num_bytes


def read_records(source: IO[bytes]) -> Iterator[bytes]:
    """The messages. ValueError where the source ends within a record or a checksum is wrong."""
    while head := source.read(_LENGTH.size + _CRC.size):
        length = _checked(head[: _LENGTH.size], head[_LENGTH.size :])
        num_bytes = _LENGTH.unpack(length)[0]
        body = source.read(num_bytes + _CRC.size)
        yield _checked(body[:num_bytes], body[num_bytes:])


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _checked(data: bytes, crc: bytes) -> bytes:
    if crc != _masked_crc(data):
        raise ValueError(
            f"expected the masked crc32c {_masked_crc(data).hex()} of {len(data)} bytes, found "
            f"{crc.hex() or 'the end'}"
        )
    return data


def _example_class() -> Any:
    """`tf.train.Example`: `Features features = 1`, in it `map<string, Feature> feature = 1`; a
    `Feature` is one of `_LISTS`.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )
    types = descriptor_pb2.FieldDescriptorProto
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, (message, value_type)) in enumerate(_LISTS.items(), 1):
        values = file.message_type.add(name=message)
        values.field.add(
            name="value", number=1, label=types.LABEL_REPEATED, type=getattr(types, value_type)
        )
        held = feature.field.add(
            name=field,
            number=number,
            label=types.LABEL_OPTIONAL,
            type=types.TYPE_MESSAGE,
            oneof_index=0,
        )
        held.type_name = f".tensorflow.{message}"
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=types.LABEL_OPTIONAL, type=types.TYPE_STRING)
    _add_message(entry, "value", "Feature", types.LABEL_OPTIONAL, 2)
    _add_message(features, "feature", "Features.FeatureEntry", types.LABEL_REPEATED)
    _add_message(
        file.message_type.add(name="Example"), "features", "Features", types.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _add_message(holder: Any, name: str, type_name: str, label: Any, number: int = 1) -> None:
    message_type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    holder.field.add(
        name=name,
        number=number,
        label=label,
        type=message_type,
        type_name=f".tensorflow.{type_name}",
    )


Example = _example_class()


def examples(rows: pa.Table) -> Iterator[bytes]:
    """A message a row. What is missing (0, NaN, a list of one such element; null in labels and kept
    columns) is left out.
    """
    fields = [_field_of(column.type) for column in rows.schema]
    for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
        columns = [
            _present(field, column)
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            example = Example()
            feature = example.features.feature
            for name, field, found in zip(rows.column_names, fields, values, strict=True):
                if found is not None:
                    kind = getattr(feature[name], field)
                    kind.SetInParent()  # an empty list is known to be empty
                    kind.value.extend(found)
            yield example.SerializeToString()


def parse_rows(messages: Iterable[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of these messages, `BATCH_ROWS` at a time; what was left out is missing again."""
    fields = [(column.name, _field_of(column.type), _missing(column)) for column in schema]
    texts = {column.name for column in schema if pa.types.is_string(column.type)}
    remaining = iter(messages)
    while taken := list(itertools.islice(remaining, BATCH_ROWS)):
        columns: dict[str, list[Any]] = {column.name: [] for column in schema}
        for message in taken:
            feature = Example.FromString(message).features.feature
            for name, field, missing in fields:
                columns[name].append(
                    list(getattr(feature[name], field).value) if name in feature else missing
                )
        yield pa.record_batch(
            [_column(columns[c.name], c, c.name in texts) for c in schema], schema
        )


def _column(found: list[Any], field: pa.Field, is_text: bool) -> pa.Array:
    if not pa.types.is_list(field.type):
        found = [None if values is None else values[0] for values in found]
    return pa.array(
        [v if v is None else v.decode() for v in found] if is_text else found, field.type
    )


def _present(field: pa.Field, column: pa.Array) -> Iterator[Sequence[Any] | None]:
    """Each row's values; None where they are missing."""
    missing = _missing(field)
    is_list, is_text = pa.types.is_list(field.type), pa.types.is_string(field.type)
    for found in column.to_pylist():
        values = (
            found if is_list else None if found is None else [found.encode() if is_text else found]
        )
        yield (
            None
            if values is None or values == missing or (missing is not None and _is_nan(values))
            else values
        )


def _is_nan(values: Sequence[Any]) -> bool:
    return len(values) == 1 and bool(values[0] != values[0])


def _missing(field: pa.Field) -> list[Any] | None:
    """What a missing value is as a list: of slots, which hold no nulls, their mark; else None."""
    return None if field.nullable else [math.nan if _field_of(field.type) == "float_list" else 0]


def _field_of(arrow_type: pa.DataType) -> str:
    value = arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type
    return (
        "float_list"
        if pa.types.is_floating(value)
        else "bytes_list"
        if pa.types.is_string(value)
        else "int64_list"
    )
