"""The records of TFRecord files, each checked by its checksums.

A record is its length (uint64, little endian), the masked CRC-32C of the length, the bytes, and the
masked CRC-32C of the bytes (https://www.tensorflow.org/tutorials/load_data/tfrecord).

The bytes are a `tf.train.Example` or `tf.train.SequenceExample`, read without tensorflow by the
protobuf package. Both are read as one message: an Example has features only, a SequenceExample,
whose context has the same field number, has lists of features besides. The numbers are those of
tensorflow's `example.proto` and `feature.proto`.
"""

import functools
import struct
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from featstore.base.errors import InputError, import_extra
from featstore.base.libraries import LazyModule

if TYPE_CHECKING:
    import google_crc32c
else:
    google_crc32c = LazyModule("google_crc32c")

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
HEAD_BYTES = _LENGTH.size + _CRC.size
# Protocol buffers hold at most so many bytes.
_MAX_RECORD_BYTES = (2 << 30) - 1


def masked_crc(data: bytes) -> int:
    """The CRC-32C of these bytes as TFRecord stores it: rotated, and with a number added."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_record_head(head: bytes) -> bool:
    """Whether these bytes begin with a length and its checksum. Compressed files do not."""
    crc = head[_LENGTH.size : HEAD_BYTES]
    return len(crc) == _CRC.size and _CRC.unpack(crc)[0] == masked_crc(head[: _LENGTH.size])


def read_records(source: IO[bytes]) -> Iterator[bytes | None]:
    """Yields the records of a file; None for one whose bytes do not match their checksum.

    Raises:
        InputError: The length of a record does not match its checksum, or the file ends within a
            record. Where the next record begins is then unknown.
    """
    number = position = 0
    while head := source.read(HEAD_BYTES):
        number += 1
        where = f"record {number}, at byte {position:,}"
        if len(head) < HEAD_BYTES:
            raise _ends(where, HEAD_BYTES, len(head))
        num_bytes = _LENGTH.unpack_from(head)[0]
        if not is_record_head(head) or num_bytes > _MAX_RECORD_BYTES:
            raise InputError(
                f"{where}: expected the length of a record with its checksum, found "
                f"{head.hex()}: {_what_else(head, number)}"
            )
        body = source.read(num_bytes + _CRC.size)
        if len(body) < num_bytes + _CRC.size:
            raise _ends(where, HEAD_BYTES + num_bytes + _CRC.size, HEAD_BYTES + len(body))
        position += HEAD_BYTES + len(body)
        record = body[:num_bytes]
        yield record if _CRC.unpack_from(body, num_bytes)[0] == masked_crc(record) else None


def _what_else(head: bytes, number: int) -> str:
    """What a file is that does not go on with a record."""
    # The header of ZLIB (RFC 1950): deflate with a window of 32 KiB, and a multiple of 31.
    if number == 1 and head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0:
        return (
            "so begin files that are compressed with ZLIB, which is not read. Decompress it "
            "(`pigz -dz`), or write it with GZIP or without compression"
        )
    return (
        "the file is damaged here, or is no TFRecord; records after this one cannot be found. Get "
        "the file anew, or leave it out"
    )


def _ends(where: str, expected: int, found: int) -> InputError:
    return InputError(
        f"{where}: expected a record of {expected:,} bytes, found {found:,} bytes and the end of "
        f"the file: it is cut off, or still being written. Get the file anew, or leave it out"
    )


KINDS = ("bytes_list", "float_list", "int64_list")
_LABEL_OPTIONAL, _LABEL_REPEATED = 1, 3  # of descriptor.proto
_TYPE_STRING, _TYPE_MESSAGE = 9, 11
_VALUE_TYPES = {"bytes_list": 12, "float_list": 2, "int64_list": 3}


@functools.cache
def example_class() -> Any:
    """The class of both messages, with the fields `features` and `feature_lists`.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """
    what = "reading TFRecord"
    descriptors = import_extra("google.protobuf.descriptor_pb2", what)
    pools = import_extra("google.protobuf.descriptor_pool", what)
    factory = import_extra("google.protobuf.message_factory", what)
    file = descriptors.FileDescriptorProto(
        name="featstore/example.proto", package="featstore.tf", syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(KINDS, 1):
        values = file.message_type.add(name=kind)
        values.field.add(name="value", number=1, label=_LABEL_REPEATED, type=_VALUE_TYPES[kind])
        _add_message(feature, kind, kind, number).oneof_index = 0
    _add_map(file, "Features", "feature", "Feature")
    steps = file.message_type.add(name="FeatureList")
    _add_message(steps, "feature", "Feature", 1, _LABEL_REPEATED)
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    example = file.message_type.add(name="Example")
    _add_message(example, "features", "Features", 1)
    _add_message(example, "feature_lists", "FeatureLists", 2)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("featstore.tf.Example"))


def _add_message(
    holder: Any, name: str, message: str, number: int, label: int = _LABEL_OPTIONAL
) -> Any:
    return holder.field.add(
        name=name,
        number=number,
        label=label,
        type=_TYPE_MESSAGE,
        type_name=f".featstore.tf.{message}",
    )


def _add_map(file: Any, message: str, field: str, value: str) -> None:
    """A message with one field, a map from texts to messages: a repeated entry of key and value."""
    holder = file.message_type.add(name=message)
    # The name that protobuf demands of the entries of a map.
    entry_name = "".join(part.title() for part in field.split("_")) + "Entry"
    entry = holder.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_LABEL_OPTIONAL, type=_TYPE_STRING)
    _add_message(entry, "value", value, 2)
    _add_message(holder, field, f"{message}.{entry_name}", 1, _LABEL_REPEATED)
