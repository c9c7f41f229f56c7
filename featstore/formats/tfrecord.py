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
from typing import IO, Any

from featstore.base.errors import InputError, import_extra
from featstore.base.libraries import LazyModule

google_crc32c: Any = LazyModule("google_crc32c")

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
HEAD_BYTES = _LENGTH.size + _CRC.size
# The most bytes that a protocol buffer may hold.
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


Message = dict[str, Any]


def _field(
    name: str, number: int, kind: str, label: str = "LABEL_OPTIONAL", **more: Any
) -> Message:
    return {"name": name, "number": number, "type": kind, "label": label, **more}


def _message(name: str, number: int, of: str, *label: str, **more: Any) -> Message:
    return _field(name, number, "TYPE_MESSAGE", *label, typeName=f".featstore.tf.{of}", **more)


def _map(message: str, field: str, entry: str, value: str) -> Message:
    """A message with one field, a map from texts to messages: a repeated entry of key and value.

    Args:
        entry: The name that protobuf demands of the map's entries: that of the field in camel case.
    """
    fields = [_field("key", 1, "TYPE_STRING"), _message("value", 2, value)]
    return {
        "name": message,
        "field": [_message(field, 1, f"{message}.{entry}", "LABEL_REPEATED")],
        "nestedType": [{"name": entry, "field": fields, "options": {"mapEntry": True}}],
    }


_KINDS = {"bytes_list": "TYPE_BYTES", "float_list": "TYPE_FLOAT", "int64_list": "TYPE_INT64"}
# A `FileDescriptorProto` of descriptor.proto, in its form as JSON.
_FILE: Message = {
    "name": "featstore/example.proto",
    "package": "featstore.tf",
    "syntax": "proto3",
    "messageType": [
        *(
            {"name": kind, "field": [_field("value", 1, value, "LABEL_REPEATED")]}
            for kind, value in _KINDS.items()
        ),
        {
            "name": "Feature",
            "oneofDecl": [{"name": "kind"}],
            "field": [_message(kind, i, kind, oneofIndex=0) for i, kind in enumerate(_KINDS, 1)],
        },
        {"name": "FeatureList", "field": [_message("feature", 1, "Feature", "LABEL_REPEATED")]},
        _map("Features", "feature", "FeatureEntry", "Feature"),
        _map("FeatureLists", "feature_list", "FeatureListEntry", "FeatureList"),
        {
            "name": "Example",
            "field": [
                _message("features", 1, "Features"),
                _message("feature_lists", 2, "FeatureLists"),
            ],
        },
    ],
}


@functools.cache
def example_class() -> Any:
    """The class of both messages, with the fields `features` and `feature_lists`.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """
    what = "reading TFRecord"
    descriptors = import_extra("google.protobuf.descriptor_pb2", what)
    json_format = import_extra("google.protobuf.json_format", what)
    pools = import_extra("google.protobuf.descriptor_pool", what)
    factory = import_extra("google.protobuf.message_factory", what)
    pool = pools.DescriptorPool()
    pool.Add(json_format.ParseDict(_FILE, descriptors.FileDescriptorProto()))
    return factory.GetMessageClass(pool.FindMessageTypeByName("featstore.tf.Example"))
